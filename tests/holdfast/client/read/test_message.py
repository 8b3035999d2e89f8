import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.consume.delivery import DeliveredMessage
from holdfast.client.read.message import Message, MessageBatch, MessageRun, RunColumns, texts_of
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_run import BatchRun
from tests.support.servers.fake_group import delivered_message
from tests.support.storage.batches import Columns, columns, stamped


def stored(base_offset: int = 10, **columns: object) -> Batch:
    """Return a batch of three messages as the broker stores it."""
    bodies = [b"zero", b"", "zwei €".encode()]
    return stamped(
        encode_batch(bodies, **columns),  # type: ignore[arg-type]
        physical_offset=0,
        base_offset=base_offset,
        topic_id=7,
        queue_id=2,
        store_timestamp_us=1_700_000_000_123_456,
    )


def test_a_message_has_what_was_published() -> None:
    batch = stored(
        keys=["k", None, "schlüssel"],
        tags=[None, "t", "t"],
        properties=[{"a": "b"}, None, {"c": "ü"}],
        born_timestamp_us=1_600_000_000_999_999,
    )
    zero, one, two = MessageBatch("orders", batch, 0, 3)
    assert [message.body for message in (zero, one, two)] == [b"zero", b"", "zwei €".encode()]
    assert [message.key for message in (zero, one, two)] == ["k", None, "schlüssel"]
    assert [message.tag for message in (zero, one, two)] == [None, "t", "t"]
    assert [message.properties for message in (zero, one, two)] == [{"a": "b"}, {}, {"c": "ü"}]
    assert (one.topic, one.queue, one.offset) == ("orders", 2, 11)
    assert one.message_id == "0000000700000002000000000000000B"
    assert one.store_timestamp_ms == 1_700_000_000_123
    assert one.born_timestamp_ms == 1_600_000_000_999
    assert type(one.offset) is int
    assert type(one.born_timestamp_ms) is int


def test_a_batch_may_have_a_creation_time_per_message() -> None:
    batch = stored(born_timestamps_us=[1_000_000, 2_000_999, 3_000_000])
    assert [m.born_timestamp_ms for m in MessageBatch("orders", batch, 0, 3)] == [1000, 2000, 3000]


def test_absent_columns_are_none() -> None:
    for message in MessageBatch("orders", stored(), 0, 3):
        assert (message.key, message.tag, message.properties) == (None, None, {})


def test_a_batch_can_be_cut() -> None:
    part = MessageBatch("orders", stored(), 1, 3)
    assert (len(part), part.start_offset, part.end_offset) == (2, 11, 13)
    assert [message.offset for message in part] == [11, 12]
    assert [message.offset for message in part.until(12)] == [11]
    assert len(part.until(11)) == len(part.until(0)) == 0
    assert part.until(99).end_offset == 13


def test_changing_the_properties_does_not_change_the_message() -> None:
    (message, *_) = MessageBatch("orders", stored(properties=[{"a": "b"}, None, None]), 0, 3)
    message.properties["a"] = "c"
    assert message.properties == {"a": "b"}


def test_messages_are_compared_by_message_id_and_are_immutable() -> None:
    part = MessageBatch("orders", stored(), 0, 3)
    assert list(part) == list(MessageBatch("orders", stored(), 0, 3))
    assert len({*part, *MessageBatch("orders", stored(), 0, 3)}) == 3
    assert list(part) != list(MessageBatch("orders", stored(base_offset=11), 0, 3))
    message = next(iter(part))
    assert message != "a message"
    with pytest.raises(AttributeError):
        message.body = b"other"  # type: ignore[misc]


def test_a_pickled_message_contains_no_other_message() -> None:
    part = MessageBatch("orders", stored(keys=["k", None, None]), 0, 3)
    message = next(iter(part))
    data = pickle.dumps(message)
    assert b"zwei" not in data
    again = pickle.loads(data)
    assert again == message
    assert (again.body, again.key, again.tag, again.properties) == (b"zero", "k", None, {})
    assert again.born_timestamp_ms == message.born_timestamp_ms
    assert again.store_timestamp_ms == message.store_timestamp_ms


def test_a_long_body_is_shortened_when_shown() -> None:
    message = delivered_message(3, "k", topic="orders", body=b"x" * 1000).as_message()
    shown = repr(message)
    assert len(shown) < 200
    assert shown.startswith("Message(topic='orders', queue=0, offset=3, key='k', tag=None")
    assert isinstance(message, Message)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"a": [1, "\xc3\xa9"]}', {"body": '{"a": [1, "é"]}'}),
        (b"", {"body": ""}),
        (b"\xff\x00", {"body_base64": "/wA="}),
    ],
)
def test_to_dict_returns_plain_values(body: bytes, shown: dict[str, str]) -> None:
    # C8
    message = delivered(body).as_message()
    assert message.to_dict() == {
        "topic": "t",
        "queue": 2,
        "offset": 5,
        "message_id": message.message_id,
        "key": "k",
        "tag": None,
        "properties": {"p": "q"},
        "born_timestamp_ms": 6,
        "store_timestamp_ms": 7,
        **shown,
    }
    assert json.loads(json.dumps(message.to_dict())) == message.to_dict()
    received = delivered(body).as_received()
    more = {"receipt": "r", "attempt": 3, "redelivered": True}
    assert received.to_dict() == {**message.to_dict(), **more}


