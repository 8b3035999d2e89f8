"""W10: the broker's processor time per megabyte, compared with a minimal receiver (the floor).

    python -m bench.cpu_floor [--json] [--mb 400] [--rounds 7]

The load is messages of 1 KiB in batches of 1,000, in written mode. The minimal receiver is a
process that receives the same bytes from a loopback connection into one buffer, computes the CRC of
each request as the broker does, writes it to the page cache of a new file, and does nothing else.
Each round measures the broker and then the minimal receiver, because the cost of new page cache
changes from minute to minute. The ratio is computed for each round; the first round does not count.
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
from holdfast.commitlog.format.checksum import crc32c_of_buffer

DURABILITY = "written"
_BODY_BYTES = 1024
_BATCH = 1000
_REQUEST_BYTES = 1_050_000  # one batch per request
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
    """Measure; yield the broker's cost, the minimal receiver's cost, and their ratio."""
    pairs = [(broker_ms_per_mb(size_mb), floor_ms_per_mb(size_mb)) for _ in range(rounds + 1)][1:]
    ours, floor = (list(each) for each in zip(*pairs, strict=True))
    ratios = [own / least for own, least in pairs]
    yield Row("W10", "broker, 1 KiB x 1,000 published", DURABILITY, "cpu ms/MB", ours)
    yield Row("W10", "floor: received, CRC checked, written once", "-", "cpu ms/MB", floor)
    yield Row("W10", "broker beside the floor", DURABILITY, TIMES, ratios, at_most=_BAR)


def broker_ms_per_mb(size_mb: int) -> float:
    """Publish; return the broker's processor time per megabyte, in milliseconds."""
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
    """Receive, check and write the same bytes in a minimal process; return its milliseconds per
    megabyte."""
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
            crc32c_of_buffer(view[:filled])
            position += os.pwritev(target.fileno(), [view[:filled]], position)
        out.send(process_cpu_s(os.getpid()) - before)


if __name__ == "__main__":
    main()
