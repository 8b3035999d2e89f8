"""What a task shakes hands with when the broker serves TLS. Standard library only.

Files are named, not carried: every executor must have them at the same path.
"""

import ssl
from dataclasses import dataclass

from holdfast.spark.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM. Without `ca_file` the system's authorities are trusted, with it only those in
    it. `cert_file` is shown to a broker that asks for one; without `key_file` it holds its key."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context that they make. Reads files. Raises InvalidOption."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as error:
            raise _unusable("caFile", self.ca_file, error) from error
        if self.cert_file is not None:
            key_file = self.key_file or self.cert_file
            try:
                context.load_cert_chain(self.cert_file, key_file, password=_no_password)
            except (OSError, ValueError) as error:
                raise _unusable("certFile", f"{self.cert_file} with {key_file}", error) from error
        return context


#: The system's authorities, and no certificate of one's own.
NO_TLS_FILES = TlsFiles()


def _no_password() -> str:
    """Nobody is there to be asked for one."""
    raise ValueError("the key is encrypted, and nobody is asked for its passphrase")


def _unusable(option: str, file: str | None, error: Exception) -> InvalidOption:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InvalidOption(option, f"{file} cannot be used on this machine: {reason}")
