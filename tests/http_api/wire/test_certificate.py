"""The expiry time of a certificate, read from its bytes."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.http_api.wire.tls import certificate_expires_s
from tests.support.certificates import Certificates


# O8: no metric said when the certificate expires.
@pytest.mark.parametrize(
    "not_after",
    [
        datetime(2027, 3, 4, 5, 6, 7, tzinfo=UTC),
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),  # the last year with two digits
        datetime(2050, 1, 1, tzinfo=UTC),
        datetime(2123, 1, 1, tzinfo=UTC),
    ],
)
def test_the_end_of_a_certificate_is_read(tmp_path: Path, not_after: datetime) -> None:
    certificate, _ = Certificates(tmp_path).issue("server", not_after=not_after)
    pem = certificate.read_text()
    assert certificate_expires_s(pem) == not_after.timestamp()
    assert certificate_expires_s(f"some words before\n{pem}{pem}") == not_after.timestamp()


def test_what_is_no_certificate_has_no_end(tmp_path: Path) -> None:
    certificate, key = Certificates(tmp_path).issue("server")
    pem = certificate.read_text()
    assert certificate_expires_s("") is None
    assert certificate_expires_s(key.read_text()) is None
    for length in range(0, pem.find("-----END"), 7):
        cut = f"{pem[:length]}\n-----END CERTIFICATE-----\n"
        assert certificate_expires_s(cut) in {None, certificate_expires_s(pem)}
