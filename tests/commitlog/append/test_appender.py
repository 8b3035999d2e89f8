import errno
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from msgspec import structs

from holdfast.commitlog.append import appender as appender_module
from holdfast.commitlog.append.appender import AppendRequest, AppendResult
from holdfast.commitlog.append.producer_sequences import ProducerLimits
from holdfast.commitlog.errors import (
    BatchTooLarge,
    DiskFull,
    LogClosed,
    LogOverloaded,
    LogPoisoned,
    NoSegment,
    ProducerFenced,
    SequenceGap,
    TooManyProducers,
)
from holdfast.commitlog.format.batch import Batch, tag_summary, tags_code
from holdfast.commitlog.format.batch_encoding import Rows, encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from tests.commitlog.publishing import Publishing, batch, error_of
from tests.support.storage.small_log import FIRST, NOW_US, SEGMENT_BYTES, SmallLog

SIZE = batch().header.total_size


def _run(publishing: Publishing) -> None:
    """Let the appender process all submitted requests, and end."""
    publishing.appender.start()
    publishing.appender.stop()


# -- writes, callbacks and answers -----------------------------------------------------------


def test_a_written_publish_is_dispatched_then_completed(publishing: Publishing) -> None:
    request = publishing.submit()
    _run(publishing)
    assert [event.kind for event in publishing.events.all] == ["dispatch", "written", "complete"]
    [header] = publishing.dispatched()
    assert request.error is None
    assert request.results == [
        AppendResult(
            queue_id=0,
            base_offset=0,
            message_count=1,
            store_timestamp_us=NOW_US,
            end_physical_offset=header.end_physical_offset,
            durable=request.durable,
        )
    ]
    assert header.physical_offset == FIRST


def test_a_durable_publish_is_left_to_the_sync_thread(publishing: Publishing) -> None:
    durable = publishing.submit(durable=True)
    written = publishing.submit()
    _run(publishing)
    assert publishing.idle.of_waiting() == [durable]
    assert publishing.events.completions(written) == 1
    assert publishing.events.completions(durable) == 0
    assert durable.end_physical_offset == publishing.dispatched()[0].end_physical_offset


def test_waiting_publishes_are_written_with_one_call(publishing: Publishing) -> None:
    publishing.log.roll()
    requests = [publishing.submit(batch(i), batch(i, queue=1)) for i in range(20)]
    before = publishing.disk.changes
    _run(publishing)
    assert publishing.disk.changes == before + 1
    assert len(publishing.events.of("dispatch")) == 1
    assert all(request.error is None for request in requests)


def test_a_block_is_a_stamped_header_and_the_bytes_of_the_client(publishing: Publishing) -> None:
    publishing.idle.durable_offset = 5
    sent = Batch.decode(
        encode_batch(
            [b"a", b"b"], keys=["k", None], tags=["t", "u"], queue_id=3, producer_id=9, sequence=4
        )
    )
    lying = Batch.decode(
        bytes(replace(sent.header, tag_summary=1).encode()) + sent.block[HEADER_SIZE:]
    )
    publishing.submit(lying, topic_id=12)
    _run(publishing)
    [header] = publishing.dispatched()
    stored = publishing.log.read_batch(FIRST, header.total_size)
    assert stored.header == header
    assert stored.block[HEADER_SIZE:] == sent.block[HEADER_SIZE:]
    assert header == sent.header.stamp(
        physical_offset=FIRST,
        durable_offset=5,
        base_offset=0,
        topic_id=12,
        queue_id=3,
        store_timestamp_us=NOW_US,
        tag_summary=tag_summary([tags_code("t"), tags_code("u")]),
    )


def test_a_tag_with_code_0_is_in_the_summary(publishing: Publishing) -> None:
    assert tags_code("bbfsptr") == 0
    publishing.submit(batch(tags=["bbfsptr"]))
    publishing.submit(batch())
    publishing.submit(Batch.decode(encode_batch([b"", b""], tags=["x", None])))
    _run(publishing)
    summaries = [header.tag_summary for header in publishing.dispatched()]
    assert summaries == [1, 0, tag_summary([tags_code("x")])]


