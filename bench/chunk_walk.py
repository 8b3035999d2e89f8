"""Measure the event loop time for parsing a chunked body, per packet of 16 KiB.

    python -m bench.chunk_walk [--before FILE] [--times 30]

Measures `ChunkWalk` and aiohttp's parser with bodies of equal chunks, and prints the shortest of
`--times` runs in milliseconds of processor time. `--before` is a file with another version of
http_api/wire/chunk_walk.py (`git show REVISION:http_api/wire/chunk_walk.py`). Both versions are
measured alternately, so that a busy machine slows both, and the last column has their ratio.
"""

import argparse
import asyncio
import runpy
import time
from collections.abc import Callable
from typing import Any, cast

from aiohttp.http_parser import HttpRequestParser
from rich.console import Console
from rich.table import Table

from holdfast.http_api.wire.chunk_walk import ChunkWalk
from holdfast.http_api.wire.connection_registry import RECEIVE_BUFFER_BYTES

_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNKS = {
    "1 byte": b"1\r\nx\r\n",
    "1 byte, with an extension": b"1;a\r\nx\r\n",
    **{f"{size} bytes": b"%x\r\n%s\r\n" % (size, b"x" * size) for size in (8, 63, 64, 256, 4096)},
    "1 and 64 bytes in turns": b"1\r\nx\r\n40\r\n" + b"x" * 64 + b"\r\n",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", help="another version of http_api/wire/chunk_walk.py")
    parser.add_argument("--times", type=int, default=30)
    options = parser.parse_args()
    walks: list[Any] = [ChunkWalk]
    if options.before:
        walks.append(runpy.run_path(options.before)["ChunkWalk"])
    table = Table("chunks of", "parser ms", "walk ms", "before ms", "before / now")
    for name, chunk in _CHUNKS.items():
        packet = chunk * (RECEIVE_BUFFER_BYTES // len(chunk))
        ways = [_parsing(packet), *(_walking(walk, packet) for walk in walks)]
        rounds = [[_took_ms(way) for way in ways] for _ in range(options.times)]
        parse, now, *before = (min(took) for took in zip(*rounds, strict=True))
        compared = [f"{before[0]:.3f}", f"{before[0] / now:.1f}"] if before else ["", ""]
        table.add_row(name, f"{parse:.3f}", f"{now:.3f}", *compared)
    Console(width=100).print(table)


def _took_ms(way: Callable[[], object]) -> float:
    begun = time.process_time()
    way()
    return (time.process_time() - begun) * 1000


def _walking(walk: Callable[[], Any], packet: bytes) -> Callable[[], object]:
    return lambda: walk().feed(packet, 0)


def _parsing(packet: bytes) -> Callable[[], object]:
    loop = asyncio.new_event_loop()

    def parse() -> None:
        parser = HttpRequestParser(cast(Any, _Unlimited()), loop, limit=2**20)
        parser.feed_data(_HEAD)
        parser.feed_data(packet)

    return parse


class _Unlimited:
    """A protocol for aiohttp's parser. The parser pauses it when there is much data; the pause is
    ignored."""

    connected = True

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""


if __name__ == "__main__":
    main()
