"""The threads that run reput's passes: the one that reports (the eager tail), the one that runs a
pass already, or the reput thread.

No report may be left, however the threads interleave.
"""

import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.commitlog.append.appender import AppendRequest
from holdfast.consumequeue.index import reput as reput_module
from holdfast.consumequeue.topics import QueueKey
from tests.consumequeue.index.test_reput import (
    DURABLE,
    NEVER_S,
    WRITTEN,
    Log,
    Reput,
    request,
    running,
    with_and_without_eager_tail,
)

_DEADLINE_S = 20


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Switch threads after a few bytecodes instead of thousands."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _told_by(reput: Reput) -> list[str]:
    """Return a list to which each notification appends the name of its thread."""
    names: list[str] = []
    reput.telling = lambda advanced: names.append(threading.current_thread().name)
    return names


def test_who_brings_work_does_it_while_nobody_has_the_turn(tmp_path: Path) -> None:
    log, asked = Log(), request()
    with running(tmp_path, eager_tail=True, commit_interval_s=NEVER_S) as reput:
        names = _told_by(reput)
        reput.service.put_headers([log.write(WRITTEN)])
        reput.service.put_finished([asked])
        assert reput.told == []
        reput.service.flush()
        assert reput.told == [{(WRITTEN, 0): 1}]
        assert reput.completed == [[asked]]
        assert names == [threading.current_thread().name]


def test_who_has_the_turn_does_also_what_others_bring_meanwhile(tmp_path: Path) -> None:
    log = Log()
    in_pass, go_on = threading.Event(), threading.Event()

    def hold(advanced: dict[QueueKey, int]) -> None:
        in_pass.set()
        assert go_on.wait(_DEADLINE_S)

    def bring() -> None:
        reput.service.put_headers([first])
        reput.service.flush()

    first = log.write(WRITTEN)
    with running(tmp_path, eager_tail=True, commit_interval_s=NEVER_S) as reput:
        reput.telling = hold
        bringing = threading.Thread(target=bring)
        bringing.start()
        assert in_pass.wait(_DEADLINE_S)
        reput.service.put_headers([log.write(WRITTEN)])
        reput.service.flush()  # another thread is in a pass: this returns at once
        assert len(reput.told) == 0
        go_on.set()
        bringing.join(_DEADLINE_S)
        assert reput.told == [{(WRITTEN, 0): 1}, {(WRITTEN, 0): 2}]


def test_what_piles_up_is_left_to_the_reput_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput_module, "_PASS_SIZE", 1)
    log = Log()
    with running(tmp_path, eager_tail=True, commit_interval_s=NEVER_S) as reput:
        names = _told_by(reput)
        for _ in range(5):
            reput.service.put_headers([log.write(WRITTEN)])
        reput.service.flush()
        reput.until(lambda: reput.max_offset(WRITTEN) == 5)
        reput.until(lambda: len(reput.told) == 5)
    assert names == [threading.current_thread().name] * 2 + ["holdfast-reput"] * 3


def test_a_pass_that_fails_spares_the_thread_that_made_it(tmp_path: Path) -> None:
    log, asked, late = Log(), request(), request()

    def fail(advanced: dict[QueueKey, int]) -> None:
        raise ZeroDivisionError

    with running(tmp_path, eager_tail=True, commit_interval_s=NEVER_S) as reput:
        reput.telling = fail
        reput.service.put_headers([log.write(WRITTEN)])
        reput.service.put_finished([asked])
        reput.service.flush()
        assert [type(error) for error in reput.failures] == [ZeroDivisionError]
        reput.service.put_finished([late])
        reput.service.flush()
        assert reput.completed == [[asked], [late]]


@with_and_without_eager_tail
def test_what_is_reported_after_the_stop_is_answered(tmp_path: Path, eager_tail: bool) -> None:
    asked = request()
    with running(tmp_path, eager_tail=eager_tail, commit_interval_s=NEVER_S) as reput:
        reput.service.stop()
        reput.finish([asked])
        assert reput.completed == [[asked]]