def test_every_queue_counts_its_own_messages() -> None:
    publishing = Publishing(next_offsets={(1, 1): 100})
    three = Batch.decode(encode_batch([b""] * 3, queue_id=0))
    for topic_id, each in [(1, three), (1, batch(queue=1)), (2, three), (1, three)]:
        publishing.submit(each, topic_id=topic_id)
    request = publishing.submit(three, batch(queue=1), three)
    _run(publishing)
    found = [(h.topic_id, h.queue_id, h.base_offset) for h in publishing.dispatched()]
    assert found[:4] == [(1, 0, 0), (1, 1, 100), (2, 0, 0), (1, 0, 3)]
    assert [result.base_offset for result in request.results] == [6, 101, 9]


def test_blocks_lie_end_to_end(publishing: Publishing) -> None:
    for size in (1, 2, 300, 8):
        publishing.submit(batch(size), batch(size + 1))
    _run(publishing)
    headers = publishing.dispatched()
    assert headers[0].physical_offset == FIRST
    for one, other in pairwise(headers):
        assert other.physical_offset == one.end_physical_offset
    assert publishing.log.written_offset == headers[-1].end_physical_offset


def test_store_timestamps_never_go_back() -> None:
    publishing = Publishing(last_timestamp_us=NOW_US - 3)
    publishing.clock = iter([NOW_US - 10, NOW_US, NOW_US - 5, NOW_US + 1]).__next__
    for _ in range(4):
        publishing.submit()
    _run(publishing)
    times = [header.store_timestamp_us for header in publishing.dispatched()]
    assert times == [NOW_US - 3, NOW_US, NOW_US, NOW_US + 1]


def test_an_empty_publish_completes(publishing: Publishing) -> None:
    request = AppendRequest(1, [], durable=True)
    publishing.appender.submit(request)
    _run(publishing)
    assert (request.error, request.results, request.end_physical_offset) == (None, [], 0)
    assert publishing.events.completions(request) == 1


@pytest.mark.parametrize(
    ("name", "most"), [("MAX_GROUP_BATCHES", 3), ("MAX_GROUP_BYTES", 3 * SIZE)]
)
def test_the_size_of_a_round_is_limited(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    monkeypatch.setattr(appender_module, name, most)
    for _ in range(7):
        publishing.submit()
    _run(publishing)
    groups = [len(what) for what in publishing.events.of("dispatch") if isinstance(what, list)]
    assert groups == [3, 3, 1]


# -- accepted batches ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "accepted"), [(3 * SIZE - 1, 2), (3 * SIZE, 3), (3 * SIZE + 1, 3)]
)
def test_the_waiting_bytes_are_limited(limit: int, accepted: int) -> None:
    publishing = Publishing(max_waiting_bytes=limit)
    for _ in range(accepted):
        publishing.submit()
    assert publishing.appender.waiting_bytes == accepted * SIZE
    with pytest.raises(LogOverloaded) as raised:
        publishing.submit()
    assert (raised.value.waiting_bytes, raised.value.limit) == (accepted * SIZE, limit)
    _run(publishing)
    assert len(publishing.dispatched()) == accepted
    assert publishing.appender.waiting_bytes == 0


def test_one_publish_of_any_size_is_accepted() -> None:
    publishing = Publishing(max_waiting_bytes=1)
    request = publishing.submit()
    _run(publishing)
    assert request.error is None


def test_an_urgent_publish_goes_first_and_ignores_the_limit() -> None:
    publishing = Publishing(max_waiting_bytes=SIZE)
    publishing.submit(topic_id=5)
    publishing.submit(topic_id=0, urgent=True)
    _run(publishing)
    assert [header.topic_id for header in publishing.dispatched()] == [0, 5]


