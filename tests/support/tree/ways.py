"""Lists the modules that a publish, a held pull and a leased message enter.

    python -m tests.support.tree.ways [TREE] [-v]

It runs each request several times against a broker in this process, under a profile function in
every thread. It counts the modules of Holdfast in TREE in which a function ran in each of these
runs, so that timers do not count. `-v` prints the names.

A held pull is what a pull enters until it waits, what a publish enters only if a pull waits, and
what a pull of the same message enters that need not wait: it reads and replies as the woken pull
does. A leased message is one request that receives it, and one that acknowledges it.
"""

import asyncio
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

TREE = Path(next(iter(each for each in sys.argv[1:] if each != "-v"), ".")).resolve()
if __name__ == "__main__":
    sys.path.insert(0, str(TREE))

from holdfast.broker import Broker  # noqa: E402
from holdfast.config import load_config  # noqa: E402
from holdfast.storage import alarms  # noqa: E402
from tests.support.clients.broker_calls import Calls  # noqa: E402
from tests.support.tree.counts import PARTS  # noqa: E402

RUNS = 8
_OWN = tuple(f"{part}/" for part in ("holdfast", *PARTS))
#: The broker rests within this time after a request: its index is committed.
_REST_S = 0.5
#: No timer of the alarms fires meanwhile: it would be counted in every way.
alarms.INTERVAL_S = 3600.0


class Recorder:
    """Records the files of the functions that run while it is on, in all threads."""

    def __init__(self) -> None:
        self._files: set[str] | None = None

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        files = self._files
        if files is not None and event == "call":
            files.add(frame.f_code.co_filename)

    def of(self, act: Callable[[], object]) -> set[str]:
        """Run `act`, and return the modules of TREE that were entered meanwhile."""
        files: set[str] = set()
        self._files = files
        act()
        time.sleep(_REST_S)
        self._files = None
        inside = (Path(file).resolve() for file in files)
        names = {str(file.relative_to(TREE)) for file in inside if file.is_relative_to(TREE)}
        return {
            name
            for name in names
            if name.startswith(_OWN) and name.endswith(".py") and not name.endswith("__init__.py")
        }


def _publish(calls: Calls) -> None:
    message = {"body": "hello", "queue": 0}
    assert calls("POST", "/v1/topics/orders/messages", message).status == 200


def _pull(calls: Calls, offset: int) -> None:
    path = f"/v1/topics/orders/queues/0/messages?offset={offset}&wait_ms=20000"
    assert calls("GET", path).status == 200


def _lease(calls: Calls) -> None:
    request = {"member": "m1", "max_messages": 1}
    (message,) = calls("POST", "/v1/groups/billing/receive", request).json["messages"]
    receipts = {"receipts": [message["receipt"]]}
    assert calls("POST", "/v1/groups/billing/ack", receipts).status == 200


def _held(recorder: Recorder, calls: Calls, other: Calls, offset: int) -> tuple[set[str], set[str]]:
    """Return the modules entered before a pull waits, and those from its message to its reply."""
    puller = threading.Thread(target=_pull, args=(calls, offset))

    def wake() -> None:
        _publish(other)
        puller.join()

    return recorder.of(puller.start), recorder.of(wake)


def _ways(recorder: Recorder, url: str) -> dict[str, set[str]]:
    first, second = Calls(url, keep_alive=True), Calls(url, keep_alive=True)
    first("PUT", "/v1/topics/orders", {"queues": 1})
    first("PUT", "/v1/groups/billing", {"topics": {"orders": {}}, "start": "earliest"})
    time.sleep(_REST_S)
    seen: dict[str, list[set[str]]] = defaultdict(list)
    for run in range(RUNS + 1):
        offset = 2 * run
        seen["publish"].append(recorder.of(lambda: _publish(first)))
        seen["lease"].append(recorder.of(lambda: _lease(first)))
        wait, wake = _held(recorder, first, second, offset + 1)
        seen["wait"].append(wait)
        seen["wake"].append(wake)
        seen["pull"].append(recorder.of(partial(_pull, first, offset + 1)))
        _lease(second)
    # The first run fills caches.
    always = {name: set.intersection(*found[1:]) for name, found in seen.items()}
    woken = always["wake"] - set().union(*seen["publish"])
    return {
        "a publish": always["publish"],
        "a held pull": always["wait"] | woken | always["pull"],
        "a leased message": always["lease"],
    }


async def _run(recorder: Recorder, folder: Path) -> dict[str, set[str]]:
    flags = {"data_dir": str(folder), "http_api.port": "0", "commitlog.segment_bytes": "16MiB"}
    async with Broker(load_config(file=None, environ={}, flags=flags)) as broker:
        sys.setprofile(recorder)
        try:
            return await asyncio.to_thread(_ways, recorder, broker.url)
        finally:
            sys.setprofile(None)


def ways() -> dict[str, set[str]]:
    """Return the modules that each way enters."""
    recorder = Recorder()
    threading.setprofile(recorder)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(_run(recorder, Path(folder) / "data"))
    finally:
        threading.setprofile(None)


if __name__ == "__main__":
    for name, modules in ways().items():
        print(f"{name}: {len(modules)} modules")
        if "-v" in sys.argv:
            print(*(f"    {module}" for module in sorted(modules)), sep="\n")
