import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.log_files.descriptions import TopicState
from holdfast.log_files.ranges import OffsetRange, QueueState
from holdfast.spark.errors import (
    CheckpointUnreadable,
    DataLost,
    GoneFromStream,
    SparkError,
    TopicRecreated,
)
from holdfast.spark.stream.offsets import (
    QueueKey,
    StreamOffsets,
    TopicOffsets,
    advance,
    decode_offsets,
    encode_offsets,
    find_losses,
    ranges_ahead,
    ranges_between,
)

GOLDEN = '{"version": 1, "topics": {"orders": {"id": 7, "queues": {"0": 12, "10": 40}}}}'

offsets = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(
        TopicOffsets,
        st.integers(1, 2),
        st.dictionaries(st.integers(0, 12), st.integers(0, 2**62), max_size=4),
    ),
)


def at(topic_id: int = 7, **queues: int) -> TopicOffsets:
    """Return offsets by queue: q0=12, q1=40."""
    return TopicOffsets(topic_id, {int(name[1:]): offset for name, offset in queues.items()})


def now(topic_id: int = 7, **queues: tuple[int, int]) -> TopicState:
    """Return a topic with the bounds of its queues: q0=(0, 12)."""
    states = {int(name[1:]): QueueState(*ends) for name, ends in queues.items()}
    return TopicState("orders", topic_id, states, None)


def test_the_text_in_a_checkpoint() -> None:
    assert json.dumps(encode_offsets({"orders": at(q10=40, q0=12)})) == GOLDEN
    assert decode_offsets(json.loads(GOLDEN)) == {"orders": at(q0=12, q10=40)}


@settings(deadline=None)
@given(offsets)
def test_offsets_survive_a_checkpoint(value: StreamOffsets) -> None:
    text = json.dumps(encode_offsets(value))
    assert decode_offsets(json.loads(text)) == value
    assert json.dumps(encode_offsets(decode_offsets(json.loads(text)))) == text


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({}, "another source wrote them"),
        ([], "another source wrote them"),
        ({"orders": {"0": 12}}, "another source wrote them"),
        ({"version": 2, "topics": {}}, "their version is 2, this release of Holdfast reads 1"),
        ({"version": 0, "topics": {}}, "their version is 0"),
        ({"version": 1}, "damaged"),
        ({"version": 1, "topics": {"a": {}}}, "damaged"),
        ({"version": 1, "topics": {"a": {"id": 1, "queues": {"x": 1}}}}, "damaged"),
        ({"version": 1, "topics": {"a": {"id": 1, "queues": {"0": -1}}}}, "damaged"),
        ({"version": 1, "topics": {"a": {"id": "1", "queues": {}}}}, "damaged"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(found: Any, says: str) -> None:
    with pytest.raises(CheckpointUnreadable, match=says):
        decode_offsets(found)


def test_a_micro_batch_is_the_range_between_two_offsets() -> None:
    start = {"orders": at(q0=10, q1=5), "gone": at(q0=3)}
    end = {"orders": at(q0=12, q1=5, q2=4)}
    assert ranges_between(start, end) == {"orders": {0: OffsetRange(10, 12), 2: OffsetRange(0, 4)}}


def test_a_topic_recreated_is_read_from_its_beginning() -> None:
    start, end = {"orders": at(7, q0=10)}, {"orders": at(8, q0=3)}
    assert ranges_between(start, end) == {"orders": {0: OffsetRange(0, 3)}}
    assert ranges_ahead(start, {"orders": now(8, q0=(0, 3))}) == {
        QueueKey("orders", 0): OffsetRange(0, 3)
    }


def test_an_end_that_fell_is_nothing_to_read() -> None:
    assert ranges_between({"orders": at(q0=10)}, {"orders": at(q0=3)}) == {}


def test_unread_ranges_begin_at_the_first_stored_message() -> None:
    start = {"orders": at(q0=10, q1=5, q2=9)}
    topics = {"orders": now(q0=(12, 20), q1=(0, 5), q2=(0, 4), q3=(0, 2))}
    assert ranges_ahead(start, topics) == {
        QueueKey("orders", 0): OffsetRange(12, 20),
        QueueKey("orders", 1): OffsetRange(5, 5),
        QueueKey("orders", 2): OffsetRange(4, 4),
        QueueKey("orders", 3): OffsetRange(0, 2),
    }


@pytest.mark.parametrize(
    ("start", "topics", "lost"),
    [
        ({"orders": at(q0=5)}, {"orders": now(q0=(5, 5), q1=(0, 9))}, []),
        ({"orders": at(q0=5)}, {}, [GoneFromStream("orders", None)]),
        ({"orders": at(q0=5)}, {"orders": now(8, q0=(0, 9))}, [TopicRecreated("orders", 7, 8)]),
        ({"orders": at(q0=5, q1=5)}, {"orders": now(q0=(0, 9))}, [GoneFromStream("orders", 1)]),
        (
            {"orders": at(q0=5)},
            {"orders": now(q0=(6, 9))},
            [DataLost("orders", 0, 5, 6, "trimmed by retention")],
        ),
        (
            {"orders": at(q0=5)},
            {"orders": now(q0=(0, 4))},
            [DataLost("orders", 0, 4, 5, "the queue ends before")],
        ),
        # A queue that is new to the stream, but whose first messages are trimmed.
        (
            {"orders": at(q0=5)},
            {"orders": now(q0=(0, 5), q1=(3, 9))},
            [DataLost("orders", 1, 0, 3, "trimmed by retention")],
        ),
    ],
)
def test_losses(
    start: StreamOffsets, topics: dict[str, TopicState], lost: list[SparkError]
) -> None:
    assert [(type(e), e.args) for e in find_losses(start, topics)] == [
        (type(e), e.args) for e in lost
    ]


def test_offsets_move_to_the_ends() -> None:
    start = {"orders": at(q0=10, q1=5), "gone": at(q0=1)}
    topics = {"orders": now(q0=(0, 20), q1=(0, 9), q2=(0, 3), q3=(0, 0)), "new": now(9, q0=(0, 0))}
    ends = {
        QueueKey("orders", 0): 15,
        QueueKey("orders", 1): 5,
        QueueKey("orders", 2): 3,
        QueueKey("orders", 3): 0,
        QueueKey("new", 0): 0,
    }
    # A new, empty queue is not included: it would cause an empty micro-batch.
    assert advance(start, topics, ends) == {"orders": at(q0=15, q1=5, q2=3)}
