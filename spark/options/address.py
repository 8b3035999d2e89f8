"""The connection options that every kind of job has: address, token and TLS files. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.parser import OptionParser
from holdfast.spark.options.tls import NO_TLS_FILES, TlsFiles

ADDRESS_OPTIONS: Mapping[str, str] = {
    "url": "address of the broker, as every executor can reach it",
    "kafka.bootstrap.servers": "the same under its Kafka name; host:port will do",
    "token": "access token",
    "caFile": "authorities to trust in place of the system's (PEM, a path on every executor)",
    "certFile": "certificate to show to a broker that asks for one (PEM, likewise)",
    "keyFile": "its key (PEM, likewise); without it certFile holds it",
}

#: Matches a user or password before the host, in one address or in several with commas between.
_USER = re.compile(r"(?:^|//|,)[^/,]*@")


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's address and the credentials for it."""

    url: str
    token: str | None = field(default=None, repr=False)
    tls: TlsFiles = NO_TLS_FILES


def parse_address(options: OptionParser) -> Address:
    """Return the broker's address and credentials. Raises InvalidOption."""
    url = _parse_url(options)
    return Address(url, _parse_token(options), _parse_tls(options, url))


def _parse_token(options: OptionParser) -> str | None:
    """Return the token, or None if there is none. The error message does not quote the token."""
    token = options.text("token")
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise InvalidOption("token", "holds a blank or a sign that no token has")
    return token


def _parse_url(options: OptionParser) -> str:
    name = options.exactly_one("url", "kafka.bootstrap.servers")
    text = options.text(name) or ""
    if _USER.search(text):  # checked first, so that no message quotes a password
        raise InvalidOption(name, "takes no user and no password; access is by the option token")
    if "," in text:
        raise InvalidOption(name, f"{text!r} are several addresses; Holdfast is one broker")
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port_fits = parts.port is None or parts.port > 0
    except ValueError as error:
        raise InvalidOption(name, f"{text!r} is no address: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_fits:
        raise InvalidOption(name, f"{text!r} is no address such as http://broker:8711")
    if parts.query or parts.fragment:
        raise InvalidOption(name, "takes no query and no fragment; access is by the option token")
    return url.rstrip("/")


def _parse_tls(options: OptionParser, url: str) -> TlsFiles:
    files = TlsFiles(options.text("caFile"), options.text("certFile"), options.text("keyFile"))
    for name, value in (("caFile", files.ca_file), ("certFile", files.cert_file)):
        if value is not None and urlsplit(url).scheme != "https":
            raise InvalidOption(name, f"goes with an address that begins https://, not {url}")
    if files.key_file is not None and files.cert_file is None:
        raise InvalidOption("keyFile", "is the key of certFile; give both")
    return files
