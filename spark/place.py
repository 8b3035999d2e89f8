"""Where rows come from: a broker's address, a data directory that it writes, or both. Pure.

url alone     planned by the broker, rows over HTTP
path alone    planned and read from the directory's segment files; no broker is asked
both          planned by the broker; each task takes the files where they are the very ones that
              the broker planned with, and HTTP where not (`transport` = auto, files, http)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from holdfast.spark.address import ADDRESS_OPTIONS, Address, parse_address
from holdfast.spark.errors import InvalidOption
from holdfast.spark.option_parser import GivenOptions

#: What every kind of read takes, whether it has a broker or not.
PLACE_OPTIONS: Mapping[str, str] = {
    **ADDRESS_OPTIONS,
    "path": "data directory, as driver and executors see it: read its files, with or without url",
    "transport": "auto (default): files where they fit, else HTTP; files or http: only these",
}

Transport = Literal["auto", "files", "http"]


@dataclass(frozen=True, slots=True)
class Place:
    """An address, a directory, or both; never neither."""

    address: Address | None
    path: str | None
    transport: Transport = "auto"

    def broker(self, why: str) -> Address:
        """Return the broker's address. Raises InvalidOption, which says `why` one is needed."""
        if self.address is None:
            raise InvalidOption("url", f"is missing: {why}; give url beside path")
        return self.address


def parse_place(options: GivenOptions) -> Place:
    """Return where rows come from. Raises InvalidOption."""
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
    return Place(address, path, transport)
