"""The broker's memory is bounded over a far larger backlog, and by refusals of publishers.
TEST_BACKLOG_GB sets the size of the backlog (default 1; 10 by hand)."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path

import pytest

from bench.memory_cgroup import NoCgroup, memory_cgroup
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import Calls, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.machine, pytest.mark.timeout(3600)]

MIB = 1024 * 1024
BACKLOG_BYTES = int(float(os.environ.get("TEST_BACKLOG_GB", "1")) * 1024 * MIB)
#: docs/operations.md, "Memory": the broker's memory besides requests, replies and index entries.
BACKLOG_BUDGET_BYTES = 512 * MIB
_BATCH = "application/vnd.holdfast.batch"
_MESSAGES = 1000


class _Peak(threading.Thread):
    """Measure the peak of a process's own memory; `measured` maps each named phase to its peak."""

    def __init__(self, broker: RunningBroker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._over = threading.Event()
        self._peak = 0
        self.measured: dict[str, int] = {}

    def run(self) -> None:
        while not self._over.wait(0.02):
            with contextlib.suppress(OSError, AttributeError, ValueError):
                self._peak = max(self._peak, own_bytes(self._broker.pid))

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        self._peak = 0
        started = time.monotonic()
        yield
        self.measured[what] = self._peak
        print(f"{what}: {self._peak // MIB} MiB, {time.monotonic() - started:.1f} s")

    def end(self) -> int:
        self._over.set()
        self.join()
        return max(self.measured.values())


def own_bytes(pid: int) -> int:
    """Return a process's memory, not counting pages of files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(pid)


def _publish(url: str, topic: str, body: bytes, times: int) -> None:
    def run(_: int) -> None:
        calls = Calls(url, keep_alive=True, timeout_s=120)
        for _ in range(times // 4):
            while True:
                answer = calls("POST", f"/v1/topics/{topic}/messages", body, Content_Type=_BATCH)
                if answer.status == 200:
                    break
                assert answer.status in (503, 507), answer
                time.sleep(0.05)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


def _consume(url: str, _: int) -> None:
    """Read half of the backlog with the largest replies."""
    calls = Calls(url, keep_alive=True, timeout_s=120)
    path = "/v1/topics/t/queues/0/messages?max_messages=10000&max_bytes=16777216"
    start, size = "from=earliest", 0
    while size < BACKLOG_BYTES // 2:
        answer = calls("GET", f"{path}&{start}", Accept=_BATCH)
        if not answer.raw:
            break
        size += len(answer.raw)
        start = f"offset={answer.headers['Holdfast-Next-Offset']}"


def test_a_large_backlog_takes_no_more_memory(tmp_path: Path) -> None:
    bodies = [os.urandom(512).hex().encode() for _ in range(_MESSAGES)]
    block = encode_batch(bodies, keys=[f"key-{n}" for n in range(_MESSAGES)], queue_id=0)
    first = encode_batch([b"the first"], keys=["first"], queue_id=0)
    times = BACKLOG_BYTES // len(block)
    with RunningBroker(tmp_path / "data", start_timeout_s=600, stop_timeout_s=60) as broker:
        peak = _Peak(broker)
        peak.start()
        calls = Calls(broker.url, timeout_s=120)
        made = calls("PUT", "/v1/topics/t", {"queues": 1, "durability": "written"})
        assert made.status == 201
        assert calls("POST", "/v1/topics/t/messages", first, Content_Type=_BATCH).status == 200
        with peak.during("publishing"):
            _publish(broker.url, "t", block, times)
        with peak.during("consuming it all, by four at once"), ThreadPoolExecutor(4) as pool:
            list(pool.map(partial(_consume, broker.url), range(4)))
        with peak.during("tailing"):
            end = calls("GET", "/v1/topics/t").json["queues"][0]["max_offset"]
            for number in range(100):
                assert calls.publish("t", f"tail-{number}").status == 200
            path = f"/v1/topics/t/queues/0/messages?offset={end}&max_messages=1000&wait_ms=100"
            assert len(calls("GET", path).json["messages"]) == 100
        with peak.during("looking up by time"):
            found = calls("GET", "/v1/topics/t/queues/0/offset?timestamp_ms=0").json
            assert found["offset"] == 0
            now_ms = int(time.time() * 1000) + 60_000
            assert calls("GET", f"/v1/topics/t/queues/0/offset?timestamp_ms={now_ms}").status == 200
        with peak.during("searching by key"):
            answer = calls("GET", "/v1/topics/t/messages/search?key=first")
            assert [each["body"] for each in answer.json["messages"]] == ["the first"]
        broker.kill()
        with peak.during("starting again after a kill"):
            broker.start()
        broker.stop()
        for path_ in (broker.data_dir / "consumequeue").iterdir():
            path_.unlink()
        with peak.during("indexing it anew"):
            broker.start()
        assert calls("GET", "/v1/topics/t").json["queues"][0]["max_offset"] == end + 100
        assert peak.end() < BACKLOG_BUDGET_BYTES, peak.measured


_LIMIT_BYTES = 120 * MIB


def _flood(url: str, seconds: float) -> set[int]:
    """Publish as much as possible at once; return the statuses, 0 for a request without reply."""
    message = '{"queue":0,"body":"' + "x" * 3 * MIB + '"},'
    body = ('{"messages":[' + (message * 4)[:-1] + "]}").encode()
    until = time.monotonic() + seconds
    statuses: set[int] = set()

    def run(_: int) -> None:
        while time.monotonic() < until:
            try:
                answer = Calls(url, timeout_s=60)(
                    "POST", "/v1/topics/t/messages", body, Content_Type="application/json"
                )
                statuses.add(answer.status)
                if answer.status == 503:
                    assert answer.retry_after_s > 0
            except (OSError, HTTPException):
                statuses.add(0)  # refused before the whole body was sent

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(run, range(16)))
    return statuses


def test_publishers_are_refused_before_memory_runs_out(tmp_path: Path) -> None:
    arguments = (
        *("--max-memory-bytes", str(_LIMIT_BYTES)),
        *("--http-api-max-arriving-bytes", "64MiB"),
        *("--commitlog-segment-bytes", "64MiB"),
        *("--commitlog-retention-interval-ms", "200"),
    )
    with RunningBroker(tmp_path / "data", arguments) as broker:
        calls = Calls(broker.url)
        settings = {"queues": 1, "durability": "written", "retention_bytes": 64 * MIB}
        assert calls("PUT", "/v1/topics/t", settings).status == 201
        peak = _Peak(broker)
        peak.start()
        with peak.during("a flood"):
            statuses = _flood(broker.url, 6.0)
        assert statuses <= {200, 429, 503, 0}
        assert "max_memory_bytes" in broker.log_path.read_text(), "the alarm was not raised"
        assert peak.end() < _LIMIT_BYTES + 512 * MIB  # accepted before the limit was noticed
        # The broker is alive, reads work, and publishing resumes by itself.
        assert calls("GET", "/healthz").status == 200
        pull = "/v1/topics/t/queues/0/messages?from=latest"
        assert calls("GET", pull).status == 200
        wait_until(lambda: calls.publish("t", "after").status == 200, "publishing resumes", 60)
        assert calls.alarms() == {}
        assert calls("GET", "/readyz").json["read_only"] is None
        assert broker.stop() == 0


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """The folder of a memory cgroup of 400 MiB."""
    try:
        with memory_cgroup(400 * MIB) as group:
            yield group
    except NoCgroup as error:
        pytest.skip(f"no memory cgroup can be made: {error}")


def test_a_container_of_little_memory_is_not_overfilled(
    tmp_path: Path, little_memory: Path
) -> None:
    """The broker finds the cgroup's limit by itself; the kernel would kill it above the limit."""
    command = f'echo $$ > {little_memory / "cgroup.procs"}; exec "$0" -m holdfast "$@"'
    program = ("bash", "-c", command, sys.executable)
    # The sum that docs/limits.md gives for this little memory.
    arguments = (
        *("--http-api-max-arriving-bytes", "16MiB"),
        *("--commitlog-max-in-flight-bytes", "32MiB"),
        *("--commitlog-segment-bytes", "64MiB"),
        *("--commitlog-retention-interval-ms", "200"),
    )
    with RunningBroker(tmp_path / "data", arguments, program=program) as broker:
        calls = Calls(broker.url)
        settings = {"queues": 1, "durability": "written", "retention_bytes": 64 * MIB}
        assert calls("PUT", "/v1/topics/t", settings).status == 201
        pid = broker.pid
        statuses = _flood(broker.url, 5.0)
        assert 503 in statuses or 429 in statuses
        assert broker.pid == pid
        assert calls("GET", "/healthz").status == 200
        wait_until(lambda: calls.publish("t", "after").status == 200, "publishing resumes", 60)
        assert broker.stop() == 0
