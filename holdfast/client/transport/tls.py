"""The TLS files of a client: the authorities that it trusts, its own certificate and its key."""

import ssl
from dataclasses import dataclass
from pathlib import Path

File = str | Path


class TlsFilesUnusable(ValueError):
    """The files cannot be used for TLS. `file` names the file, or the pair of files."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason

    def __str__(self) -> str:
        return f"TLS cannot be spoken with {self.file}: {self.reason}; give another file (PEM)"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `ca_file` holds the authorities to trust instead of the system's. `cert_file`
    holds the client's certificate, for a broker that requests one; if `key_file` is None,
    `cert_file` must also contain the private key."""

    ca_file: File | None = None
    cert_file: File | None = None
    key_file: File | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return a TLS context for the files. Return None if no file is given: then use Python's
        default context.

        Reads files. Raises TlsFilesUnusable.
        """
        if self.ca_file is None and self.cert_file is None and self.key_file is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as error:
            raise TlsFilesUnusable(str(self.ca_file), _error_text(error)) from error
        if self.cert_file is None:
            if self.key_file is not None:
                raise TlsFilesUnusable(str(self.key_file), "a key without its certificate")
            return context
        key_file = self.key_file or self.cert_file
        try:
            context.load_cert_chain(self.cert_file, key_file, password=_refuse_password)
        except (OSError, ValueError) as error:
            raise TlsFilesUnusable(
                f"{self.cert_file} and {key_file}", _error_text(error)
            ) from error
        return context


def _refuse_password() -> str:
    """Refuse an encrypted key: the client cannot ask for a passphrase."""
    raise ValueError("the key is encrypted; the client cannot ask for its passphrase")


def _error_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
