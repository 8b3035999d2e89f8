"""Tables from the files of a data directory equal those from its broker."""

import errno
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'holdfast[arrow]')")

from holdfast.client.async_client import AsyncClient  # noqa: E402
from holdfast.client.errors import (  # noqa: E402
    FilesUnreadable,
    OffsetBeyondEnd,
    RecordCorrupt,
    UnknownQueue,
    UnknownTopic,
)
from holdfast.client.sync_client import Client  # noqa: E402
from holdfast.commitlog.format import batch_run, header_table  # noqa: E402
from holdfast.commitlog.format.checksum import crc32c_of_ranges  # noqa: E402
from holdfast.log_files import file_reading, segment_file  # noqa: E402
from holdfast.log_files.segment_file import SegmentFile  # noqa: E402
from holdfast.testing import TEST_ARGUMENTS, RunningBroker  # noqa: E402
from tests.holdfast.client.tables.mixed import publish_mixed  # noqa: E402


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("tables") / "data", TEST_ARGUMENTS) as broker:
        with broker.client() as client:
            publish_mixed(client, "mixed")
        yield broker


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of no broker: no request may be sent."""
    with Client("http://127.0.0.1:1") as client:
        yield client


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"queue": 1, "start_offset": 5, "end_offset": 33},
        {"start_offset": {0: 38}, "end_offset": {1: 1, 2: 0}},
        {"tag": "red", "columns": ["tag", "offset", "body"], "body": "text"},
        {"tag": "red,none", "end_offset": {0: 21}},
        {"body": pa.schema([("id", pa.int64())]), "tag": "blue"},
        {"columns": ["topic", "message_id", "priority", "properties"]},
    ],
)
def test_the_files_have_the_rows_of_the_broker(
    broker: RunningBroker, client: Client, given: dict[str, Any]
) -> None:
    with broker.client() as served:
        expected = served.read_arrow("mixed", **given)
    found = client.read_arrow("mixed", path=broker.data_dir, **given)
    assert len(found) > 0
    assert found.schema.equals(expected.schema)
    assert found.to_pylist() == expected.to_pylist()


def test_a_range_of_times_from_files(broker: RunningBroker, client: Client) -> None:
    path = broker.data_dir
    table = client.read_arrow("mixed", path=path, columns=["store_timestamp", "queue", "offset"])
    stamps = sorted(set(table["store_timestamp"].to_pylist()))
    for first, last in ((stamps[0], stamps[-1]), (stamps[1], stamps[-1]), (stamps[1], stamps[1])):
        found = client.read_arrow(
            "mixed",
            path=str(path),
            columns=["store_timestamp", "queue", "offset"],
            start_timestamp_ms=first,
            end_timestamp_ms=last,
        )
        assert found.to_pylist() == [
            row for row in table.to_pylist() if first <= row["store_timestamp"] < last
        ]


async def test_the_asyncio_client_reads_files(broker: RunningBroker, client: Client) -> None:
    expected = client.read_arrow("mixed", path=broker.data_dir)
    async with AsyncClient("http://127.0.0.1:1") as other:
        assert (await other.read_arrow("mixed", path=broker.data_dir)).equals(expected)
        reader = other.iter_arrow("mixed", path=broker.data_dir)
        batches = [batch async for batch in reader]
    assert pa.Table.from_batches(batches, reader.schema).equals(expected)


def test_what_the_files_do_not_have_is_refused(
    broker: RunningBroker, client: Client, tmp_path: Path
) -> None:
    path = broker.data_dir
    with pytest.raises(UnknownTopic, match="'missing'"):
        client.read_arrow("missing", path=path)
    with pytest.raises(UnknownQueue, match="no queue 3"):
        client.read_arrow("mixed", 3, path=path)
    with pytest.raises(OffsetBeyondEnd):
        client.read_arrow("mixed", 0, end_offset=41, path=path)
    with pytest.raises(FilesUnreadable, match=r"cannot be read here: commitlog: No such file"):
        client.read_arrow("mixed", path=tmp_path)
    with pytest.raises(ValueError, match="only a broker evaluates filter="):
        client.read_arrow("mixed", path=path, filter="a = '1'")


def test_files_are_refused_on_a_system_that_cannot_open_them_safely(
    broker: RunningBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.O_PATH")
    with pytest.raises(FilesUnreadable, match="only be read on Linux"):
        client.read_arrow("mixed", path=broker.data_dir)


def test_an_interrupted_reading_does_not_end_as_if_it_were_complete(
    broker: RunningBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    reader = client.iter_arrow("mixed", path=broker.data_dir)
    with monkeypatch.context() as here:
        here.setattr(file_reading, "CUT_BYTES", 0)
        here.setattr(SegmentFile, "read_into", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(reader)
    with pytest.raises(FilesUnreadable, match="interrupted"):
        next(reader)


def test_damaged_messages_are_refused_or_skipped(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data"
    with RunningBroker(path, TEST_ARGUMENTS) as broker, broker.client() as served:
        served.create_topic("damaged", queues=1)
        for number in range(5):
            served.publish("damaged", f"body-{number}")
    (segment,) = (each for each in (path / "commitlog").iterdir() if b"body-2" in each.read_bytes())
    content = bytearray(segment.read_bytes())
    content[content.index(b"body-2")] ^= 1
    segment.write_bytes(content)
    with pytest.raises(RecordCorrupt, match="offsets 2 to 3 of queue 0 of damaged") as error:
        client.read_arrow("damaged", path=path)
    assert error.value.next_offset == 3
    with caplog.at_level(logging.WARNING, "holdfast.client"):
        table = client.read_arrow("damaged", path=path, skip_corrupt=True)
    assert table["body"].to_pylist() == [b"body-0", b"body-1", b"body-3", b"body-4"]
    assert "skipped: offsets 2 to 3" in caplog.text


@pytest.fixture(scope="module")
def large_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with blocks of 64 KiB and more in two queues."""
    path = tmp_path_factory.mktemp("large") / "data"
    with RunningBroker(path, TEST_ARGUMENTS) as broker, broker.client() as served:
        served.create_topic("large", queues=2)
        for number in range(12):
            with served.producer("large", number % 2) as producer:
                for row in range(8):
                    producer.send(b"%03d" % (8 * number + row) * 3000, key=f"k{row}")
    return path