def test_a_batch_is_accepted_up_to_the_largest_size() -> None:
    # The second size gives a limit that is exactly the size of a batch.
    publishing = Publishing(segment_bytes=SEGMENT_BYTES + 8)
    largest = publishing.log.largest_batch
    assert largest % 8 == 0
    overhead = batch(0).header.total_size
    for size in (largest - 8, largest):
        publishing.submit(batch(size - overhead))
    with pytest.raises(BatchTooLarge) as raised:
        publishing.submit(batch(), batch(largest + 8 - overhead))
    assert (raised.value.size, raised.value.limit) == (largest + 8, largest)
    _run(publishing)
    assert [h.total_size for h in publishing.dispatched()] == [largest - 8, largest]


def test_nothing_is_accepted_after_the_stop(publishing: Publishing) -> None:
    requests = [publishing.submit() for _ in range(3)]
    publishing.appender.start()
    publishing.appender.stop()
    publishing.appender.stop()
    assert [publishing.events.completions(request) for request in requests] == [1, 1, 1]
    with pytest.raises(LogClosed):
        publishing.submit()


def test_an_appender_can_stop_without_a_start(publishing: Publishing) -> None:
    publishing.appender.stop()
    assert publishing.events.all == []


# -- rolling ---------------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_goes_to_the_next_segment(publishing: Publishing) -> None:
    for size in (400_000, 500_000, 300_000):
        publishing.submit(batch(size))
    _run(publishing)
    headers = publishing.dispatched()
    assert [h.physical_offset for h in headers][::2] == [FIRST, SEGMENT_BYTES + FIRST]
    assert [segment.start_offset for segment in publishing.rolled()] == [0]
    kinds = [event.kind for event in publishing.events.all]
    assert kinds == ["dispatch", "rolled", "dispatch", "written", "complete"]


def test_a_prepared_segment_that_is_too_small_is_followed_by_another() -> None:
    publishing = Publishing()
    publishing.submit()
    _run(publishing)
    publishing.log.prepare_next()
    later = Publishing(disk=publishing.disk, segment_bytes=4 * SEGMENT_BYTES)
    large = later.submit(batch(2_000_000))
    _run(later)
    assert large.error is None
    [header] = later.dispatched()
    assert header.physical_offset == SEGMENT_BYTES + FIRST
    assert [s.size for s in later.log.segments] == [SEGMENT_BYTES, 4 * SEGMENT_BYTES]
    again = SmallLog(later.small.directory, later.disk)
    recovered = again.open()
    assert (len(again.headers), recovered.damage) == (2, [])


# -- failures --------------------------------------------------------------------------------


def test_a_mistaken_producer_fails_alone(publishing: Publishing) -> None:
    first = publishing.submit(batch(producer_id=1, sequence=7, epoch=2))
    gap = publishing.submit(batch(producer_id=1, sequence=9, epoch=2))
    fenced = publishing.submit(batch(producer_id=1, sequence=8, epoch=1))
    following = publishing.submit(batch(producer_id=1, sequence=8, epoch=2), durable=True)
    _run(publishing)
    assert first.error is None
    assert repr(gap.error) == repr(SequenceGap(8, 9))
    assert repr(fenced.error) == repr(ProducerFenced(1, 2))
    assert following.error is None
    assert publishing.idle.of_waiting() == [following]
    assert [h.sequence for h in publishing.dispatched()] == [7, 8]
    assert [publishing.events.completions(r) for r in (first, gap, fenced)] == [1, 1, 1]


