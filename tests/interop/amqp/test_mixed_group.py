"""T33: one group with members over HTTP and over AMQP at the same time, while processes are killed.

A message counts as settled once its member has the broker's confirmation of the outcome: the reply
to an ack over HTTP, or the settled disposition over AMQP (rcv-settle-mode second). If a member or
the broker is killed before that, only the broker knows whether the outcome is stored.
"""

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

from holdfast.free_port import free_port
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.interop.amqp.builds import go_client
from tests.interop.toolchains import ROOT, need

MESSAGES = 1000
LIMIT = 20
#: Kills of members, and of the broker while each of four members works.
KILLS = 4 + 2 * 4
LONG_S = 120


class Member:
    """A member in its own process. It is started again after it ended, until `stop`."""

    def __init__(self, name: str, command: list[str], asked: dict[str, object] | None) -> None:
        self.name = name
        self.lines: list[dict[str, object]] = []
        self._command = command
        self._asked = asked
        self._is_stopping = False
        self._process = self._start()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert process.stdin is not None
        if self._asked is not None:
            process.stdin.write(json.dumps(self._asked) + "\n")
        process.stdin.close()
        return process

    def _work(self) -> None:
        while True:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                if not line.startswith('{"error"'):  # the broker is away
                    self.lines.append(json.loads(line))
            self._process.wait()
            if self._is_stopping:
                return
            time.sleep(0.1)  # the broker restarts
            self._process = self._start()

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._is_stopping = True
        while self._thread.is_alive():
            self._process.kill()
            self._thread.join(0.5)


def test_members_of_both_protocols_share_a_group(tmp_path: Path) -> None:
    need("go")
    port = free_port()
    program = go_client()
    broker = RunningBroker(
        tmp_path / "data", (*TEST_ARGUMENTS, "--amqp-port", str(port)), stop_timeout_s=30
    )
    asked: dict[str, object] = {
        "verb": "consume", "address": "/groups/mixed", "credit": 2 * LIMIT, "second": True,
    }  # fmt: skip
    with broker:
        client = broker.client(timeout_ms=60_000)
        client.create_topic("mixed", queues=4)
        client.create_group(
            "mixed", "mixed", start="earliest", lease_ms=3000, max_in_flight_per_member=LIMIT,
            max_attempts=0,
        )  # fmt: skip
        url = f"amqp://127.0.0.1:{port}"
        http = [sys.executable, "-m", "tests.interop.amqp.http_member", broker.url, "mixed"]
        members = [
            *(Member(f"amqp-{n}", [*program, url], asked) for n in range(2)),
            *(Member(f"http-{n}", [*http, f"http-{n}"], None) for n in range(2)),
        ]
        try:
            published = [f"message {number}" for number in range(MESSAGES)]
            for number, body in enumerate(published):
                client.publish("mixed", body, key=str(number))
                if number in (200, 600):
                    members[0].kill()
                    members[2].kill()
                if number in (400, 800):
                    broker.kill()
                    broker.start()
            deadline = time.monotonic() + LONG_S
            while client.describe_group("mixed").lag_messages:
                assert time.monotonic() < deadline, client.describe_group("mixed")
                time.sleep(0.1)
        finally:
            for each in members:
                each.stop()
    check(members, published)


def check(members: list[Member], published: list[str]) -> None:
    """T1, T24: a member gets every message, one member settles it, and no member gets it again."""
    arrived: dict[object, list[tuple[int, str]]] = defaultdict(list)
    settled: dict[object, list[tuple[int, str]]] = defaultdict(list)
    for member in members:
        for line in member.lines:
            at = line.get("at")
            assert isinstance(at, int), (member.name, line)
            found = arrived if "arrived" in line else settled
            found[line.get("arrived", line.get("settled"))].append((at, member.name))
    assert set(arrived) == set(published)
    unknown = set(published) - set(settled)
    assert len(unknown) <= KILLS * LIMIT
    twice = {body: found for body, found in settled.items() if len(found) > 1}
    assert not twice
    late = {
        body: found
        for body, found in arrived.items()
        if body in settled and any(at > settled[body][0][0] for at, _ in found)
    }
    assert not late
    for member in members:
        assert any(name == member.name for found in settled.values() for _, name in found)
