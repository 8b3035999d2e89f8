"""Makes a release's golden data directories: `python -m tests.golden_data_dirs.make 0.2.0`.

Run once for each release, by the code of that release, and commit what it writes under the
release's number. What is there already is never made again: it is what old brokers left behind.

    clean      stopped in order, with everything: keys, tags, properties, bytes, offsets of
               groups, trimmed queues, a topic that was deleted
    killed     ended by SIGKILL right after its last acknowledgement
    no_index   stopped in order, then consumequeue/ was deleted
    sealed     segments that have ended, with their footers, and one that is being written
"""

import base64
import json
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.running_broker import RunningBroker
from tests.golden_data_dirs.served import call, everything
from tests.support.clients.broker_calls import wait_until

FOLDER = Path(__file__).parent
_ARGUMENTS = (
    *("--commitlog-segment-bytes", "1MiB"),
    *("--commitlog-reserve-bytes", "0"),
    *("--commitlog-retention-interval-ms", "100"),
    # Else everything would be too old one day.
    *("--topics-default-retention-ms", "0"),
)


def _publish(url: str, topic: str, messages: list[dict[str, object]], query: str = "") -> None:
    call(url, f"/v1/topics/{topic}/messages{query}", {"messages": messages})


def _fill(url: str) -> None:
    """Publish some of everything."""
    call(url, "/v1/topics/orders", {"queues": 3}, verb="PUT")
    call(url, "/v1/topics/gone", {"queues": 1}, verb="PUT")
    call(url, "/v1/topics/fast", {"queues": 1, "durability": "written"}, verb="PUT")
    _publish(url, "gone", [{"body": "of a topic that is deleted"}])
    for number in range(40):
        message: dict[str, object] = {
            "body": f"order {number}: ünïcödé ✓",
            "key": f"customer-{number % 7}",
            "tag": ("new", "paid", "sent")[number % 3],
            "properties": {"number": str(number), "empty": ""},
        }
        raw = bytes(range(256)) * (number % 3)
        other = {"body_base64": base64.b64encode(b"\xff" + raw).decode(), "queue": number % 3}
        _publish(url, "orders", [message, other])
        _publish(url, "fast", [{"body": f"written {number}"}], "?durability=written")
    call(url, "/v1/groups/billing/topics/orders/offsets", {"offsets": {"0": 5, "2": 9}}, verb="PUT")
    call(url, "/v1/topics/gone?confirm=gone", verb="DELETE")


def _seal(url: str) -> None:
    """Fill more than two segments."""
    call(url, "/v1/topics/sealed", {"queues": 2}, verb="PUT")
    line = "all work and no play makes Jack a dull boy. " * 1000
    for number in range(60):
        where = {"queue": number % 2, "key": f"k{number % 5}"}
        _publish(url, "sealed", [{"body": f"{number} {line}", **where}])
    call(url, "/v1/groups/audit/topics/sealed/offsets", {"offsets": {"1": 3}}, verb="PUT")


def _trim(url: str) -> None:
    """Let retention move a queue's begin."""
    fields = {"queues": 1, "retention_bytes": 2000}
    call(url, "/v1/topics/trimmed", fields, verb="PUT")
    for number in range(30):
        _publish(url, "trimmed", [{"body": f"{number}".rjust(200)}])
    path = "/v1/topics/trimmed"
    wait_until(lambda: call(url, path)["queues"][0]["min_offset"] > 0, "messages are trimmed")


def _make(name: str, folder: Path, fill: list[Callable[[str], None]], *, kill: bool) -> None:
    base = Path(tempfile.mkdtemp())
    broker = RunningBroker(base / "data", _ARGUMENTS)
    with broker:
        for each in fill:
            each(broker.url)
        # Retention must have nothing left to do, or what is served would depend on when.
        time.sleep(0.5)
        if kill:
            _publish(broker.url, "orders", [{"body": "the last that was acknowledged"}])
        served = everything(broker.url)
        if kill:
            broker.kill()
    if name == "no_index":
        shutil.rmtree(base / "data" / "consumequeue")
    (base / "data" / "lock").unlink()
    for path in base.rglob("lock.mdb"):
        path.unlink()
    with tarfile.open(folder / f"{name}.tar.xz", "w:xz") as archive:
        archive.add(base / "data", "data")
    (folder / f"{name}.json").write_text(json.dumps(served, indent=1, sort_keys=True) + "\n")
    shutil.rmtree(base)


def main() -> None:
    """Make the directories of the release that is named."""
    folder = FOLDER / sys.argv[1]
    folder.mkdir()
    _make("clean", folder, [_fill, _trim], kill=False)
    _make("killed", folder, [_fill], kill=True)
    _make("no_index", folder, [_fill, _trim], kill=False)
    _make("sealed", folder, [_fill, _seal], kill=False)
    for path in sorted(folder.glob("*.xz")):
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
