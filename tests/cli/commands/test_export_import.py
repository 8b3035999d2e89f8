"""holdfast export and holdfast import: what is exported is imported with nothing changed."""

import errno
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'holdfast[arrow]')")
from pyarrow import parquet  # noqa: E402

from holdfast.cli.output.table_file import TopicShape, open_table_file  # noqa: E402
from holdfast.client import Client, Message  # noqa: E402
from holdfast.testing import RunningBroker  # noqa: E402
from tests.cli.conftest import Run, assert_refused, lines  # noqa: E402

FORMS = ["parquet", "arrow", "ndjson"]
BODIES = [b"text", b"", b"\xff\x00binary", "\x00é\n".encode(), b'{"a": 1}', b"x" * 70_000]


@pytest.fixture
def client(shared_broker: RunningBroker) -> Iterator[Client]:
    with shared_broker.client() as client:
        yield client


@pytest.fixture
def source(holdfast: Run, client: Client) -> list[Message]:
    """The messages of topic `source`: three queues, all kinds of messages, in several batches."""
    client.create_topic("source", queues=3)
    with client.producer("source") as producer:
        for number in range(300):
            producer.send(
                BODIES[number % len(BODIES)],
                key=f"kéy-{number % 11}" if number % 5 else None,
                tag=["red", "blue", None][number % 3],
                properties={"number": str(number), "é": ""} if number % 7 else None,
                queue=number % 3 if number % 10 == 0 else None,
                born_timestamp_ms=None if number % 4 else 1_700_000_000_000 - number,
            )
            if number % 50 == 0:
                producer.flush()
        producer.send(b"not born", born_timestamp_ms=0)
    return messages_of(client, "source")


def messages_of(client: Client, topic: str) -> list[Message]:
    return [
        message
        for queue in range(client.describe_topic(topic).queue_count)
        for message in client.pull(topic, queue, follow=False)
    ]


def content(message: Message) -> tuple[Any, ...]:
    """Return all that an import restores."""
    properties = tuple(message.properties.items())
    return message.key, message.tag, properties, message.body, message.born_timestamp_ms


def by_key(messages: list[Message]) -> dict[str | None, list[tuple[Any, ...]]]:
    found = defaultdict(list)
    for message in messages:
        found[message.key].append(content(message))
    return found


def places(messages: list[Message]) -> list[tuple[int, Any]]:
    return [(message.queue, content(message)) for message in messages]


@pytest.mark.parametrize("form", FORMS)
def test_an_import_restores_what_was_exported(
    holdfast: Run, client: Client, source: list[Message], tmp_path: Path, form: str
) -> None:
    file = str(tmp_path / f"messages.{form}")
    (exported,) = lines(holdfast("export", "source", "--output", file).stdout)
    assert (exported["topic"], exported["messages"]) == ("source", 301)
    assert exported["bytes"] == Path(file).stat().st_size
    (imported,) = lines(holdfast("import", "copy", file, "--durability", "fsync").stdout)
    assert (imported["messages"], imported["durable"]) == (301, True)
    assert imported["bytes"] == sum(len(message.body) for message in source)
    copied = messages_of(client, "copy")
    if form == "ndjson":  # such a file does not record the number of queues
        before, after = by_key(source), by_key(copied)
        assert sorted(map(repr, after.pop(None))) == sorted(map(repr, before.pop(None)))
        assert after == before
    else:
        assert client.describe_topic("copy").queue_count == 3
        assert places(copied) == places(source)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("queues", [1, 3, 5])