def test_a_full_disk_fails_only_publishes_that_need_a_segment(publishing: Publishing) -> None:
    publishing.submit(batch(500_000))
    publishing.submit(batch(400_000))
    publishing.appender.start()
    for _ in range(2):
        assert publishing.events.next_completed().error is None
    publishing.disk.full = True
    large = publishing.submit(batch(500_000, producer_id=1, sequence=3))
    assert publishing.events.next_completed() is large
    assert isinstance(large.error, DiskFull)
    small = publishing.submit(batch(10_000))
    assert publishing.events.next_completed() is small
    assert small.error is None
    assert small.results[0].base_offset == 2
    publishing.disk.full = False
    again = publishing.submit(batch(500_000, producer_id=1, sequence=3))
    assert publishing.events.next_completed() is again
    assert again.error is None
    assert (again.results[0].base_offset, again.results[0].duplicate) == (3, False)
    publishing.stop()
    assert publishing.appender.poisoned is None
    assert [h.base_offset for h in publishing.dispatched()] == [0, 1, 2, 3]


def test_a_failed_write_fails_every_publish_once(publishing: Publishing) -> None:
    publishing.log.roll()
    wrong = publishing.submit(batch(producer_id=1, sequence=1), batch(producer_id=1, sequence=5))
    group = [publishing.submit(durable=bool(i % 2)) for i in range(4)]
    publishing.disk.fail("write", errno.EIO)
    _run(publishing)
    assert isinstance(wrong.error, SequenceGap)
    assert all(isinstance(request.error, LogPoisoned) for request in group)
    assert [publishing.events.completions(request) for request in [wrong, *group]] == [1] * 5
    assert publishing.dispatched() == []
    [failure] = publishing.events.of("failed")
    assert isinstance(failure, OSError)
    assert publishing.appender.poisoned is not None
    with pytest.raises(LogPoisoned, match="restart"):
        publishing.submit()


def test_publishes_after_a_failed_write_are_refused(publishing: Publishing) -> None:
    publishing.log.roll()
    publishing.disk.fail("write", errno.EIO, after=1)
    publishing.appender.start()
    first = publishing.submit()
    assert publishing.events.next_completed() is first
    second = publishing.submit()
    assert publishing.events.next_completed() is second
    assert isinstance(error_of(second), LogPoisoned)
    publishing.events.wait_for("failed")
    with pytest.raises(LogPoisoned):
        publishing.submit()
    # Its own thread is alive, and ends on `stop`.
    publishing.appender.stop()
    assert [h.base_offset for h in publishing.dispatched()] == [0]


def test_a_segment_that_cannot_be_created_fails_only_its_publish(publishing: Publishing) -> None:
    request = publishing.submit()
    publishing.disk.fail("create", errno.EMFILE)
    following = publishing.submit()
    _run(publishing)
    assert isinstance(request.error, NoSegment)
    assert following.error is None
    assert publishing.appender.poisoned is None


def test_poisoning_fails_the_waiting_publishes(publishing: Publishing) -> None:
    requests = [publishing.submit() for _ in range(3)]
    publishing.appender.poison("a sync failed")
    assert [str(error_of(r)).count("a sync failed") for r in requests] == [1, 1, 1]
    assert [publishing.events.completions(r) for r in requests] == [1, 1, 1]
    assert publishing.appender.waiting_bytes == 0
    publishing.appender.poison("again")
    assert publishing.appender.poisoned == "a sync failed"
    with pytest.raises(LogPoisoned):
        publishing.submit()


# -- duplicates ------------------------------------------------------------------------------


def test_a_duplicate_gets_the_original_offsets(publishing: Publishing) -> None:
    sent = batch(producer_id=1, sequence=0)
    publishing.submit(batch())
    original = publishing.submit(sent)
    publishing.submit(batch())
    retried = publishing.submit(sent)  # even in the same group
    _run(publishing)
    [first], [second] = original.results, retried.results
    assert second == structs.replace(first, duplicate=True)
    assert len(publishing.dispatched()) == 3


def test_a_durable_duplicate_waits_for_its_originals_sync(publishing: Publishing) -> None:
    sent = batch(producer_id=1, sequence=0)
    original = publishing.submit(sent)
    retried = publishing.submit(sent, durable=True)
    _run(publishing)
    assert publishing.events.completions(original) == 1
    assert publishing.idle.of_waiting() == [retried]
    assert retried.end_physical_offset == original.end_physical_offset