@pytest.fixture(params=["ext4", "nfs4"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    monkeypatch.setattr(segment_file, "file_system_of", lambda _: name)
    return name


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("this way of reading is not expected here")


def test_large_blocks_are_mapped_only_on_local_file_systems(
    client: Client, large_blocks: Path, file_system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if file_system == "ext4":
        monkeypatch.setattr(SegmentFile, "read_into", refuse)
    else:
        monkeypatch.setattr("mmap.mmap", refuse)
    table = client.read_arrow("large", path=large_blocks)
    assert table["body"].to_pylist() == [
        b"%03d" % (8 * number + row) * 3000
        for queue in range(2)
        for number in range(queue, 12, 2)
        for row in range(8)
    ]
    assert table["key"].to_pylist() == [f"k{row}" for row in range(8)] * 12
    with client.iter_arrow("large", path=large_blocks) as batches:
        assert pa.Table.from_batches(batches, table.schema).equals(table)
    part: dict[str, Any] = {"queue": 1, "start_offset": 5, "end_offset": 33, "body": "text"}
    found = client.read_arrow("large", path=large_blocks, **part)
    assert found["offset"].to_pylist() == list(range(5, 33))
    binary = client.read_arrow("large", path=large_blocks, **{**part, "body": "binary"})
    assert found["body"].cast(pa.binary()).equals(binary["body"])


def test_a_table_outlives_the_files_that_it_is_from(
    large_blocks: Path, file_system: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(large_blocks, copy)
    with Client("http://127.0.0.1:1") as client:
        table = client.read_arrow("large", path=copy)
        expected = client.read_arrow("large", path=large_blocks)
    shutil.rmtree(copy)
    assert table.equals(expected)


def test_damaged_large_blocks_are_refused_or_skipped(
    client: Client, large_blocks: Path, file_system: str, tmp_path: Path
) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(large_blocks, path)
    body = b"033" * 3000  # in queue 0, the block with offsets 16 to 23
    (segment,) = (each for each in (path / "commitlog").iterdir() if body in each.read_bytes())
    content = bytearray(segment.read_bytes())
    content[content.index(body)] ^= 1
    segment.write_bytes(content)
    with pytest.raises(RecordCorrupt, match="offsets 16 to 24 of queue 0 of large"):
        client.read_arrow("large", path=path)
    table = client.read_arrow("large", 0, path=path, skip_corrupt=True)
    assert table["offset"].to_pylist() == [*range(16), *range(24, 48)]


def test_a_file_is_read_if_the_kernel_refuses_to_map_it(
    client: Client, large_blocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = client.read_arrow("large", path=large_blocks)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "no room for a mapping")

    monkeypatch.setattr("mmap.mmap", refuse)
    assert client.read_arrow("large", path=large_blocks).equals(expected)


def test_the_payload_of_each_large_block_is_verified_once(
    client: Client, large_blocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_file, "file_system_of", lambda _: "ext4")
    verified: list[int] = []

    def noted(data: memoryview, starts: list[int], ends: list[int]) -> list[int]:
        verified.extend(end - start for start, end in zip(starts, ends, strict=True))
        return crc32c_of_ranges(data, starts, ends)

    monkeypatch.setattr(header_table, "crc32c_of_ranges", noted)
    monkeypatch.setattr(batch_run, "crc32c_of_ranges", noted)
    table = client.read_arrow("large", path=large_blocks)
    assert len(table) == 96
    assert len([size for size in verified if size >= 64 * 1024]) == 12
