"""The Python calls that a broker makes for one publish, in order.

    python -m bench.publish_calls [--requests 50] [--connections 1] [--durability written] [--tree]

The broker runs in a thread of this process, and sys.setprofile counts the calls of Python functions
in its threads. The connections send messages of 1 KiB, and the next requests follow when all are
answered. The first requests do not count. Prints the calls for each publish, by folder and by
function. `--tree` also prints the calls of one round of requests in order, as a tree.
"""

import argparse
import asyncio
import socket
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import uvloop

from bench.hold_http import put_topic
from holdfast.broker import Broker
from holdfast.config import load_config

_ROOT = f"{Path(__file__).parents[1]}/"
_BODY_BYTES = 1024
#: The heads are stored, and the caches of the functions are filled, after this many requests.
_WARM_UP = 20


class Calls:
    """The calls of Python functions in all threads that were started after `install`, while
    `is_counting` is set."""

    def __init__(self) -> None:
        self.is_counting = False
        self.counted: Counter[str] = Counter()
        self.tree: list[str] = []
        self._depths: dict[int, int] = {}

    def install(self) -> None:
        threading.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.is_counting or event not in ("call", "return"):
            return
        thread = threading.get_ident()
        depth = self._depths.get(thread, 0)
        if event == "return":
            self._depths[thread] = max(depth - 1, 0)
            return
        code = frame.f_code
        name = f"{code.co_filename.removeprefix(_ROOT)}: {code.co_qualname}"
        self.counted[name] += 1
        self.tree.append(f"{threading.current_thread().name[:12]:12} {'  ' * depth}{name}")
        self._depths[thread] = depth + 1


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__ or "")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--durability", choices=("written", "fsync"), default="written")
    parser.add_argument("--tree", action="store_true")
    options = parser.parse_args()
    calls = Calls()
    calls.install()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        _run(calls, Path(directory), options)
    print_calls(calls.counted, options.requests * options.connections, "publish")


def _run(calls: Calls, directory: Path, options: argparse.Namespace) -> None:
    loop = uvloop.new_event_loop()
    flags = {"data_dir": str(directory / "data"), "http_api.port": "0"}
    broker = Broker(load_config(file=None, environ={}, flags=flags))
    thread = threading.Thread(target=loop.run_forever, name="loop")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(broker.start(), loop).result(60)
        put_topic(broker.url, "counted", 1, options.durability)
        _publish(calls, broker.url, options)
        asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _publish(calls: Calls, url: str, options: argparse.Namespace) -> None:
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    address = parts.hostname, parts.port
    clients = [socket.create_connection(address) for _ in range(options.connections)]
    request = (
        f"POST /v1/topics/counted/messages HTTP/1.1\r\nHost: {parts.hostname}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {_BODY_BYTES}\r\n\r\n"
    ).encode() + b"x" * _BODY_BYTES
    for number in range(_WARM_UP + options.requests):
        calls.is_counting = number >= _WARM_UP
        for client in clients:
            client.sendall(request)
        for client in clients:
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        if options.tree and number == _WARM_UP:
            print(*calls.tree, sep="\n")
        calls.tree.clear()
    calls.is_counting = False
    for client in clients:
        client.close()


def print_calls(counted: Counter[str], number: int, what: str) -> None:
    """Print the calls for each `what`, of which there were `number`, by folder and function."""
    print(f"{sum(counted.values()) / number:.1f} calls for each {what}")
    folders: Counter[str] = Counter()
    for name, count in counted.items():
        folder = "/".join(name.split("/")[:2]) if not name.startswith("/") else "(libraries)"
        folders[folder] += count
    for table in (folders, counted):
        print()
        for name, count in table.most_common():
            if count / number >= 0.05:
                print(f"{count / number:7.2f}  {name}")


if __name__ == "__main__":
    main()
