"""A broker's address, with the headers and the TLS context that every request needs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlsplit

from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import ipaddress
    import ssl
else:
    import_at_first_use(globals(), ipaddress="ipaddress", ssl="ssl")

File = str | Path

_DEFAULT_PORTS = {"http": 80, "https": 443}


class TlsFilesUnusable(ValueError):
    """The files cannot be used for TLS. `file` names the file, or the pair of files."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason

    def __str__(self) -> str:
        return f"TLS is not possible with {self.file}: {self.reason}; give another file (PEM)"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `ca_file` holds the authorities to trust instead of the system's authorities.
    `cert_file` holds the client's certificate, for a broker that requests one; if `key_file` is
    None, `cert_file` must also contain the private key."""

    ca_file: File | None = None
    cert_file: File | None = None
    key_file: File | None = None

    def context(self) -> "ssl.SSLContext | None":
        """Return a TLS context for the files. Return None if no file is given; in this case the
        caller must use Python's default context.

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


@dataclass(frozen=True, slots=True)
class Target:
    """A broker's address. The path of every request begins with `prefix`. Each line of `headers`
    ends in CRLF. repr() does not show `token`, and `headers`, which contains it. `tls` is None for
    plain HTTP.
    """

    url: str
    host: str
    port: int
    prefix: str
    headers: str = field(repr=False)
    tls: "ssl.SSLContext | None"
    token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, token: str | None, tls: TlsFiles | None) -> Self:
        """Return the target for an address. Reads the TLS files.

        Raises ValueError for an invalid address or token, TlsFilesUnusable for the files.
        """
        url = url.rstrip("/")
        if "@" in url.partition("//")[2].partition("/")[0]:
            raise ValueError("a broker's address has no user and no password; give a token instead")
        wrong = f"a broker's address looks like http://127.0.0.1:8711, not {url!r}"
        try:
            parts = urlsplit(url)
            host, given_port = parts.hostname, parts.port
        except ValueError:
            raise ValueError(wrong) from None
        if parts.scheme not in _DEFAULT_PORTS or not host or parts.query or parts.fragment:
            raise ValueError(wrong)
        context = tls.context() if tls is not None else None
        if context is not None and parts.scheme != "https":
            raise ValueError(f"TLS files need an address that begins with https://, not {url!r}")
        if context is None and parts.scheme == "https":
            context = ssl.create_default_context()
        host = _encode_host(host, wrong)
        default_port = _DEFAULT_PORTS[parts.scheme]
        port = default_port if given_port is None else given_port
        shown_host = f"[{host}]" if ":" in host else host
        shown = shown_host if port == default_port else f"{shown_host}:{port}"
        headers = f"Host: {shown}\r\nAccept-Encoding: identity\r\n"
        if token is not None:
            token = check_token(token)
            headers += f"Authorization: Bearer {token}\r\n"
        prefix = quote(parts.path, safe="/%:@!$&'()*+,;=~")
        return cls(url, host, port, prefix, headers, context, token)


def _encode_host(host: str, wrong: str) -> str:
    if ":" in host:
        try:
            ipaddress.IPv6Address(host.partition("%")[0])
        except ValueError:
            raise ValueError(wrong) from None
        return host
    if host.isascii():  # IDNA checks only the labels, and its import takes milliseconds
        *labels, last = host.split(".")
        if not all(0 < len(label) < 64 for label in labels) or len(last) >= 64:
            raise ValueError(wrong)
        encoded = host
    else:
        encoded = _encode_international(host, wrong)
    if not encoded.isprintable() or " " in encoded:
        raise ValueError(wrong)
    return encoded


def _encode_international(host: str, wrong: str) -> str:
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError(wrong) from None


def check_token(token: str) -> str:
    """Return a token for use in a header, without surrounding whitespace.

    Raises ValueError for an invalid token; the error text does not contain the token.
    """
    stripped = token.strip()
    if not stripped.isascii() or not stripped.isprintable() or not stripped or " " in stripped:
        raise ValueError(
            "the token is empty, or has a blank or a character that no token has; give the token "
            "as 'holdfast token create' printed it"
        )
    return stripped


def _refuse_password() -> str:
    """Refuse an encrypted key: the client cannot ask for a passphrase."""
    raise ValueError("the key is encrypted; the client cannot ask for its passphrase")


def _error_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
