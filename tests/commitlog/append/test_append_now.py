"""`Appender.append_now`: small rounds that run in the thread of the caller, the event loop."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast.commitlog.append.appender import MAX_ROWS_NOW, AppendRequest
from holdfast.commitlog.format.batch_encoding import Rows
from tests.commitlog.publishing import DEADLINE_S, Publishing, batch

LIMIT = 4096


@contextmanager
def asleep(publishing: Publishing) -> Iterator[Publishing]:
    """Run the appender thread, and wait until it sleeps."""
    publishing.log.roll()  # the first segment
    publishing.appender.start()
    await_sleep(publishing)
    try:
        yield publishing
    finally:
        publishing.appender.stop()


def await_sleep(publishing: Publishing) -> None:
    until = time.monotonic() + DEADLINE_S
    while not publishing.appender._is_asleep:
        assert time.monotonic() < until, "the appender thread does not sleep"
        time.sleep(0.001)


def submit(publishing: Publishing, *batches: object, durable: bool = False) -> AppendRequest:
    request = AppendRequest(1, batches, durable)  # type: ignore[arg-type]
    publishing.appender.submit(request, wake=False)
    return request


def writers(publishing: Publishing) -> list[str]:
    """Return the names of the threads that report headers, in order, from now on."""
    names: list[str] = []
    note: Callable[[str, object], None] = publishing.events.note

    def note_thread(kind: str, what: object) -> None:
        if kind == "dispatch":
            names.append(threading.current_thread().name)
        note(kind, what)

    publishing.events.note = note_thread  # type: ignore[method-assign]
    return names


@pytest.fixture
def publishing() -> Publishing:
    return Publishing(max_bytes_now=LIMIT)


def test_a_small_round_runs_in_the_callers_thread(publishing: Publishing) -> None:
    names = writers(publishing)
    with asleep(publishing):
        requests = [submit(publishing, batch(), batch(queue=1)) for _ in range(3)]
        publishing.appender.append_now()
        assert [publishing.events.completions(request) for request in requests] == [1, 1, 1]
        assert names == ["MainThread"]
        assert publishing.appender._is_asleep, "the thread was not woken"
        assert publishing.appender.waiting_bytes == 0
        publishing.appender.append_now()  # there is nothing to append
    assert names == ["MainThread"]


def test_the_thread_appends_what_is_larger_than_the_limit() -> None:
    size = batch(100).total_size
    for limit, writer in ((size, "MainThread"), (size - 1, "holdfast-appender"),
                          (size + 1, "MainThread"), (0, "holdfast-appender")):  # fmt: skip
        publishing = Publishing(max_bytes_now=limit)
        names = writers(publishing)
        with asleep(publishing):
            request = submit(publishing, batch(100))
            publishing.appender.append_now()
            assert publishing.events.next_completed() is request
        assert names == [writer], limit


def test_the_thread_appends_many_rows() -> None:
    for count, writer in ((MAX_ROWS_NOW, "MainThread"), (MAX_ROWS_NOW + 1, "holdfast-appender")):
        publishing = Publishing(max_bytes_now=1024 * 1024)
        names = writers(publishing)
        with asleep(publishing):
            request = submit(publishing, Rows(0, [b"x"] * count, 1))
            publishing.appender.append_now()
            assert publishing.events.next_completed() is request
        assert names == [writer], count


def test_the_thread_appends_what_must_be_durable(publishing: Publishing) -> None:
    names = writers(publishing)
    with asleep(publishing):
        durable = submit(publishing, batch(), durable=True)
        submit(publishing, batch())
        publishing.appender.append_now()
        publishing.events.wait_for("written")
    assert publishing.idle.of_waiting() == [durable]
    assert names == ["holdfast-appender"]


@pytest.mark.parametrize(("count", "writer"), [(1, "MainThread"), (2, "holdfast-appender")])
def test_a_durable_request_is_appended_now_if_it_will_be_synced_alone(
    publishing: Publishing, count: int, writer: str
) -> None:
    publishing.idle.has_single_requests = True
    names = writers(publishing)
    with asleep(publishing):
        requests = [submit(publishing, batch(), durable=True) for _ in range(count)]
        publishing.appender.append_now()
        publishing.events.wait_for("written")
    assert publishing.idle.of_waiting() == requests
    assert names == [writer]


def test_the_thread_rolls_to_a_new_segment(publishing: Publishing) -> None:
    names = writers(publishing)
    with asleep(publishing):
        while "holdfast-appender" not in names:
            await_sleep(publishing)
            request = submit(publishing, batch(1000))
            publishing.appender.append_now()
            assert publishing.events.next_completed() is request
    assert publishing.events.of("rolled"), "only the round that rolled was left to the thread"
    assert names[-1] == "holdfast-appender"
    assert set(names[:-1]) == {"MainThread"}


def test_after_a_long_write_the_thread_appends_for_a_while(publishing: Publishing) -> None:
    names = writers(publishing)
    now_s, write_s = 100.0, 0.2  # the disk stalls for 200 ms
    ticks = 0

    def monotonic() -> float:
        nonlocal ticks
        ticks += 1
        return now_s + ticks * write_s

    with asleep(publishing):
        publishing.monotonic = monotonic
        submit(publishing, batch())
        publishing.appender.append_now()
        publishing.monotonic = lambda: now_s + 1.0
        second = submit(publishing, batch())
        publishing.appender.append_now()
        publishing.events.next_completed()
        assert publishing.events.next_completed() is second
        assert names == ["MainThread", "holdfast-appender"]
        for _ in range(60):  # short writes: the average decreases
            await_sleep(publishing)
            submit(publishing, batch())
            publishing.appender.append_now()
            publishing.events.next_completed()
        publishing.monotonic = lambda: now_s + 20.0
        await_sleep(publishing)
        submit(publishing, batch())
        publishing.appender.append_now()
        assert names[-1] == "MainThread"


def test_requests_that_arrive_during_a_round_are_left_to_the_thread(
    publishing: Publishing,
) -> None:
    """The thread must not run a round while the event loop runs one, and must be woken after."""
    late: list[AppendRequest] = []
    append = publishing.log.append

    def append_slowly(*arguments: object) -> object:
        if not late:
            late.append(submit(publishing, batch(), durable=True))
            other = threading.Thread(target=publishing.appender.wake)
            other.start()
            other.join(DEADLINE_S)
            assert publishing.appender._is_asleep, "no other round begins"
        return append(*arguments)  # type: ignore[arg-type]

    publishing.log.append = append_slowly  # type: ignore[method-assign, assignment]
    with asleep(publishing):
        first = submit(publishing, batch())
        publishing.appender.append_now()
        publishing.events.wait_for("written")
        assert publishing.events.completions(first) == 1
    assert late[0] in publishing.idle.of_waiting()


def test_a_failed_write_makes_the_log_read_only(publishing: Publishing) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "the disk is broken")

    with asleep(publishing):
        publishing.log.append = fail  # type: ignore[method-assign, assignment]
        request = submit(publishing, batch())
        publishing.appender.append_now()
        assert request.error is not None
        assert publishing.appender.poisoned is not None
        assert publishing.events.completions(request) == 1
        assert len(publishing.events.of("failed")) == 1


def test_two_threads_that_append_and_submit_lose_nothing() -> None:
    publishing = Publishing(max_bytes_now=LIMIT, segment_bytes=8 * 1024 * 1024)
    with asleep(publishing):
        sent: list[AppendRequest] = []

        def send_to_the_thread() -> None:
            for _ in range(300):
                request = AppendRequest(1, [batch(queue=1)], False)
                publishing.appender.submit(request)
                sent.append(request)

        other = threading.Thread(target=send_to_the_thread)
        other.start()
        for _ in range(300):
            sent.append(submit(publishing, batch()))
            publishing.appender.append_now()
        other.join(DEADLINE_S)
        publishing.appender.wake()
        for _ in range(600):
            publishing.events.next_completed()
    assert all(publishing.events.completions(request) == 1 for request in sent[::50])
    ends = [header.physical_offset for header in publishing.dispatched()]
    assert ends == sorted(ends)
    assert len(ends) == len(set(ends)) == 600
