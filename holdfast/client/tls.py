"""What a client shakes hands with when its broker serves TLS: whom it trusts, and who it is."""

import ssl
from dataclasses import dataclass
from pathlib import Path

File = str | Path


class TlsFilesUnusable(ValueError):
    """Files that no TLS can be spoken with. `file` is the one, or the pair."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason

    def __str__(self) -> str:
        return f"TLS cannot be spoken with {self.file}: {self.reason}; give another file (PEM)"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM. Without `ca_file` the system's authorities are trusted, with it only those in
    it. `cert_file` is shown to a broker that asks for one; without `key_file` it holds its key."""

    ca_file: File | None = None
    cert_file: File | None = None
    key_file: File | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the context that they make, None when no file is given: the usual one is right.

        Reads files. Raises TlsFilesUnusable.
        """
        if self.ca_file is None and self.cert_file is None and self.key_file is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as error:
            raise TlsFilesUnusable(str(self.ca_file), _reason(error)) from error
        if self.cert_file is None:
            if self.key_file is not None:
                raise TlsFilesUnusable(str(self.key_file), "a key without its certificate")
            return context
        key_file = self.key_file or self.cert_file
        try:
            context.load_cert_chain(self.cert_file, key_file, password=_no_password)
        except (OSError, ValueError) as error:
            raise TlsFilesUnusable(f"{self.cert_file} and {key_file}", _reason(error)) from error
        return context


def _no_password() -> str:
    """Nobody is there to be asked for one."""
    raise ValueError("the key is encrypted, and nobody is asked for its passphrase")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