def test_a_refused_publish_succeeds_if_it_was_stored_before(publishing: Publishing) -> None:
    full = RuntimeError("the topic is full")
    sent = [batch(producer_id=1, sequence=0, queue=queue) for queue in (0, 1)]
    original = publishing.submit(*sent)
    same = publishing.submit(*sent, refusal=full)
    more = publishing.submit(*sent, batch(producer_id=1, queue=2), refusal=full)
    others = publishing.submit(*sent, batch(), refusal=full)
    following = publishing.submit(batch(producer_id=1, sequence=1), refusal=full)
    unknown = publishing.submit(batch(producer_id=2, sequence=7), refusal=full)
    behind = publishing.submit(batch(producer_id=2, sequence=8))
    _run(publishing)
    assert same.results == [structs.replace(each, duplicate=True) for each in original.results]
    assert same.error is None
    refused = [more, others, following, unknown]
    assert [each.error for each in refused] == [full] * 4
    assert isinstance(error_of(behind), SequenceGap), "what was refused has yet to come again"
    assert len(publishing.dispatched()) == 2


def test_refused_rows_succeed_if_they_were_stored_before(publishing: Publishing) -> None:
    def rows(sequence: int) -> Rows:
        return Rows(0, [b"x"], NOW_US, producer_id=1, sequence=sequence)

    full = RuntimeError("the topic is full")
    original = publishing.submit(rows(0))
    same = publishing.submit(rows(0), refusal=full)
    following = publishing.submit(rows(1), refusal=full)
    with_room = publishing.submit(rows(1))
    _run(publishing)
    assert same.results == [structs.replace(original.results[0], duplicate=True)]
    assert following.error is full
    assert (with_room.results[0].base_offset, with_room.results[0].duplicate) == (1, False)
    assert sum(header.message_count for header in publishing.dispatched()) == 2


def test_a_durable_duplicate_of_a_synced_publish_completes_at_once(publishing: Publishing) -> None:
    sent = batch(producer_id=1, sequence=0)
    publishing.appender.start()
    original = publishing.submit(sent)
    assert publishing.events.next_completed() is original
    publishing.idle.durable_offset = original.end_physical_offset
    retried = publishing.submit(sent, durable=True)
    assert publishing.events.next_completed() is retried
    assert publishing.idle.of_waiting() == []
    # With one byte less durable, it would have to wait.
    publishing.idle.durable_offset = original.end_physical_offset - 1
    waiting = publishing.submit(sent, durable=True)
    publishing.appender.stop()
    assert publishing.idle.of_waiting() == [waiting]


# -- publishes that share a batch --------------------------------------------------------------


def rows(*bodies: bytes, queue: int = 0, producer_id: int = 0, sequence: int = 0) -> Rows:
    return Rows(queue, bodies or (b"x",), NOW_US, producer_id=producer_id, sequence=sequence)


def stored(publishing: Publishing) -> list[list[bytes]]:
    """Return the bodies of each batch in the log."""
    found = []
    for header in publishing.dispatched():
        read = publishing.log.read_batch(header.physical_offset, header.total_size)
        found.append([read.body(row) for row in range(len(read))])
    return found


def test_rows_that_wait_for_one_queue_share_a_batch(publishing: Publishing) -> None:
    first = publishing.submit(rows(b"a", b"b"))
    other = publishing.submit(rows(b"c", queue=1))
    second = publishing.submit(rows(b"d"))
    _run(publishing)
    assert stored(publishing) == [[b"a", b"b", b"d"], [b"c"]]
    places = [
        (result.queue_id, result.base_offset, result.message_count)
        for request in (first, second, other)
        for result in request.results
    ]
    assert places == [(0, 0, 2), (0, 2, 1), (1, 0, 1)]
    assert first.end_physical_offset == second.end_physical_offset


