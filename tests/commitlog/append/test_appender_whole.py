"""Publishes over several queues: each is stored in all its queues, or its retry can complete it."""

import errno
from collections.abc import Sequence

import pytest

from holdfast.commitlog.append.appender import AppendRequest
from holdfast.commitlog.errors import DiskFull, NoSegment, SequenceGap
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Rows
from tests.commitlog.publishing import Publishing, batch
from tests.support.storage.small_log import NOW_US


def rows(*bodies: bytes, queue: int, producer_id: int, sequence: int) -> Rows:
    return Rows(queue, bodies, NOW_US, producer_id=producer_id, sequence=sequence)


def request_of(kind: str, sizes: Sequence[int], sequence: int) -> list[Batch | Rows]:
    """Return a publish with these numbers of bytes per queue, which its producer can retry."""
    if kind == "rows":
        return [
            rows(b"x" * size, queue=queue, producer_id=1, sequence=sequence)
            for queue, size in enumerate(sizes)
        ]
    return [
        batch(size, queue=queue, producer_id=1, sequence=sequence)
        for queue, size in enumerate(sizes)
    ]


def publish(publishing: Publishing, *batches: Batch | Rows) -> AppendRequest:
    """Publish, and wait for the answer."""
    request = publishing.submit(*batches)
    assert publishing.events.next_completed() is request
    return request


def outcome(request: AppendRequest) -> list[tuple[int, bool]]:
    assert request.error is None
    return [(result.base_offset, result.duplicate) for result in request.results]


@pytest.mark.parametrize("failing_part", [0, 1, 2])
@pytest.mark.parametrize("kind", ["rows", "batches"])
@pytest.mark.parametrize("fault", ["full", "create"])
def test_a_publish_without_a_segment_is_stored_in_no_queue(
    publishing: Publishing, kind: str, failing_part: int, fault: str
) -> None:
    publishing.appender.start()
    # The room that is left fits exactly the parts before the failing one.
    for size in (400_000, 290_000, 290_000 - 110_000 * failing_part):
        publish(publishing, batch(size, queue=3))
    before = len(publishing.dispatched())
    if fault == "full":
        publishing.disk.full = True
    else:
        publishing.disk.fail("create", errno.EMFILE)
    sent = request_of(kind, [100_000] * 3, 0)
    following = request_of(kind, [10] * 3, 1)
    assert type(publish(publishing, *sent).error) is (DiskFull if fault == "full" else NoSegment)
    assert len(publishing.dispatched()) == before
    publishing.disk.full = False
    publishing.disk.spare("create")
    assert outcome(publish(publishing, *sent)) == [(0, False)] * 3
    assert outcome(publish(publishing, *following)) == [(1, False)] * 3
    assert outcome(publish(publishing, *sent)) == [(0, True)] * 3


def test_a_stored_publish_needs_no_room_for_its_retry(publishing: Publishing) -> None:
    publishing.appender.start()
    sent = request_of("rows", [200_000] * 3, 0)
    publish(publishing, *sent)
    publishing.disk.full = True
    assert isinstance(publish(publishing, *request_of("rows", [200_000] * 3, 1)).error, DiskFull)
    assert outcome(publish(publishing, *sent)) == [(0, True)] * 3


@pytest.mark.parametrize("stored", [1, 2])
def test_no_later_publish_follows_a_split_one(publishing: Publishing, stored: int) -> None:
    """Otherwise its retry would be too old in the queues that have a later publish."""
    publishing.appender.start()
    publish(publishing, *request_of("rows", [10] * 3, 0))
    publish(publishing, batch(200_000 if stored == 1 else 10, queue=3))
    sent = request_of("rows", [450_000, 450_000, 450_000], 1)
    following = request_of("rows", [10] * 3, 2)
    publishing.disk.full = True
    assert isinstance(publish(publishing, *sent).error, DiskFull)
    assert len(publishing.dispatched()) == 4 + stored
    for _ in range(2):
        assert repr(publish(publishing, *following).error) == repr(SequenceGap(1, 2))
        assert isinstance(publish(publishing, *sent).error, DiskFull)
    publishing.disk.full = False
    assert outcome(publish(publishing, *sent)) == [(1, queue < stored) for queue in range(3)]
    assert outcome(publish(publishing, *following)) == [(2, False)] * 3


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_wrong_sequence_in_one_queue_refuses_the_whole_publish(
    publishing: Publishing, wrong: int
) -> None:
    publishing.appender.start()
    publish(publishing, *request_of("batches", [10] * 3, 0))
    sent = request_of("batches", [10] * 3, 1)
    sent[wrong] = batch(10, queue=wrong, producer_id=1, sequence=7)
    assert repr(publish(publishing, *sent).error) == repr(SequenceGap(1, 7))
    assert len(publishing.dispatched()) == 3
    assert outcome(publish(publishing, *request_of("batches", [10] * 3, 1))) == [(1, False)] * 3


def test_several_batches_of_a_producer_to_one_queue_follow_each_other(
    publishing: Publishing,
) -> None:
    publishing.appender.start()
    sent = [batch(producer_id=1, sequence=sequence) for sequence in (0, 1, 1, 2)]
    assert outcome(publish(publishing, *sent)) == [(0, False), (1, False), (1, True), (2, False)]
    assert outcome(publish(publishing, *sent)) == [(0, True), (1, True), (1, True), (2, True)]


def test_waiting_publishes_of_a_producer_keep_their_order(publishing: Publishing) -> None:
    publishing.submit(rows(b"a", queue=0, producer_id=7, sequence=3))
    following = [
        publishing.submit(rows(b"b", queue=1, producer_id=7, sequence=4)),
        publishing.submit(rows(b"c", queue=2, producer_id=7, sequence=5)),
        publishing.submit(rows(b"d", queue=0, producer_id=7, sequence=9)),
    ]
    publishing.appender.start()
    publishing.appender.stop()
    assert [type(each.error) for each in following] == [type(None), type(None), SequenceGap]


@pytest.mark.parametrize("kind", ["rows", "batches"])
def test_a_small_publish_does_not_overtake_a_failed_larger_one(
    publishing: Publishing, kind: str
) -> None:
    """The producer is unknown, so its first sequence may be any number, also one after the failed
    one."""
    publishing.appender.start()
    for queue in (3, 4):
        publish(publishing, batch(400_000, queue=queue))
    publishing.disk.full = True
    large, small = request_of(kind, [500_000], 0), request_of(kind, [10], 1)
    assert isinstance(publish(publishing, *large).error, DiskFull)
    assert repr(publish(publishing, *small).error) == repr(SequenceGap(0, 1))
    publishing.disk.full = False
    assert outcome(publish(publishing, *large)) == [(0, False)]
    assert outcome(publish(publishing, *small)) == [(1, False)]