def test_messages_with_one_key_stay_in_order_in_any_number_of_queues(
    holdfast: Run, client: Client, tmp_path: Path, form: str, queues: int
) -> None:
    client.create_topic("source", queues=3)
    with client.producer("source") as producer:
        for number in range(200):
            producer.send(b"%d" % number, key=f"k{number % 7}" if number % 2 else None)
    client.create_topic("copy", queues=queues)
    holdfast("export", "source", "--output", str(tmp_path / "f"), "--format", form)
    holdfast("import", "copy", str(tmp_path / "f"))
    source, copied = messages_of(client, "source"), messages_of(client, "copy")
    assert len(copied) == 200
    for key, found in by_key(source).items():
        if key is not None:
            assert by_key(copied)[key] == found
            assert len({message.queue for message in copied if message.key == key}) == 1
    # Messages without a key that were in one queue are in one queue, in their order.
    for queue in range(3):
        keyless = [m.body for m in source if m.queue == queue and m.key is None]
        target = [m.body for m in copied if m.queue == queue % queues and m.key is None]
        assert [body for body in target if body in keyless] == keyless


def test_a_topic_with_priorities_is_created_again(
    holdfast: Run, client: Client, tmp_path: Path
) -> None:
    client.create_topic("levels", queues=2, priority_levels=3)
    with client.producer("levels") as producer:
        for number in range(60):
            producer.send(b"%d" % number, key=f"k{number % 4}", priority=number % 10)
    file = str(tmp_path / "f.parquet")
    holdfast("export", "levels", "--output", file)
    holdfast("import", "copy", file)
    config = client.describe_topic("copy").config
    assert (client.describe_topic("copy").queue_count, config.priority_levels) == (6, 3)
    assert places(messages_of(client, "copy")) == places(messages_of(client, "levels"))


def test_a_range_is_exported(holdfast: Run, client: Client, tmp_path: Path) -> None:
    client.create_topic("source", queues=2)
    for number in range(20):
        client.publish("source", b"%d" % number, queue=number % 2)
    stamps = [message.store_timestamp_ms for message in messages_of(client, "source")]
    file = tmp_path / "f.parquet"

    def exported(*arguments: str) -> list[tuple[int, int]]:
        holdfast("export", "source", "--output", str(file), "--overwrite", *arguments)
        rows = parquet.read_table(file).to_pylist()
        return [(row["queue"], row["offset"]) for row in rows]

    every = [(queue, offset) for queue in range(2) for offset in range(10)]
    assert exported() == exported("--from", "-1h", "--to", "now") == every
    assert exported("--queue", "1") == every[10:]
    assert exported("--queue", "1", "--from", "3", "--to", "5") == [(1, 3), (1, 4)]
    assert exported("--to", str(stamps[5])) == [
        place for place, stamp in zip(every, stamps, strict=True) if stamp < stamps[5]
    ]
    assert exported("--to", "-1h") == []


def test_lines_of_json_are_those_that_pull_prints(
    holdfast: Run, source: list[Message], tmp_path: Path
) -> None:
    file = tmp_path / "f.jsonl"
    holdfast("export", "source", "--output", str(file))
    found = {line["message_id"]: line for line in lines(file.read_text())}
    pulled = {line["message_id"]: line for line in lines(holdfast("pull", "source").stdout)}
    assert found == pulled


def test_a_file_records_its_topic(
    holdfast: Run, client: Client, source: list[Message], tmp_path: Path
) -> None:
    for form in ("parquet", "arrow"):
        file = tmp_path / f"f.{form}"
        holdfast("export", "source", "--output", str(file))
        if form == "parquet":
            table = parquet.read_table(file)
        else:
            table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        assert table.schema.metadata[b"holdfast.topic"] == b"source"
        assert table.schema.metadata[b"holdfast.queues"] == b"3"
        assert table.cast(table.schema.remove_metadata()).equals(client.read_arrow("source"))