def test_a_batch_between_rows_keeps_its_turn(publishing: Publishing) -> None:
    publishing.submit(rows(b"a"))
    between = publishing.submit(batch(3))
    publishing.submit(rows(b"b"))
    _run(publishing)
    assert stored(publishing) == [[b"a"], [b"xxx"], [b"b"]]
    assert between.results[0].base_offset == 1


def test_results_are_in_the_order_of_the_request(publishing: Publishing) -> None:
    publishing.submit(rows(queue=1))
    request = publishing.submit(rows(b"a", queue=0), batch(queue=2), rows(b"b", queue=1))
    _run(publishing)
    assert [(result.queue_id, result.base_offset) for result in request.results] == [
        (0, 0),
        (2, 0),
        (1, 1),
    ]


@pytest.mark.parametrize("name", ["MAX_SHARED_BYTES", "MAX_SHARED_MESSAGES"])
def test_a_shared_batch_stays_small(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    two = 2 * rows().total_size if name == "MAX_SHARED_BYTES" else 2
    monkeypatch.setattr(appender_module, name, two)
    requests = [publishing.submit(rows()) for _ in range(5)]
    _run(publishing)
    assert [len(each) for each in stored(publishing)] == [2, 2, 1]
    assert [request.results[0].base_offset for request in requests] == list(range(5))


def test_a_retry_in_the_same_round_is_found(publishing: Publishing) -> None:
    """The retry came while the first request was still waiting, between requests of other
    producers."""
    publishing.submit(rows(b"a"))
    first = publishing.submit(rows(b"b", producer_id=7, sequence=3))
    again = publishing.submit(rows(b"b", producer_id=7, sequence=3))
    following = publishing.submit(rows(b"c", producer_id=7, sequence=4))
    gap = publishing.submit(rows(b"d", producer_id=7, sequence=9))
    last = publishing.submit(rows(b"e"))
    _run(publishing)
    assert stored(publishing) == [[b"a", b"b"], [b"c"], [b"e"]]
    assert again.results == [structs.replace(first.results[0], duplicate=True)]
    assert following.results[0].base_offset == 2
    assert isinstance(error_of(gap), SequenceGap)
    assert last.error is None


def test_a_full_disk_fails_all_publishes_of_a_shared_batch(publishing: Publishing) -> None:
    publishing.disk.full = True
    requests = [publishing.submit(rows()), publishing.submit(rows()), publishing.submit(rows())]
    publishing.appender.start()
    for _ in requests:
        publishing.events.next_completed()
    assert [type(request.error) for request in requests] == [DiskFull] * 3
    publishing.disk.full = False
    later = publishing.submit(rows())
    publishing.events.next_completed()
    assert later.results[0].base_offset == 0


# -- budgets of producers --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["batches", "rows"])
@pytest.mark.parametrize(("count", "is_refused"), [(4, False), (5, False), (6, True)])
def test_a_request_with_too_many_new_producers_is_refused_as_a_whole(
    kind: str, count: int, is_refused: bool
) -> None:
    # S4: 100,000 batches of new producers in one request made the log forget all others
    limits = ProducerLimits(100, max_producers_per_client=5)
    publishing = Publishing(producers=limits)
    make: Callable[..., Batch | Rows] = rows if kind == "rows" else batch
    before = publishing.submit(make(producer_id=99, sequence=3), client="other")
    many = [make(producer_id=number, sequence=0) for number in range(1, count + 1)]
    request = publishing.submit(*many, client="greedy")
    after = publishing.submit(make(producer_id=50, sequence=0), client="modest")
    again = publishing.submit(make(producer_id=99, sequence=3), client="other")
    _run(publishing)
    assert (before.error, after.error, again.error) == (None, None, None)
    assert again.results[0].duplicate
    if is_refused:
        assert repr(request.error) == repr(TooManyProducers("max_producers_per_client", 5))
        assert publishing.sequences.weight == 2
    else:
        assert request.error is None
        assert publishing.sequences.weight == 2 + count
    publishing.stop()
