"""The source of rows: a broker's address, a data directory, or both. Pure.

url alone     The broker plans the read; tasks read over HTTP.
path alone    No broker is needed: the driver plans the read from the segment files in the
              directory, and tasks read these files.
both          The broker plans the read. A task reads a segment file if it is the file that the
              broker planned with, and otherwise uses HTTP. With the option `transport`, tasks use
              only files or only HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.address import ADDRESS_OPTIONS, Address, parse_address
from holdfast.spark.options.parser import OptionParser

#: The options of every kind of read, with or without a broker.
LOCATION_OPTIONS: Mapping[str, str] = {
    **ADDRESS_OPTIONS,
    "path": "data directory, as driver and executors see it: read its files, with or without url",
    "transport": "auto (default): files where they fit, else HTTP; files or http: only these",
}

Transport = Literal["auto", "files", "http"]


@dataclass(frozen=True, slots=True)
class DataLocation:
    """A broker's address, a data directory, or both. At least one of them is set."""

    address: Address | None
    path: str | None
    transport: Transport = "auto"

    def require_broker(self, why: str) -> Address:
        """Return the broker's address. If there is none, raises InvalidOption with `why` as the
        reason."""
        if self.address is None:
            raise InvalidOption("url", f"is missing: {why}; give url beside path")
        return self.address


def parse_location(options: OptionParser) -> DataLocation:
    """Return the source of rows. Raises InvalidOption."""
    path = options.text("path")
    has_url = any(options.text(name) is not None for name in ("url", "kafka.bootstrap.servers"))
    if not has_url and path is None:
        raise InvalidOption(
            "url",
            "is missing: give exactly one of url and kafka.bootstrap.servers, a broker's address, "
            "or path, a data directory to read",
        )
    address = parse_address(options) if has_url else None
    if address is None:
        for name in ("token", "caFile", "certFile", "keyFile"):
            if options.text(name) is not None:
                raise InvalidOption(name, "goes with url: files ask for none")
    transport = cast(Transport, options.one_of("transport", ("auto", "files", "http"), "auto"))
    if transport == "files" and path is None:
        raise InvalidOption("transport", "is files: give path, the data directory to read")
    if transport == "http" and address is None:
        raise InvalidOption("transport", "is http: give url, the broker to ask")
    return DataLocation(address, path, transport)