def test_a_body_is_read_as_text_and_as_json() -> None:
    # C8
    message = delivered(b'{"a": [1, "\xc3\xa9"]}').as_message()
    assert message.text == '{"a": [1, "é"]}'
    assert message.json() == {"a": [1, "é"]}
    with pytest.raises(UnicodeDecodeError):
        _ = delivered(b"\xff").as_message().text
    for body in (b"\xff", b"{", b""):
        with pytest.raises(ValueError):
            delivered(body).as_message().json()


def delivered(body: bytes) -> DeliveredMessage:
    fields = {"born_timestamp_ms": 6, "store_timestamp_ms": 7, "properties": {"p": "q"}}
    receipt: dict[str, Any] = {"receipt": "r", "attempt": 3, "redelivered": True}
    return delivered_message(5, "k", queue=2, body=body, **fields, **receipt)


# -- runs of small batches ------------------------------------------------------------


def run_block(each: Columns, base_offset: int) -> bytes:
    batch = stamped(
        each.encode(),
        physical_offset=0,
        base_offset=base_offset,
        topic_id=7,
        queue_id=3,
        store_timestamp_us=1000 * base_offset + 999,
    )
    return bytes(batch.block)


def run_of(batches: list[Columns], gaps: list[int]) -> tuple[RunColumns, list[MessageBatch]]:
    blocks, base = [], 100
    for each, gap in zip(batches, gaps, strict=True):
        base += gap
        blocks.append(run_block(each, base))
        base += len(each.bodies)
    run = RunColumns("orders", BatchRun(b"".join(blocks)))
    alone = [run.batch(index) for index in range(len(blocks))]
    return run, [MessageBatch("orders", batch, 0, len(batch)) for batch in alone]


def seen(message: Message) -> tuple[Any, ...]:
    return (
        message.topic,
        message.queue,
        message.offset,
        message.message_id,
        message.body,
        message.key,
        message.tag,
        message.properties,
        message.born_timestamp_ms,
        message.store_timestamp_ms,
    )


@settings(max_examples=40, deadline=None)  # `make test-inputs` tries more
@given(st.lists(columns(max_messages=3), min_size=1, max_size=6), st.data())
def test_a_run_has_the_messages_of_its_batches(batches: list[Columns], data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(0, 2), min_size=len(batches), max_size=len(batches)))
    run, alone = run_of(batches, gaps)
    expected = [seen(message) for part in alone for message in part]
    whole = MessageRun("orders", run, 0, run.row_count)
    assert [seen(message) for message in whole] == expected
    offsets = [each[2] for each in expected]
    start, end = sorted(data.draw(st.tuples(*[st.integers(95, 130)] * 2)))
    part = MessageRun("orders", run, run.row_at(start), run.row_count).until(end)
    assert [message.offset for message in part] == [o for o in offsets if start <= o < end]
    assert [m.offset for batch in part.batches() for m in batch] == [m.offset for m in part]
    if len(part):
        assert part.end_offset == [m.offset for m in part][-1] + 1


def test_offsets_outside_of_their_column_are_damage() -> None:
    """A defective writer could write such offsets, with correct checksums."""
    raw = bytearray(run_block(Columns([b"abc", b"de"]), 0))
    raw[128 + 4 : 128 + 8] = (9).to_bytes(4, "little")
    run = BatchRun.__new__(BatchRun)
    intact = BatchRun(run_block(Columns([b"abc", b"de"]), 0))
    vars(run).update({**vars(intact), "buffer": bytes(raw)})
    with pytest.raises(CorruptBatch):
        run.text_ranges("body_offsets", "bodies")


@pytest.mark.parametrize("wrap", [bytes, memoryview])
@pytest.mark.parametrize(
    "texts",
    [[], [b""], [b"", b""], [b"ab"], [b"ab", b"cd", b"e\0"], [b"ab", b"c"], [b"a", b"", b"bcd"]],
)
def test_texts_are_split_at_their_starts_and_ends(texts: list[bytes], wrap: Any) -> None:
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64) + 1
    starts = ends - np.array([len(text) for text in texts], np.int64)
    assert texts_of(wrap(b"?" + b"".join(texts) + b"?"), starts, ends) == texts
