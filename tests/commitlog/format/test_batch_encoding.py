from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_check import MessageLimits, check_batch
from holdfast.commitlog.format.batch_encoding import (
    Rows,
    as_batch,
    encode_batch,
    encode_rows,
    most_shared_bytes,
    with_requests,
    with_run,
)
from holdfast.commitlog.format.batch_header import BatchFlag
from tests.commitlog.golden.make import examples, golden
from tests.support.storage.batches import Columns, columns

BORN = 1_700_000_000_000_000


@pytest.mark.parametrize("name", sorted(examples()))
def test_the_encoder_writes_the_golden_examples(name: str) -> None:
    assert examples()[name] == golden(name)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"bodies": []}, "at least one"),
        ({"bodies": [b"a"], "keys": []}, "column of 0"),
        ({"bodies": [b"a"], "keys": ["k", "l"]}, "column of 2"),
        ({"bodies": [b"a"], "tags": ["k", "l"]}, "column of 2"),
        ({"bodies": [b"a"], "properties": [{}, {}]}, "column of 2"),
        ({"bodies": [b"a"], "born_timestamps_us": [1, 2]}, "column of 2"),
        ({"bodies": [b"a"], "expires_timestamps_us": [1, 2]}, "column of 2"),
        ({"bodies": [b"a", b"b"], "keys": ["", "k"]}, "an empty key"),
        ({"bodies": [b"a", b"b"], "tags": ["t", ""]}, "an empty tag"),
        ({"bodies": [b"a"], "properties": [{"": "v"}]}, "an empty property name"),
        ({"bodies": [b"a"], "keys": ["\ud800"]}, "surrogates not allowed"),
    ],
)
def test_invalid_messages_are_refused(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        encode_batch(**arguments)


@pytest.mark.parametrize("counts_requests", [True, False])
def test_the_producer_is_in_the_header(counts_requests: bool) -> None:
    raw = encode_batch(
        [b"a"],
        producer_id=2**63 - 1,
        producer_epoch=7,
        sequence=9,
        request_sequence=counts_requests,
    )
    header = Batch.decode(raw).header
    assert (header.producer_id, header.producer_epoch, header.sequence) == (2**63 - 1, 7, 9)
    assert bool(header.flags & BatchFlag.REQUEST_SEQUENCE) == counts_requests


@st.composite
def runs(draw: st.DrawFn) -> list[Rows]:
    """Draw publishes that share a batch, at most one of each producer."""
    parts: list[Columns] = draw(st.lists(columns(4), min_size=1, max_size=5))
    producers = draw(st.lists(st.booleans(), min_size=len(parts), max_size=len(parts)))
    return [
        Rows(
            3,
            part.bodies,
            BORN + part.born_timestamp_us,
            part.keys,
            part.tags,
            part.properties,
            part.expires_timestamps_us,
            envelopes=part.envelopes,
            producer_id=number if is_idempotent else 0,
            producer_epoch=number % 2 if is_idempotent else 0,
            sequence=2**40 + number if is_idempotent else 0,
        )
        for number, (part, is_idempotent) in enumerate(zip(parts, producers, strict=True), 1)
    ]


def shared(run: list[Rows]) -> Batch:
    header, payload = encode_rows(run)
    return Batch.decode(bytes(header.encode()) + payload)


@settings(max_examples=40)  # `make test-inputs` tries more
@given(runs())
def test_a_shared_batch_has_every_message_unchanged(run: list[Rows]) -> None:
    batch = shared(run)
    check_batch(batch, MessageLimits())
    row = 0
    for rows in run:
        alone = as_batch(rows)
        assert rows.total_size == alone.total_size == len(alone.block)
        for own in range(len(rows)):
            assert batch.body(row) == alone.body(own) == rows.bodies[own]
            assert batch.key(row) == alone.key(own)
            assert batch.tag(row) == alone.tag(own)
            assert batch.properties(row) == alone.properties(own)
            assert batch.born_timestamp_us(row) == rows.born_timestamp_us
            assert batch.expires_timestamp_us(row) == alone.expires_timestamp_us(own)
            assert batch.envelope(row) == alone.envelope(own)
            row += 1
    assert row == len(batch)


@settings(max_examples=40)  # `make test-inputs` tries more
@given(runs())
def test_a_shared_batch_fits_the_room_reserved_for_its_publishes(run: list[Rows]) -> None:
    kept = sum(rows.total_size + most_shared_bytes(rows) for rows in run)
    assert shared(run).header.total_size <= kept


@settings(max_examples=40)  # `make test-inputs` tries more
@given(runs(), st.integers(0, 2**40))
def test_the_publishes_of_a_shared_batch_are_read_from_its_columns(
    run: list[Rows], base: int
) -> None:
    """The appender's data about a shared batch, and the data that recovery reads, are the same.

    Both are the headers that the publishes would have separately.
    """
    batch = shared(run)
    stamped = replace(batch.header, base_offset=base, topic_id=9)
    written = with_run(stamped, run)
    read = with_requests(replace(batch, header=stamped))
    expected = []
    for rows in run:
        if rows.producer_id:
            expected.append((rows.producer_id, rows.producer_epoch, rows.sequence, base, len(rows)))
        base += len(rows)
    for header in (written, read):
        assert [
            (each.producer_id, each.producer_epoch, each.sequence, each.base_offset, len_)
            for each in header.idempotent
            for len_ in [each.message_count]
        ] == expected
        for each in header.idempotent:
            assert each.flags & BatchFlag.REQUEST_SEQUENCE
            assert each.topic_id == 9
            assert each.end_physical_offset == stamped.end_physical_offset


def test_a_single_publish_has_its_producer_in_the_header() -> None:
    batch = as_batch(Rows(1, [b"a", b"b"], BORN, producer_id=7, producer_epoch=2, sequence=5))
    header = batch.header
    assert header.flags == BatchFlag.REQUEST_SEQUENCE
    assert (header.producer_id, header.producer_epoch, header.sequence) == (7, 2, 5)
    assert header.born_timestamp_us == BORN
    assert header.idempotent == (header,)


def test_without_producers_there_is_no_producer_column() -> None:
    batch = shared([Rows(1, [b"a"], BORN), Rows(1, [b"b"], BORN)])
    assert batch.header.flags == 0
    assert batch.header.idempotent == ()
    assert batch.total_size < shared([Rows(1, [b"a"], BORN), Rows(1, [b"b"], BORN + 1)]).total_size
