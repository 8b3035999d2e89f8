"""Make one system call on one file of a broker fail once.

`run` runs cases and returns a table row for each: the requests that the broker refused during the
fault, the report of /readyz, and how service resumed. It raises AssertionError if acknowledged
data is lost, if service does not resume, or if only a restart helps and /readyz did not report it.
"""

import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from holdfast.check import check_data_dir
from holdfast.running_broker import BrokerDidNotStart, RunningBroker
from tests.support.clients.broker_calls import Answer, Calls, wait_until
from tests.support.damage.system_faults import injected
from tests.support.storage.memory_folder import folder_in_memory

_ARGUMENTS = (
    *("--commitlog-segment-bytes", "1MiB", "--commitlog-reserve-bytes", "1MiB"),
    *("--commitlog-min-free-bytes", "0", "--commitlog-retention-interval-ms", "50"),
    *("--consumequeue-commit-interval-ms", "10", "--consumequeue-hot-cache-bytes", "0"),
    *("--groups-mirror-interval-ms", "200"),
)
_LARGE = b"x" * 400_000
_LEASE_MS = 1000
_MEETS_S = 60.0
#: Number of cases that share one data directory.
_SHARED = 8

_SEGMENT_BYTES = 2**20
#: Names for segments at the start of a case: the segment that receives appends, the oldest one,
#: and the one that is created next. A new segment has the suffix `.new` until it is complete.
_ACTIVE, _OLDEST, _NEXT = "commitlog/ACTIVE", "commitlog/OLDEST", "commitlog/NEXT"


@dataclass(frozen=True, slots=True)
class Case:
    """A system call that fails the `when`-th time, on a `path` within the data directory."""

    call: str
    path: str
    error: str
    when: int = 1
    work: str = "serve"
    """The work during which the call fails.

    "serve": publish, settle, store offsets, create topics. "roll": also fill segments. "trim":
    retention deletes segments. "start" and "stop": the broker starts or stops.
    """

    def __str__(self) -> str:
        return f"{self.work}: {self.call} of {self.path or '.'} is {self.error}, time {self.when}"


@dataclass(slots=True)
class Row:
    """The result of a case."""

    case: Case
    is_met: bool = False
    refused: set[str] = field(default_factory=set)
    ready: str = ""
    resumed: str = ""

    def cells(self) -> tuple[str, ...]:
        case = self.case
        return (
            *(case.work, case.call, case.path or ".", case.error, str(case.when)),
            *(", ".join(sorted(self.refused)) or "nothing", self.ready, self.resumed),
        )


