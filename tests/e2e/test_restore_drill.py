"""A restore drill: the disk of a busy broker is lost, and a backup replaces it.

It runs the commands of docs/backup.md, into a folder and into an object store.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from holdfast.client import Client
from holdfast.testing import RunningBroker
from tests.support.clients.broker_calls import Calls, wait_until

ARGUMENTS = (
    *("--commitlog-segment-bytes", "1MiB"),
    *("--commitlog-reserve-bytes", "0"),
)
QUEUES = 2

Messages = dict[tuple[int, int], bytes]
"""(queue, offset) -> body."""


class Load:
    """A thread that publishes to the topic "orders" until the `with` block ends."""

    def __init__(self, url: str) -> None:
        self.acknowledged: Messages = {}
        """Only grows; other threads may copy it."""
        self._client = Client(url)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            body = b"%d " % number + os.urandom(3000)
            result = self._client.publish("orders", body, queue=number % QUEUES)
            self.acknowledged[result.queue, result.offset] = body
            number += 1

    def wait_for_more(self, count: int) -> Messages:
        """Wait for `count` more messages. Return all that are acknowledged now."""
        end = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= end, "the load goes on")
        return self.acknowledged.copy()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.set()
        self._thread.join()
        self._client.close()


def holdfast(*arguments: str | Path) -> Any:
    """Run a command and return the last line that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def settle(broker: RunningBroker, member: str, count: int) -> set[tuple[int, int]]:
    """Receive `count` messages as a member of the group "billing", and acknowledge them. Return
    their places."""
    ask = Calls(broker.url)
    settled: set[tuple[int, int]] = set()
    while len(settled) < count:
        body = {"member": member, "max_messages": count - len(settled), "wait_ms": 10_000}
        received = ask("POST", "/v1/groups/billing/receive", body).json["messages"]
        receipts = [message["receipt"] for message in received]
        results = ask("POST", "/v1/groups/billing/ack", {"receipts": receipts}).json["results"]
        assert {result["status"] for result in results} == {"done"}
        settled |= {(message["queue"], message["offset"]) for message in received}
    return settled


def stored_messages(client: Client) -> Messages:
    return {
        (message.queue, message.offset): bytes(message.body)
        for message in client.pull("orders", start="earliest", follow=False)
    }


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_a_lost_disk_is_replaced_by_a_backup(tmp_path: Path, kind: str) -> None:
    if kind == "store":
        pytest.importorskip("obstore")
    data_dir, restored = tmp_path / "data", tmp_path / "restored"
    target = str(tmp_path / "backup") if kind == "folder" else f"file://{tmp_path}/backup"
    backup = ("backup", "--data-dir", data_dir, target, "--incremental")
    broker = RunningBroker(data_dir, ARGUMENTS)
    with broker, broker.client() as client:
        client.create_topic("orders", queues=QUEUES)
        client.create_group("billing", "orders", start="earliest", lease_ms=600_000)
        offsets = Calls(broker.url)
        with Load(broker.url) as load:
            load.wait_for_more(400)
            settled = settle(broker, "one", 50)
            first = holdfast(*backup)
            settled |= settle(broker, "one", 70)
            stored = {"offsets": {"0": 11, "1": 7}}
            path = "/v1/groups/reports/topics/orders/offsets"
            assert offsets("PUT", path, stored).status == 200
            promised = load.wait_for_more(400)
            second = holdfast(*backup)
            assert second["reused_bytes"] >= 1024 * 1024 > first["reused_bytes"]
            assert second["end_offset"] > first["end_offset"]
            late = settle(broker, "one", 30)
            load.wait_for_more(50)
        broker.kill()
    shutil.rmtree(data_dir)

    report = holdfast("restore", target, "--data-dir", restored)
    assert report["is_sound"] is True
    assert holdfast("check", restored)["is_sound"] is True

    broker = RunningBroker(restored, ARGUMENTS)
    with broker, broker.client() as client:
        found = stored_messages(client)
        assert report["messages"] == len(found)
        # Everything that was acknowledged before the backup began, and nothing else than what was
        # published, each message in its place.
        assert promised.items() <= found.items() <= load.acknowledged.items()
        for queue in range(QUEUES):
            there = sorted(offset for each, offset in found if each == queue)
            assert there == list(range(len(there)))
        reply = Calls(broker.url)("GET", "/v1/groups/reports/topics/orders/offsets").json
        assert reply["offsets"] == stored["offsets"]
        # The group continues: what was settled before the backup is settled, the rest is delivered.
        rest = settle(broker, "two", len(found) - len(settled))
        assert rest == found.keys() - settled
        assert late & found.keys() <= rest
        result = client.publish("orders", b"after the restore", queue=0)
        assert (result.queue, result.offset) not in found
