"""Reads the expiry time of a certificate from its DER bytes (RFC 5280). Pure."""

import ssl
from datetime import UTC, datetime

_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17
_BEGIN = "-----BEGIN CERTIFICATE-----"
_END = "-----END CERTIFICATE-----"


def certificate_expires_s(pem: str) -> float | None:
    """Return when the first certificate in a PEM text expires, in seconds since 1970.

    Return None if the text has no certificate, or if the certificate cannot be read.
    """
    begin = pem.find(_BEGIN)
    end = pem.find(_END, begin)
    if begin < 0 or end < 0:
        return None
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)])).timestamp()
    except (ValueError, IndexError):
        return None


def _not_after(der: bytes) -> datetime:
    """Return the time notAfter of a certificate.

    Certificate contains tbsCertificate, which contains version, serial, signature, issuer and
    validity. Validity contains notBefore and notAfter.
    """
    _, certificate = _value(der, 0)
    _, signed = _value(der, certificate[0])
    at = signed[0]
    tag, version = _value(der, at)
    if tag == _VERSION:
        at = version[1]
    for _ in range(3):  # serial, signature, issuer
        at = _value(der, at)[1][1]
    tag, validity = _value(der, at)
    if tag != _SEQUENCE:
        raise ValueError("no validity where it should be")
    _, not_before = _value(der, validity[0])
    tag, (start, end) = _value(der, not_before[1])
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:  # two-digit years: 1950 to 2049
        text = f"{'19' if text[:2] >= '50' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _value(der: bytes, at: int) -> tuple[int, tuple[int, int]]:
    """Return the tag of the DER element at index `at`, and the start and end of its value."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(der[start : start + count])
        start += count
    if start + length > len(der):
        raise ValueError("cut short")
    return tag, (start, start + length)