def table(rows: Iterable[Row]) -> str:
    """Return rows as a table in Markdown."""
    head = ("while", "call", "file", "error", "time", "refused", "/readyz", "service resumed")
    lines = [head, ("---",) * len(head), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def all_cases() -> list[Case]:
    """Return every case, the first error and first time of each call on each file first."""
    found = [
        (which, when, Case(call, path, error, when, work))
        for work, path, calls, errors, times in _CASES
        for call in calls.split()
        for which, error in enumerate(errors.split())
        for when in range(1, times + 1)
    ]
    return [case for _, _, case in sorted(found, key=lambda each: each[0] + each[1])]


_CASES: tuple[tuple[str, str, str, str, int], ...] = (
    # work, file, calls, errors, times
    ("serve", _ACTIVE, "pwritev,pwritev2 fdatasync", "EIO ENOSPC EDQUOT", 1),
    ("serve", _ACTIVE, "preadv2 pread64", "EIO", 1),
    ("serve", "state/data.mdb", "pwrite64 fdatasync", "EIO ENOSPC", 2),
    ("serve", "state/groups/data.mdb", "pwrite64 fdatasync", "EIO ENOSPC", 2),
    ("serve", "consumequeue/data.mdb", "pwrite64 fdatasync", "EIO ENOSPC", 2),
    ("serve", "state/data.mdb", "pwrite64", "EDQUOT EROFS", 1),
    ("serve", "state/groups/data.mdb", "pwrite64", "EDQUOT EROFS", 1),
    ("serve", "consumequeue/data.mdb", "pwrite64", "EDQUOT EROFS", 1),
    ("serve", "state/groups.page", "pwrite64", "EIO ENOSPC", 2),
    ("serve", "access/audit.log", "write", "EIO ENOSPC", 1),
    ("roll", f"{_NEXT}.new", "openat", "EIO ENOSPC EDQUOT EROFS EMFILE ENFILE", 1),
    ("roll", f"{_NEXT}.new", "fallocate", "EIO ENOSPC EDQUOT", 1),
    ("roll", f"{_NEXT}.new", "pwritev,pwritev2 fdatasync", "EIO ENOSPC", 1),
    ("roll", f"{_NEXT}.new", "rename", "EIO ENOSPC EROFS", 1),
    ("roll", _NEXT, "pwritev,pwritev2 fdatasync", "EIO", 1),
    ("roll", "commitlog", "openat", "EMFILE EIO", 2),
    ("roll", "commitlog", "fsync", "EIO", 2),
    ("roll", "commitlog", "getdents64", "EIO", 1),
    ("roll", _ACTIVE, "pwritev,pwritev2", "EIO", 3),
    ("roll", _ACTIVE, "fdatasync", "EIO", 3),
    ("trim", _OLDEST, "unlink", "EIO EROFS", 1),
    ("trim", "commitlog", "fsync", "EIO", 1),
    ("trim", "commitlog", "openat", "EMFILE", 1),
    ("start", "VERSION", "openat read", "EIO", 1),
    ("start", "lock", "openat", "EIO EROFS EMFILE", 1),
    ("start", "lock", "pwrite64", "EIO ENOSPC", 1),
    ("start", "commitlog", "openat getdents64 fsync", "EIO", 1),
    ("start", _ACTIVE, "openat", "EIO EROFS EMFILE", 1),
    ("start", _ACTIVE, "pread64 fdatasync", "EIO", 1),
    ("start", "state/data.mdb", "openat", "EIO EROFS EMFILE", 1),
    ("start", "state/data.mdb", "pread64 read", "EIO", 1),
    ("start", "state/lock.mdb", "openat", "EIO ENOSPC", 1),
    ("start", "state/lock.mdb", "fallocate", "ENOSPC EIO", 1),
    ("start", "state/groups/data.mdb", "openat pwrite64 fdatasync", "EIO ENOSPC", 1),
    ("start", "state/groups.page", "openat", "EIO", 1),
    ("start", "consumequeue/data.mdb", "openat", "EIO EMFILE", 1),
    ("start", "consumequeue/seal", "openat unlink", "EIO", 1),
    ("start", "consumequeue", "openat fsync", "EIO", 1),
    ("stop", "consumequeue/seal.new", "openat write fsync rename", "EIO ENOSPC", 1),
    ("stop", "state/groups/data.mdb", "pwrite64", "EIO", 1),
    ("stop", "consumequeue/data.mdb", "pwrite64 fdatasync", "EIO", 1),
)


class _World:
    """A broker, and a record of everything that it has acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.broker = RunningBroker(
            folder / "data", _ARGUMENTS, start_timeout_s=180.0, stop_timeout_s=60.0
        )
        self.log = folder / "strace.log"
        self._numbers = count()
        self.published: list[tuple[int, str]] = []
        self.settled: set[int] = set()
        self.maybe_settled: set[int] = set()
        self.stored_offset = 0
        self.refused: set[str] = set()
        self.strace_logs = count()

    @property
    def data_dir(self) -> Path:
        return self.broker.data_dir

    @property
    def calls(self) -> Calls:
        return Calls(self.broker.url, timeout_s=60.0)

    def prepare(self, work: str) -> None:
        self.broker.start()
        calls = self.calls
        large = {"queues": 1, "retention_bytes": None if work == "trim" else 1}
        assert calls("PUT", "/v1/topics/large", large).status == 201
        if work == "trim":
            for _ in range(7):
                assert calls.publish("large", _LARGE).status == 200
        assert calls("PUT", "/v1/topics/t", {"queues": 1}).status == 201
        assert calls("PUT", "/v1/groups/g", {"topics": {"t": {}}}).status == 201
        for _ in range(5):
            assert self.turn("serve"), "a broker without a fault refuses"

    def turn(self, work: str) -> bool:
        """Make one request of each kind; return whether the broker refused none of them."""
        calls, number = self.calls, next(self._numbers)
        answers = [self._publish(calls, f"m-{number}"), *self._settle_one(calls)]
        body = {"offsets": {"0": max(self.stored_offset, len(self.published) and 1)}}
        answers.append(calls("PUT", "/v1/groups/plain/topics/t/offsets", body))
        if answers[-1].status == 200:
            self.stored_offset = body["offsets"]["0"]
        answers.append(calls("PUT", f"/v1/topics/made-{number % 20}", {"queues": 1}))
        answers.append(calls("GET", "/v1/topics/t/queues/0/messages?from=earliest"))
        if work == "roll":
            answers += [calls.publish("large", _LARGE) for _ in range(2)]
        if work == "trim":
            answers.append(calls("PATCH", "/v1/topics/large", {"retention_bytes": 1}))
        bad = [each for each in answers if each.status >= 400]
        self.refused.update(f"{each.status} {each.problem}" for each in bad)
        return not bad

    def _publish(self, calls: Calls, body: str) -> Answer:
        answer = calls.publish("t", body)
        if answer.status == 200:
            self.published.append((answer.json["results"][0]["offset"], body))
        return answer

    def _settle_one(self, calls: Calls) -> Iterator[Answer]:
        received = calls("POST", "/v1/groups/g/receive", _receive(1))
        yield received
        if received.status != 200:
            return
        for message in received.json["messages"]:
            acked = calls("POST", "/v1/groups/g/ack", {"receipts": [message["receipt"]]})
            yield acked
            if acked.status == 200 and acked.json["results"][0]["status"] == "done":
                self.settled.add(message["offset"])
            elif acked.status != 200:  # it is in memory, and is committed with the next commit
                self.maybe_settled.add(message["offset"])

    def ready(self) -> str:
        """Return a short form of the report of /readyz."""
        answer = self.calls("GET", "/readyz")
        found = [str(answer.status)]
        if answer.json["read_only"]:
            found.append(f"read_only: {answer.json['read_only']}")
        found += [f"alarm {name}" for name in answer.json["alarms"]]
        found += sorted({f"degraded {each['reason']}" for each in answer.json["degraded"]})
        return ", ".join(found)

    def paths(self, case: Case) -> list[Path]:
        """Return the file of a case by absolute path, and by name as it is opened in its folder."""
        starts = self._segments()
        named = {"OLDEST": starts[0], "NEXT": starts[-1] + _SEGMENT_BYTES}
        if "ACTIVE" in case.path:
            named["ACTIVE"] = self._active(starts)
        found = case.path
        for name, start in named.items():
            found = found.replace(name, f"{start:020d}")
        whole = self.data_dir / found
        return [whole] if whole.is_dir() else [whole, Path(whole.name)]

    def begin_segment(self) -> None:
        """Publish until a new segment has just started, so that it has room for more requests."""
        before = self._active(self._segments())
        while self._active(self._segments()) == before:
            assert self.calls.publish("large", _LARGE).status == 200

    def _segments(self) -> list[int]:
        names = (path.name for path in (self.data_dir / "commitlog").iterdir())
        return sorted(int(name) for name in names if name.isdecimal())

    def _active(self, starts: list[int]) -> int:
        end = self.calls.metric("holdfast_log_end_offset")
        return max(start for start in starts if start <= end)

    # -- what must hold at the end -----------------------------------------------------------

    def verify(self) -> None:
        """Kill the broker, and assert that no acknowledged data is lost."""
        self.broker.kill()
        report = check_data_dir(self.data_dir)
        assert report.is_sound, report.findings
        self.broker.start()
        self.verify_messages()
        stored = self.calls("GET", "/v1/groups/plain/topics/t/offsets").json["offsets"]
        assert stored["0"] >= self.stored_offset, "a stored offset is lost"
        self._verify_group()

    def verify_messages(self) -> None:
        bodies = self.calls.bodies("t")
        for offset, body in self.published:
            assert bodies[offset] == body, f"{body} was acknowledged at {offset}"
        assert len(bodies) == len(set(bodies)), "a message is there twice"

    def _verify_group(self) -> None:
        """Receive all messages that are not settled, and none that is settled."""
        missing = {offset for offset, _ in self.published} - self.settled - self.maybe_settled
        calls = self.calls

        def take() -> bool:
            received = calls("POST", "/v1/groups/g/receive", _receive(100))
            assert received.status == 200, received
            for message in received.json["messages"]:
                assert message["offset"] not in self.settled, "it was settled, and comes again"
                missing.discard(message["offset"])
            return not missing

        try:
            wait_until(take, "the group gets what is not settled", timeout_s=60.0)
        except AssertionError as error:
            error.add_note(f"missing {sorted(missing)} of {len(self.published)}")
            raise


def _receive(most: int) -> dict[str, object]:
    return {"member": "m", "max_messages": most, "lease_ms": _LEASE_MS, "wait_ms": 0}


def run(
    cases: Sequence[Case], folder: Path, done: Callable[[Row], None] = lambda row: None
) -> None:
    """Run cases on one data directory, pass rows to `done`, and check that no data is lost."""
    world, row = _World(folder), None
    try:
        world.prepare(cases[0].work)
        for case in cases:
            row = Row(case)
            world.log = folder / f"strace-{next(world.strace_logs)}.log"
            world.refused = set()
            {"start": _at_start, "stop": _at_stop}.get(case.work, _in_service)(world, row)
            world.verify_messages()
            done(row)
        world.verify()
    except BaseException as error:
        tail = world.broker.log_path.read_text(errors="replace")[-3000:]
        error.add_note(f"after {row and row.cells()}\n{tail}")
        raise
    finally:
        world.broker.kill()


def _in_service(world: _World, row: Row) -> None:
    case, broker = row.case, world.broker
    fault = f"{case.call}:error={case.error}:when={case.when}"
    if case.path == _ACTIVE:
        world.begin_segment()
    with injected(broker.pid, fault, world.log, *world.paths(case)):
        until = time.monotonic() + _MEETS_S
        while not _is_met(world) and time.monotonic() < until:
            try:
                world.turn(case.work)
            except OSError:
                break  # the process has ended
        row.is_met = _is_met(world)
        if row.is_met and broker.is_running:
            world.turn(case.work)
            row.ready = world.ready()
    row.refused = set(world.refused)
    if not broker.is_running:
        broker.kill()
        broker.start()
        row.resumed = "after a restart: it had ended, for its supervisor to start it again"
    elif "read_only" in world.ready():
        assert broker.stop() == 1
        broker.start()
        row.resumed = "after a restart, as read_only says"
    else:
        row.resumed = "by itself"
    wait_until(lambda: world.turn(case.work), "service", timeout_s=60.0)
    wait_until(lambda: world.ready() == "200", "/readyz is as before", timeout_s=60.0)


def _at_start(world: _World, row: Row) -> None:
    case, broker = row.case, world.broker
    paths = world.paths(case)
    broker.stop()
    plain = broker.program
    broker.program = (
        *("strace", "-D", "-f", "-qq", "-o", str(world.log)),
        *("-e", f"trace={case.call}"),
        *("-e", f"inject={case.call}:error={case.error}:when={case.when}"),
        *(argument for path in paths for argument in ("-P", str(path))),
        *plain,
    )
    try:
        broker.start()
        row.ready = world.ready()
        row.resumed = "it started"
    except BrokerDidNotStart as error:
        lines = error.log.strip().splitlines()
        assert lines[-1].startswith("holdfast: "), error
        row.ready = "not started"
        sentence = lines[-1].rpartition("holdfast: ")[2].replace(str(world.data_dir), "DIR")
        row.refused = {f"the start: {sentence}"}
        row.resumed = "by the next start"
    row.is_met = _is_met(world)
    broker.stop()
    broker.program = plain
    broker.start()
    wait_until(lambda: world.turn("serve"), "service after the next start", timeout_s=60.0)


def _at_stop(world: _World, row: Row) -> None:
    case, broker = row.case, world.broker
    fault = f"{case.call}:error={case.error}:when={case.when}"
    if case.path == _ACTIVE:
        world.begin_segment()
    with injected(broker.pid, fault, world.log, *world.paths(case)):
        world.turn("serve")
        status = broker.stop()
        row.is_met = _is_met(world)
    row.ready = f"exit status {status}"
    broker.start()
    row.resumed = "by the next start"
    wait_until(lambda: world.turn("serve"), "service after the next start", timeout_s=60.0)


def _is_met(world: _World) -> bool:
    return "INJECTED" in world.log.read_text(errors="replace") if world.log.exists() else False


def main() -> None:
    """Run and print the table, or only the cases whose names contain a given word."""
    rows: list[Row] = []
    failed = 0

    def done(row: Row) -> None:
        print(f"{'' if row.is_met else 'NOT MET '}{row.cells()}", file=sys.stderr, flush=True)
        if row.is_met:
            rows.append(row)

    wanted = [
        case
        for case in all_cases()
        if not sys.argv[1:] or any(word in str(case) for word in sys.argv[1:])
    ]
    while wanted:
        batch = batch_of(wanted)
        wanted = [case for case in wanted if case not in batch]
        with tempfile.TemporaryDirectory(dir=folder_in_memory(256 * 2**20)) as folder:
            try:
                run(batch, Path(folder), done)
            except Exception:
                failed += 1
                print(f"FAILED\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    print(table(rows))
    print(f"{len(rows)} combinations, {failed} failed")
    sys.exit(1 if failed else 0)


def batch_of(cases: Sequence[Case]) -> list[Case]:
    """Return the first cases that can share a data directory; a deletion needs its own."""
    if cases[0].work == "trim":
        return [cases[0]]
    shared = [case for case in cases if case.work != "trim"]
    return shared[:_SHARED]


if __name__ == "__main__":
    main()
