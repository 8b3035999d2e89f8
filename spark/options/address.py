"""The connection options that every kind of job has: address, token and TLS files. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.parser import OptionParser

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
    """A broker's address and the credentials for it.

    The files are PEM files, which every executor must have at these paths. If `ca_file` is set,
    only the authorities in it are trusted; otherwise the system's are. `cert_file` is the client
    certificate; its key is in `key_file`, or, if that is None, in `cert_file`.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def parse_address(options: OptionParser) -> Address:
    """Return the broker's address and credentials. Raises InvalidOption."""
    url, token = _parse_url(options), _parse_token(options)
    ca_file, cert_file, key_file = map(options.text, ("caFile", "certFile", "keyFile"))
    for name, file in (("caFile", ca_file), ("certFile", cert_file)):
        if file is not None and urlsplit(url).scheme != "https":
            raise InvalidOption(name, f"goes with an address that begins https://, not {url}")
    if key_file is not None and cert_file is None:
        raise InvalidOption("keyFile", "is the key of certFile; give both")
    return Address(url, token, ca_file, cert_file, key_file)


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
