"""W10: what a megabyte costs the broker's processors, beside the least that it could cost.

    python -m bench.cpu_floor [--json] [--mb 400] [--rounds 7]

1 KiB x 1,000 in written mode. The floor, taken in turns with it: a process that receives the same
bytes from a loopback connection into one buffer and writes each request to a fresh file's page
cache, and does nothing else. What fresh page cache costs differs from minute to minute, so the
ratio is that of each round's pair, and the first pair is not counted.
"""

import argparse
import multiprocessing
import os
import socket
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from bench.bulk import BulkConnection
from bench.harness import broker, process_cpu_s
from bench.rows import TIMES, Row, report

DURABILITY = "written"
_BODY_BYTES = 1024
_BATCH = 1000
_REQUEST_BYTES = 1_050_000  # one batch a request
_BAR = 2.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Processor time a megabyte published.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    report(rows(options.mb, options.rounds), as_json=options.json)


def rows(size_mb: int, rounds: int) -> Iterator[Row]:
    """Measure; yield the broker's cost, the floor and their ratio."""
    pairs = [(broker_ms_per_mb(size_mb), floor_ms_per_mb(size_mb)) for _ in range(rounds + 1)][1:]
    ours, floor = (list(each) for each in zip(*pairs, strict=True))
    ratios = [own / least for own, least in pairs]
    yield Row("W10", "broker, 1 KiB x 1,000 published", DURABILITY, "cpu ms/MB", ours)
    yield Row("W10", "floor: received and written once", "-", "cpu ms/MB", floor)
    yield Row("W10", "broker beside the floor", DURABILITY, TIMES, ratios, at_most=_BAR)


def broker_ms_per_mb(size_mb: int) -> float:
    """Publish; return the broker's processor time a megabyte, in milliseconds."""
    with broker() as running:
        connection = BulkConnection(running.url)
        connection.create("bulk")
        before = process_cpu_s(running.pid)
        messages = size_mb * 10**6 // _BODY_BYTES // _BATCH * _BATCH
        connection.publish(
            "bulk",
            messages=messages,
            body_bytes=_BODY_BYTES,
            batch=_BATCH,
            request_bytes=_REQUEST_BYTES,
        )
        return (process_cpu_s(running.pid) - before) / size_mb * 1000


def floor_ms_per_mb(size_mb: int) -> float:
    """Receive and write the same bytes in a bare process; return the same of it."""
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        receiver = multiprocessing.Process(
            target=_receive_and_write, args=(theirs, Path(folder) / "file")
        )
        receiver.start()
        with socket.create_connection(("127.0.0.1", ours.recv())) as sender:
            request = b"x" * _REQUEST_BYTES
            for _ in range(size_mb * 10**6 // len(request)):
                sender.sendall(request)
        spent: float = ours.recv()
        receiver.join()
    return spent / size_mb * 1000


def _receive_and_write(out: Connection, file: Path) -> None:
    buffer = bytearray(_REQUEST_BYTES)
    view = memoryview(buffer)
    with socket.create_server(("127.0.0.1", 0)) as server, file.open("wb", buffering=0) as target:
        out.send(server.getsockname()[1])
        connection, _ = server.accept()
        before = process_cpu_s(os.getpid())
        position = 0
        while True:
            filled = 0
            while filled < len(buffer) and (got := connection.recv_into(view[filled:])):
                filled += got
            if not filled:
                break
            position += os.pwritev(target.fileno(), [view[:filled]], position)
        out.send(process_cpu_s(os.getpid()) - before)


if __name__ == "__main__":
    main()
