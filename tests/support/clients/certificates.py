"""Certificate authorities and certificates, created for each test."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

LONG_AGO = datetime.now(UTC) - timedelta(days=1)


class Certificates:
    """One authority, and the files of the certificates that it signed, in `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self.authority = trustme.CA(organization_name=f"Holdfast test {name}")
        self.ca_file = folder / f"{name}.pem"
        self.authority.cert_pem.write_to_path(self.ca_file)

    def issue(
        self,
        name: str,
        *identities: str,
        common_name: str | None = None,
        not_after: datetime | None = None,
    ) -> tuple[Path, Path]:
        """Write a certificate for these names, and its key; return both paths."""
        made = self.authority.issue_cert(
            *(identities or ("localhost",)), common_name=common_name, not_after=not_after
        )
        certificate = self._folder / f"{name}.crt"
        key = self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return certificate, key

    def trusting(self, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return a TLS client context that trusts this authority."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context
