"""How long a restart takes: after SIGKILL with a long log, and with a rebuild of the index.

    python -m bench.restart [--json] [--gb 10]

Two logs are published in written mode, with messages of 1 KiB: the first one in batches of 64 KiB,
the second one in batches of one message. The time is measured from the start of the process to its
log line that the broker serves. An empty data directory is measured for comparison. All data that
the restarted broker serves is durable. The benchmark takes about three minutes with 10 GB and one
million small batches; 9 million small batches are 10 GB.
"""

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from bench.bulk import BulkConnection
from bench.harness import broker
from holdfast.running_broker import RunningBroker

_BODY_BYTES = 1024
_BATCH = 64

_READY_BAR = "bar 2 s"
_REBUILT_BARS = {_BATCH: "bar 1 GB/s", 1: "bar 150,000 batches/s"}


@dataclass(frozen=True)
class Restart:
    """One restart. `gb` and `batches` describe the log; `bar` is the required time or rate, as
    text."""

    what: str
    gb: float
    batches: int
    seconds: float
    bar: str

    def __str__(self) -> str:
        return (
            f"{self.what:40} {self.gb:6.2f} GB {self.batches:10,} batches {self.seconds:7.2f} s "
            f"{self.gb / self.seconds:7.2f} GB/s {self.batches / self.seconds:10,.0f} batches/s  "
            f"{self.bar}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How long a restart takes.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of text")
    parser.add_argument("--gb", type=int, default=10)
    parser.add_argument("--small-batches", type=int, default=1_000_000)
    options = parser.parse_args()
    for restart in measure(options.gb, options.small_batches):
        if options.json:
            print(json.dumps(asdict(restart)), flush=True)
        else:
            print(restart, flush=True)


def measure(size_gb: int, small_batches: int) -> Iterator[Restart]:
    """Yield each restart after it is measured."""
    with broker() as running:
        yield Restart("an empty directory", 0.0, 0, _killed_and_started(running), _READY_BAR)
    with broker() as running:
        messages = size_gb * 10**9 // _BODY_BYTES // _BATCH * _BATCH
        yield from _both(running, messages, _BATCH)
    with broker() as running:
        yield from _both(running, small_batches, 1)


def _both(running: RunningBroker, messages: int, batch: int) -> Iterator[Restart]:
    connection = BulkConnection(running.url)
    connection.create("filling", queues=4)
    connection.publish("filling", messages=messages, body_bytes=_BODY_BYTES, batch=batch, queues=4)
    connection.close()
    size_gb, batches = messages * _BODY_BYTES / 1e9, messages // batch
    kind = f"batches of {batch}"
    seconds = _killed_and_started(running)
    yield Restart(f"after SIGKILL, {kind}", size_gb, batches, seconds, _READY_BAR)
    running.kill()
    shutil.rmtree(running.data_dir / "consumequeue")
    seconds = _started(running)
    yield Restart(f"index built anew, {kind}", size_gb, batches, seconds, _REBUILT_BARS[batch])


def _killed_and_started(running: RunningBroker) -> float:
    running.kill()
    return _started(running)


def _started(running: RunningBroker) -> float:
    started = time.perf_counter()
    running.start()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
