"""The source of a job's rows, or the target of a write: a broker's address, or a data directory.
Pure.

A read can name either of them, or both:

url alone     The broker plans the read; tasks read over HTTP.
path alone    No broker is needed: the driver plans the read from the segment files in the
              directory, and tasks read these files.
both          The broker plans the read. A task reads a segment file if it is the file that the
              broker planned with, and otherwise uses HTTP. With the option `transport`, tasks use
              only files or only HTTP.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast
from urllib.parse import urlsplit

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.parser import OptionParser

#: The options of every kind of job with a broker.
ADDRESS_OPTIONS: Mapping[str, str] = {
    "url": "address of the broker; every executor must be able to reach it",
    "kafka.bootstrap.servers": "Kafka's name for url; may be host:port",
    "token": "access token",
    "caFile": "certificate authorities to trust instead of the system's (PEM, a path on every "
    "executor)",
    "certFile": "client certificate, if the broker requires one (PEM, a path on every executor)",
    "keyFile": "key of the client certificate (PEM); default: certFile also contains the key",
}
#: The options of every kind of read, with or without a broker.
LOCATION_OPTIONS: Mapping[str, str] = {
    **ADDRESS_OPTIONS,
    "path": "data directory to read instead of, or together with, url; driver and executors must "
    "see it under this path",
    "transport": "auto (default): files if possible, otherwise HTTP; files or http: only these",
}

Transport = Literal["auto", "files", "http"]

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


@dataclass(frozen=True, slots=True)
class DataLocation:
    """A broker's address, a data directory, or both. At least one of them is set."""

    address: Address | None
    path: str | None
    transport: Transport = "auto"

    def require_broker(self, why: str) -> Address:
        """Return the broker's address. If there is none, raises InvalidOption with the reason
        `why`."""
        if self.address is None:
            raise InvalidOption("url", f"is missing: {why}; give url together with path")
        return self.address


def parse_location(options: OptionParser) -> DataLocation:
    """Return the source of a read's rows. Raises InvalidOption."""
    path = options.text("path")
    has_url = any(options.text(name) is not None for name in ("url", "kafka.bootstrap.servers"))
    if not has_url and path is None:
        raise InvalidOption(
            "url",
            "is missing: give exactly one of url and kafka.bootstrap.servers (a broker's address), "
            "or path (a data directory to read)",
        )
    address = parse_address(options) if has_url else None
    if address is None:
        for name in ("token", "caFile", "certFile", "keyFile"):
            if options.text(name) is not None:
                raise InvalidOption(name, "needs url: a read of files alone does not use it")
    transport = cast(Transport, options.one_of("transport", ("auto", "files", "http"), "auto"))
    if transport == "files" and path is None:
        raise InvalidOption("transport", "is files: give path, the data directory to read")
    if transport == "http" and address is None:
        raise InvalidOption("transport", "is http: give url, the broker's address")
    return DataLocation(address, path, transport)


def parse_address(options: OptionParser) -> Address:
    """Return the broker's address and credentials. Raises InvalidOption."""
    url, token = _parse_url(options), options.text("token")
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        # The message does not quote the token.
        raise InvalidOption("token", "contains a blank or a character that no token has")
    ca_file, cert_file, key_file = map(options.text, ("caFile", "certFile", "keyFile"))
    for name, file in (("caFile", ca_file), ("certFile", cert_file)):
        if file is not None and urlsplit(url).scheme != "https":
            raise InvalidOption(name, f"needs an address that begins with https://, not {url}")
    if key_file is not None and cert_file is None:
        raise InvalidOption("keyFile", "is the key of certFile; give both")
    return Address(url, token, ca_file, cert_file, key_file)


def _parse_url(options: OptionParser) -> str:
    name = options.exactly_one("url", "kafka.bootstrap.servers")
    text = options.text(name) or ""
    if _USER.search(text):  # checked first, so that no message quotes a password
        raise InvalidOption(name, "must not contain a user or password; use the option token")
    if "," in text:
        raise InvalidOption(name, f"{text!r} has several addresses, but Holdfast is one broker")
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port_fits = parts.port is None or parts.port > 0
    except ValueError as error:
        raise InvalidOption(name, f"{text!r} is not an address: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_fits:
        raise InvalidOption(name, f"{text!r} is not an address such as http://broker:8711")
    if parts.query or parts.fragment:
        raise InvalidOption(name, "must not contain a query or fragment")
    return url.rstrip("/")