def test_a_table_of_another_program_is_imported(
    holdfast: Run, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "f.parquet"
    parquet.write_table(
        pa.table({"body": ["one", "two"], "key": ["k", None], "more": [1, 2]}), file
    )
    holdfast("import", "copy", str(file))
    copied = messages_of(client, "copy")
    assert sorted((m.body, m.key) for m in copied) == [(b"one", "k"), (b"two", None)]
    assert all(message.born_timestamp_ms > 1_700_000_000_000 for message in copied)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--output", "f.csv"], "'f.csv' does not show the form: give --format"),
        (["--output", "f.arrow", "--from", "3"], "An offset needs a queue"),
        (["--output", "f.arrow", "--from", "latest"], "nothing between --from and --to"),
        (["--output", "f.arrow", "--from", "now", "--to", "-1h"], "nothing between"),
        (["--output", "exists.arrow"], "'exists.arrow' exists: give --overwrite"),
    ],
)
def test_wrong_usage_of_export(
    holdfast: Run,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    text: str,
) -> None:
    client.create_topic("source")
    monkeypatch.chdir(tmp_path)
    Path("exists.arrow").write_text("before")
    assert_refused(holdfast("export", "source", *arguments), 2, text)
    assert [path.name for path in tmp_path.iterdir()] == ["exists.arrow"]
    assert Path("exists.arrow").read_text() == "before"


def test_a_failed_export_leaves_no_file(holdfast: Run, client: Client, tmp_path: Path) -> None:
    assert_refused(holdfast("export", "none", "--output", str(tmp_path / "f.arrow")), 4)
    client.create_topic("source", queues=1)
    file = tmp_path / "f.arrow"
    file.write_text("before")
    past_the_end = ("--queue", "0", "--from", "0", "--to", "9")
    assert_refused(
        holdfast("export", "source", "--output", str(file), "--overwrite", *past_the_end), 4
    )
    assert [path.name for path in tmp_path.iterdir()] == ["f.arrow"]
    assert file.read_text() == "before"


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "f.ndjson"
    batch = pa.record_batch({"queue": [0]})
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*f\.ndjson'"),
        open_table_file(file, "ndjson", batch.schema, TopicShape("orders", 1, 1)),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_times_are_written_as_json_without_a_time_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Once pyarrow looked up the zone for each time, and made an ArrowInvalid of Ctrl-C meanwhile.
    monkeypatch.setitem(sys.modules, "zoneinfo", None)
    monkeypatch.setitem(sys.modules, "pytz", None)
    file = tmp_path / "f.ndjson"
    times = pa.array([1_700_000_000_123_000, None], pa.timestamp("us", tz="UTC"))
    batch = pa.record_batch({"queue": [0, 1], "born_timestamp": times})
    with open_table_file(file, "ndjson", batch.schema, TopicShape("orders", 2, 1)) as write:
        write(batch)
    assert [row["born_timestamp_ms"] for row in map(json.loads, file.read_text().splitlines())] == [
        1_700_000_000_123,
        0,
    ]


def test_a_file_without_messages_creates_no_topic(
    holdfast: Run, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    file.write_text("neither Parquet nor Arrow nor JSON\n")
    done = holdfast("import", "never", str(file))
    assert_refused(done, 1, "f, line 1: it is not a message")
    assert "were published" not in done.stderr
    assert "never" not in [topic.topic for topic in client.topics()]


def test_files_that_are_no_messages_are_refused(
    holdfast: Run, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    parquet.write_table(pa.table({"value": ["one"]}), file)
    assert_refused(holdfast("import", "copy", str(file)), 2, "no column body, but value")
    parquet.write_table(pa.table({"body": ["one", None]}), file)
    assert_refused(holdfast("import", "copy", str(file)), 1, "row 2: its body is null; the mess")
    parquet.write_table(pa.table({"body": ["one", "two"], "key": ["k", ""]}), file)
    assert_refused(holdfast("import", "copy", str(file)), 2, "message 2: an empty key")
    parquet.write_table(pa.table({"body": ["one"], "properties": [7]}), file)
    assert_refused(holdfast("import", "copy", str(file)), 2, "its column properties is int64")
    file.write_bytes(file.read_bytes()[:-30])
    assert_refused(holdfast("import", "copy", str(file)), 2, "f: ")
    file.write_text(json.dumps({"body": "x"}) + "\n" + '{"other": 1}\n')
    assert_refused(holdfast("import", "copy", str(file)), 1, "line 2: it is not a message")
    assert_refused(holdfast("import", "copy", str(tmp_path / "none")), 2, "does not exist")
