"""A broker's address, with the headers and TLS settings that every request to the broker needs."""

import ssl
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Self
from urllib.parse import quote, urlsplit

from holdfast.client.transport.tls import TlsFiles

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """A broker's address. The path of every request begins with `prefix`. Each line of `headers`
    ends in CRLF. `headers` contains the token, so repr() does not show it. `tls` is None for plain
    HTTP.
    """

    url: str
    host: str
    port: int
    prefix: str
    headers: str
    tls: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str, token: str | None, tls: TlsFiles | None) -> Self:
        """Return the target for an address. Reads the TLS files.

        Raises ValueError for an invalid address or token, TlsFilesUnusable for the files.
        """
        url = url.rstrip("/")
        if "@" in url.partition("//")[2].partition("/")[0]:
            raise ValueError("a broker's address takes no user and no password; give a token")
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
            raise ValueError(f"files for TLS go with an address that begins https://, not {url!r}")
        if context is None and parts.scheme == "https":
            context = ssl.create_default_context()
        host = _encode_host(host, wrong)
        default_port = _DEFAULT_PORTS[parts.scheme]
        port = default_port if given_port is None else given_port
        shown_host = f"[{host}]" if ":" in host else host
        shown = shown_host if port == default_port else f"{shown_host}:{port}"
        headers = f"Host: {shown}\r\nAccept-Encoding: identity\r\n"
        if token is not None:
            headers += f"Authorization: Bearer {check_token(token)}\r\n"
        return cls(url, host, port, quote(parts.path, safe="/%:@!$&'()*+,;=~"), headers, context)

    def __repr__(self) -> str:
        return f"Target({self.url!r})"


def _encode_host(host: str, wrong: str) -> str:
    if ":" in host:
        try:
            IPv6Address(host.partition("%")[0])
        except ValueError:
            raise ValueError(wrong) from None
        return host
    try:
        encoded = host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError(wrong) from None
    if not encoded.isprintable() or " " in encoded:
        raise ValueError(wrong)
    return encoded


def check_token(token: str) -> str:
    """Check a token that is to be used in a header; return it without surrounding whitespace.

    Raises ValueError for an invalid token; the error text does not contain the token.
    """
    stripped = token.strip()
    if not stripped.isascii() or not stripped.isprintable() or not stripped or " " in stripped:
        raise ValueError(
            "the token is empty, or holds a blank or a sign that no token has; give it as "
            "'holdfast token create' printed it"
        )
    return stripped
