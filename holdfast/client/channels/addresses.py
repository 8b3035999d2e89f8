"""The addresses of a broker: AMQP over TCP, or over WebSocket on the port of HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.client.session.streams import check_url
from holdfast.client.transport.target import Target, TlsFiles

_HTTP_SCHEMES = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
_TCP_SCHEMES = {"amqp": "http", "amqps": "https"}


@dataclass(frozen=True, slots=True)
class Address:
    """One address. `url` is None for a WebSocket on the port of HTTP."""

    target: Target
    url: str | None


def parse_addresses(urls: str | Sequence[str], token: str | None, tls: TlsFiles) -> list[Address]:
    """Return the addresses of a broker, in order. Reads the TLS files, if an address needs them.

    Raises ValueError for an invalid address or token, or if there is no address.
    """
    given = [urls] if isinstance(urls, str) else list(urls)
    if not given:
        raise ValueError("a connection needs at least one address")
    return [_parse(url, token, tls) for url in given]


def _parse(url: str, token: str | None, tls: TlsFiles) -> Address:
    scheme, separator, rest = url.partition("://")
    is_tcp = scheme in _TCP_SCHEMES
    if is_tcp:
        check_url(url)
    scheme = _TCP_SCHEMES.get(scheme) or _HTTP_SCHEMES.get(scheme) or scheme
    files = tls if scheme == "https" else None
    return Address(Target.parse(scheme + separator + rest, token, files), url if is_tcp else None)
