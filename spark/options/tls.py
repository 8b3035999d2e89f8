"""The files for TLS connections to the broker. Standard library only.

Tasks get the paths, not the contents: every executor must have the files at the same paths.
"""

import ssl
from dataclasses import dataclass

from holdfast.spark.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files.

    If `ca_file` is set, only the authorities in it are trusted; otherwise the system's are.
    `cert_file` is the client certificate, for a broker that requires one. The key of the
    certificate is in `key_file`, or, if that is None, in `cert_file`.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return an SSL context made from the files. Raises InvalidOption if a file cannot be
        used."""
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


#: The system's authorities, and no client certificate.
NO_TLS_FILES = TlsFiles()


def _no_password() -> str:
    """Refuse an encrypted key, because a job cannot ask for its passphrase."""
    raise ValueError("the key is encrypted, and nobody is asked for its passphrase")


def _unusable(option: str, file: str | None, error: Exception) -> InvalidOption:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InvalidOption(option, f"{file} cannot be used on this machine: {reason}")