@with_and_without_eager_tail
@pytest.mark.usefixtures("eager_switches")
def test_what_several_bring_at_the_same_moment_is_all_done(
    tmp_path: Path, eager_tail: bool
) -> None:
    """No later call processes the work: one of the bringing threads must do it."""
    rounds, bringers = 200, 3
    together = threading.Barrier(bringers + 1)
    asked = [[request() for _ in range(bringers)] for _ in range(rounds)]

    def bring(number: int) -> None:
        for each in asked:
            together.wait(_DEADLINE_S)
            reput.service.put_finished([each[number]])
            reput.service.flush()

    with running(tmp_path, eager_tail=eager_tail, commit_interval_s=NEVER_S) as reput:
        threads = [threading.Thread(target=bring, args=(n,)) for n in range(bringers)]
        for thread in threads:
            thread.start()
        try:
            for done in range(1, rounds + 1):
                together.wait(_DEADLINE_S)
                reput.until(lambda: sum(map(len, reput.completed)) == done * bringers)  # noqa: B023
        finally:
            together.abort()
            for thread in threads:
                thread.join(_DEADLINE_S)


@pytest.mark.usefixtures("eager_switches")
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    eager_tail=st.booleans(),
    groups=st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=40),
    seed=st.integers(0, 2**32),
)
def test_nothing_is_left_lying_and_all_is_told_in_order(
    tmp_path_factory: pytest.TempPathFactory, eager_tail: bool, groups: list[list[bool]], seed: int
) -> None:
    """An appender and a sync thread call the service, and a third thread calls it sometimes.

    In the end all written data is visible, and every request was completed once, not before its
    entries were visible.
    """
    rng = random.Random(seed)
    log = Log()
    written = [
        [log.write(DURABLE if durable else WRITTEN) for durable in durables] for durables in groups
    ]
    ends = [headers[-1].end_physical_offset for headers in written]
    requests = [[request() for _ in range(3)] for _ in groups]
    needs = {
        id(asked): (group, place)
        for group, each in enumerate(requests)
        for place, asked in enumerate(each)
    }
    counts = {
        topic: [
            sum(h.topic_id == topic for g in written[: n + 1] for h in g)
            for n in range(len(written))
        ]
        for topic in (DURABLE, WRITTEN)
    }
    too_early: list[tuple[int, int]] = []
    appended = threading.Semaphore(0)
    rests = [rng.random() < 0.3 for _ in groups]
    with running(
        tmp_path_factory.mktemp("reput"), eager_tail=eager_tail, commit_interval_s=NEVER_S
    ) as reput:

        def look(finished: list[AppendRequest]) -> None:
            for asked in finished:
                group, place = needs[id(asked)]
                if reput.max_offset(WRITTEN) < counts[WRITTEN][group] or (
                    place == 1 and reput.max_offset(DURABLE) < counts[DURABLE][group]
                ):
                    too_early.append((group, place))

        def append() -> None:
            for group, headers in enumerate(written):
                reput.service.put_headers(headers)
                appended.release()
                reput.service.put_finished([requests[group][0]])
                reput.service.flush()

        def sync() -> None:
            group = 0
            while group < len(written):
                appended.acquire()
                reached = group + 1
                while not rests[group] and appended.acquire(blocking=False):
                    reached += 1
                reput.service.put_durable_offset(ends[reached - 1])
                reput.service.put_finished([requests[n][1] for n in range(group, reached)])
                reput.service.flush()
                group = reached

        def beside() -> None:
            for group in range(len(written)):
                if rests[group]:
                    reput.service.flush()

        reput.completing = look
        threads = [threading.Thread(target=work) for work in (append, sync, beside)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_DEADLINE_S)
        completed = [asked for each in requests for asked in each[:2]]
        reput.until(lambda: sum(map(len, reput.completed)) == len(completed))
        assert reput.max_offset(WRITTEN) == counts[WRITTEN][-1]
        assert reput.max_offset(DURABLE) == counts[DURABLE][-1]
        assert not reput.failures
    assert too_early == []
    found = [id(asked) for each in reput.completed for asked in each]
    assert sorted(found) == sorted(map(id, completed))
    for topic in (WRITTEN, DURABLE):
        told = [each[topic, 0] for each in reput.told if (topic, 0) in each]
        assert told == sorted(told)
        assert (told or [0])[-1] == counts[topic][-1]
