"""TLS of the API: the context is made from files, and made again when the files change.

The API needs TLS 1.2 or newer and uses the system's choice of ciphers. Sessions of TLS 1.3 are
never resumed. Sessions of TLS 1.2 are resumed until the next check of the files: OpenSSL keeps them
in the context, and Python has no setting against that. The check then makes a new context. So new
certificates and CAs apply to every new connection. Open connections are not affected.
"""

import asyncio
import logging
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import msgspec

from holdfast.http_api.config import HttpConfig

_logger = logging.getLogger(__name__)

#: Types of DER elements (RFC 5280).
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17
_BEGIN = "-----BEGIN CERTIFICATE-----"
_END = "-----END CERTIFICATE-----"


@dataclass(eq=False, repr=False)
class TlsUnusable(Exception):
    """A file cannot be used for TLS."""

    file: str
    reason: str

    def __str__(self) -> str:
        return (
            f"TLS cannot be served with {self.file}: {self.reason}; see http_api.tls_certificate, "
            "tls_key and tls_client_ca in the configuration"
        )


class TlsFiles(msgspec.Struct, frozen=True):
    """The files of the server's TLS configuration, all PEM.

    If `key` is None, the certificate's file also contains the key. If `client_ca` is set, clients
    must show a certificate that this CA has signed. If `asks_only` is set, too, clients may also
    connect without a certificate.
    """

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None
    asks_only: bool = False

    @classmethod
    def of(cls, config: HttpConfig) -> "TlsFiles | None":
        """Return the files of a configuration, or None if TLS is off. Raises TlsUnusable."""
        if not config.tls_certificate:
            given = {"tls_key": config.tls_key, "tls_client_ca": config.tls_client_ca}
            for name, value in given.items():
                if value:
                    raise TlsUnusable(value, f"{name} is given without tls_certificate")
            return None
        return cls(
            Path(config.tls_certificate),
            Path(config.tls_key) if config.tls_key else None,
            Path(config.tls_client_ca) if config.tls_client_ca else None,
            asks_only=config.tls_client_certificates == "optional",
        )

    def versions(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return a value that changes when any of the files changes."""
        return tuple(
            _version(each) for each in (self.certificate, self.key, self.client_ca) if each
        )

    def expires_s(self) -> float | None:
        """Read the file, and return when the certificate expires, in seconds since 1970.

        Return None if the file or the certificate cannot be read.
        """
        try:
            return certificate_expires_s(self.certificate.read_text("ascii", "replace"))
        except OSError:
            return None

    def context(self) -> ssl.SSLContext:
        """Read the files, and return a context that uses them. Raises TlsUnusable."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        key = self.key or self.certificate
        try:
            context.load_cert_chain(self.certificate, key, password=_no_password)
        except (OSError, ValueError) as error:
            raise TlsUnusable(f"{self.certificate} and {key}", _reason(error)) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ValueError) as error:
                raise TlsUnusable(str(self.client_ca), _reason(error)) from error
            context.verify_mode = ssl.CERT_OPTIONAL if self.asks_only else ssl.CERT_REQUIRED
        return context


class ServerTls:
    """The TLS context for new connections. Belongs to one event loop."""

    def __init__(self, files: TlsFiles, reload_interval_s: float) -> None:
        """Read the files. Raises TlsUnusable."""
        self._files = files
        self._interval_s = reload_interval_s
        self._versions = files.versions()
        self._is_loaded = True
        """Whether the files of `_versions` are in use."""
        self._watch: asyncio.Task[NoReturn] | None = None
        self.context = files.context()
        self.expires_s = files.expires_s()
        """When the certificate in use expires, in seconds since 1970; None if it is unknown."""

    def start(self) -> None:
        self._watch = asyncio.create_task(self._watch_files(), name="tls-files")

    async def stop(self) -> None:
        """Stop watching. May be called twice."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])

    async def reload(self) -> None:
        """Load the files if they have changed and are usable, or if the context has sessions.

        If they are not usable (for example if only the certificate was replaced, and not yet its
        key), the old context stays in use until the files change again.
        """
        versions = await asyncio.to_thread(self._files.versions)
        is_changed = versions != self._versions
        has_sessions = self._is_loaded and self.context.session_stats()["number"] > 0
        if not is_changed and not has_sessions:
            return
        self._versions, self._is_loaded = versions, False
        try:
            self.context = await asyncio.to_thread(self._files.context)
            self.expires_s = await asyncio.to_thread(self._files.expires_s)
        except TlsUnusable as error:
            _logger.warning("the old certificate stays in use: %s", error)
        else:
            self._is_loaded = True
            if is_changed:
                _logger.info("new connections use the certificate in %s", self._files.certificate)

    async def _watch_files(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.reload()


def _version(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _no_password() -> str:
    """Refuse an encrypted key: there is no way to ask for its passphrase."""
    raise ValueError("the key is encrypted; store it without a passphrase, readable by the broker")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


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
        raise ValueError("the certificate has no validity")
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
        raise ValueError("the certificate is truncated")
    return tag, (start, start + length)
