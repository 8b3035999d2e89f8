"""read_arrow and iter_arrow of both clients against a real broker: the rows are the messages."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'holdfast[arrow]')")

from holdfast.client.async_client import AsyncClient  # noqa: E402
from holdfast.client.errors import (  # noqa: E402
    OffsetBeyondEnd,
    PackageMissing,
    UndecodableBody,
    UnknownQueue,
    UnknownTopic,
)
from holdfast.client.read.message import Message  # noqa: E402
from holdfast.client.sync_client import Client  # noqa: E402
from holdfast.testing import RunningBroker  # noqa: E402
from tests.holdfast.client.tables.mixed import publish_mixed  # noqa: E402

DEFAULT = [
    *("queue", "offset", "key", "tag", "properties", "body"),
    *("born_timestamp", "store_timestamp"),
]


@pytest.fixture
def client(shared_broker: RunningBroker) -> Iterator[Client]:
    with shared_broker.client() as client:
        yield client


def when(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def expected(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "message_id": message.message_id,
        "key": message.key,
        "tag": message.tag,
        "priority": None,
        "properties": list(message.properties.items()),
        "body": message.body,
        "born_timestamp": when(message.born_timestamp_ms),
        "store_timestamp": when(message.store_timestamp_ms),
    }


def messages_of(client: Client, topic: str, **given: Any) -> list[Message]:
    return [
        message
        for queue in range(3)
        for message in client.pull(topic, queue, follow=False, **given)
    ]


def test_a_table_has_all_messages_ordered_by_queue_and_offset(client: Client, topic: str) -> None:
    publish_mixed(client, topic)
    messages = messages_of(client, topic)
    table = client.read_arrow(topic)
    table.validate(full=True)
    assert table.column_names == DEFAULT
    assert table.to_pylist() == [
        {name: expected(message)[name] for name in DEFAULT} for message in messages
    ]
    names = list(expected(messages[0]))
    every = client.read_arrow(topic, columns=names)
    assert every.column_names == names
    assert every.to_pylist() == [expected(message) for message in messages]


def test_a_range_of_offsets(client: Client, topic: str) -> None:
    publish_mixed(client, topic)

    def offsets(*queue: int, **given: Any) -> list[tuple[int, int]]:
        table = client.read_arrow(topic, *queue, columns=["queue", "offset"], **given)
        return [(row["queue"], row["offset"]) for row in table.to_pylist()]

    assert offsets(1) == [(1, offset) for offset in range(40)]
    # The first and the last batch are cut.
    assert offsets(1, start_offset=5, end_offset=33) == [(1, offset) for offset in range(5, 33)]
    assert offsets(1, start_offset=40) == offsets(1, end_offset=0) == []
    assert offsets(start_offset={0: 38, 2: 40}, end_offset={1: 1}) == [(0, 38), (0, 39), (1, 0)]
    with pytest.raises(OffsetBeyondEnd):
        offsets(1, end_offset=41)
    with pytest.raises(UnknownQueue):
        offsets(3)


def test_a_range_of_times(client: Client, topic: str) -> None:
    publish_mixed(client, topic)
    messages = messages_of(client, topic)
    stamps = sorted({message.store_timestamp_ms for message in messages})
    for first, last in [*pairwise(stamps), (stamps[0], stamps[-1]), (0, stamps[-1] + 1)]:
        found = client.read_arrow(
            topic, columns=["body"], start_timestamp_ms=first, end_timestamp_ms=when(last)
        )
        assert found["body"].to_pylist() == [
            message.body for message in messages if first <= message.store_timestamp_ms < last
        ]


def test_a_table_has_the_messages_that_a_filter_selects(client: Client, topic: str) -> None:
    publish_mixed(client, topic)
    either: tuple[dict[str, Any], ...] = ({"tag": "red"}, {"filter": "a = '12'"})
    for given in either:
        messages = messages_of(client, topic, **given)
        assert 0 < len(messages) < 120
        assert client.read_arrow(topic, **given).to_pylist() == [
            {name: expected(message)[name] for name in DEFAULT} for message in messages
        ]
        # An end offset cuts them, too.
        cut = client.read_arrow(topic, 0, end_offset=20, columns=["offset"], **given)
        assert cut["offset"].to_pylist() == [
            message.offset for message in messages if message.queue == 0 and message.offset < 20
        ]


def test_bodies_as_text_and_as_json(client: Client, topic: str) -> None:
    publish_mixed(client, topic)
    text = client.read_arrow(topic, 0, columns=["body"], body="text")
    assert text.schema.field("body").type == pa.string()
    assert text["body"][1].as_py() == '{"id": 1, "name": "n1"}'
    schema = pa.schema([("id", pa.int32()), ("name", pa.string())])
    either: tuple[dict[str, Any], ...] = ({}, {"tag": "red,blue"})  # blocks, single messages
    for given in either:
        parsed = client.read_arrow(topic, 0, body=schema, **given)
        assert parsed["body"].to_pylist() == [{"id": n, "name": f"n{n}"} for n in range(40)]
    client.publish(topic, b"\xff", queue=0)
    for form, reason in (("text", "not UTF-8"), (schema, "not JSON of the schema")):
        with pytest.raises(UndecodableBody, match=reason) as error:
            client.read_arrow(topic, 0, columns=["body"], body=form)
        assert (error.value.queue, error.value.offset) == (0, 40)


def test_record_batches_come_one_after_the_other(client: Client, topic: str) -> None:
    publish_mixed(client, topic)
    with client.iter_arrow(topic, max_bytes=1) as reader:  # one stored batch for each request
        schema = reader.schema
        batches = list(reader)
    assert len(batches) >= 12
    assert pa.Table.from_batches(batches, schema).equals(client.read_arrow(topic))


def test_a_topic_without_messages_is_an_empty_table(client: Client, topic: str) -> None:
    client.create_topic(topic)
    table = client.read_arrow(topic, body="text")
    assert (len(table), table.column_names) == (0, DEFAULT)
    assert table.schema.field("body").type == pa.string()
    with pytest.raises(UnknownTopic):
        client.read_arrow(f"{topic}-missing")


def test_messages_that_are_published_meanwhile_are_not_read(client: Client, topic: str) -> None:
    publish_mixed(client, topic)
    with client.iter_arrow(topic, columns=["offset"], max_bytes=1) as reader:
        rows = len(next(reader))
        client.publish(topic, b"{}", queue=2)
        rows += sum(map(len, reader))
    assert rows == 120


async def test_the_asyncio_client_reads_the_same(
    client: Client, shared_broker: RunningBroker, topic: str
) -> None:
    publish_mixed(client, topic)
    table = client.read_arrow(topic)
    async with AsyncClient(shared_broker.url) as other:
        assert (await other.read_arrow(topic)).equals(table)
        reader = other.iter_arrow(topic, max_bytes=1)
        batches = [batch async for batch in reader]
    assert len(batches) >= 12
    assert pa.Table.from_batches(batches, reader.schema).equals(table)


def test_invalid_columns_and_bounds_are_refused(client: Client, topic: str) -> None:
    for given, reason in (
        ({"columns": ["key", "value"]}, "no column 'value'; the columns are topic, queue"),
        ({"columns": ["key", "key"]}, "named twice"),
        ({"body": "json"}, '"binary", "text" or a pyarrow.Schema'),
        ({"start_offset": 3}, "give queue= too"),
    ):
        with pytest.raises(ValueError, match=reason):
            client.read_arrow(topic, **given)
    with pytest.raises(TypeError, match=r"Client\.read_arrow\(\)"):
        client.read_arrow(topic, wrong=1)  # type: ignore[call-arg]


def test_a_missing_pyarrow_is_named(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.startswith("holdfast.client.tables.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [each for each in sys.modules if each.startswith("holdfast.arrow.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PackageMissing, match="pip install pyarrow"):
        client.read_arrow(topic)


# -- other libraries -------------------------------------------------------------------------


def test_pandas_reads_a_table(client: Client, topic: str) -> None:
    pytest.importorskip("pandas", reason="no pandas here (pip install pandas)")
    publish_mixed(client, topic)
    frame = client.read_arrow(topic, body="text").to_pandas()
    assert list(frame.columns) == DEFAULT
    assert frame.groupby("queue").size().to_dict() == {0: 40, 1: 40, 2: 40}
    assert frame["body"].iloc[1] == '{"id": 1, "name": "n1"}'
    assert frame["store_timestamp"].dtype.tz is not None


def test_polars_reads_a_table_and_a_stream(client: Client, topic: str) -> None:
    polars = pytest.importorskip("polars", reason="no polars here (pip install polars)")
    publish_mixed(client, topic)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    frame = polars.DataFrame(client.read_arrow(topic, body=schema))
    assert frame["body"].struct.field("id").sum() == 3 * sum(range(40))
    assert frame.filter(polars.col("key") == "k39").height == 3
    streamed = polars.DataFrame(client.iter_arrow(topic, columns=["offset", "tag"]))
    assert streamed.filter(polars.col("tag") == "red").height == 60


def test_duckdb_reads_a_table_and_a_stream(client: Client, topic: str) -> None:
    duckdb = pytest.importorskip("duckdb", reason="no duckdb here (pip install duckdb)")
    publish_mixed(client, topic)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    table = duckdb.from_arrow(client.read_arrow(topic, body=schema))
    sums = table.aggregate("tag, sum(body.id)").order("tag").fetchall()
    assert sums == [("blue", 3 * 380), ("red", 3 * 400)]
    stream = duckdb.from_arrow(client.iter_arrow(topic, columns=["offset", "tag"]).to_reader())
    assert stream.filter("tag = 'red'").aggregate("count(*)").fetchall() == [(60,)]


def test_a_reader_is_a_stream_of_arrow_data(client: Client, topic: str) -> None:
    publish_mixed(client, topic)
    stream = pa.RecordBatchReader.from_stream(client.iter_arrow(topic))
    assert stream.read_all().equals(client.read_arrow(topic))
