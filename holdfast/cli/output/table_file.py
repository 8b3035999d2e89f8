"""Files of exported messages: Parquet, Arrow (IPC file), or lines of JSON as `pull` prints them.

A file gets its name only when it is complete. The metadata of a Parquet or Arrow file records the
topic and its number of queues, so that `import` can restore each message to its queue.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

Form = Literal["parquet", "arrow", "ndjson"]

#: The last part of a file's name -> its form.
FORM_BY_SUFFIX: Mapping[str, Form] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}

#: A row group of a Parquet file has at least this many bytes, except the last one.
_ROW_GROUP_BYTES = 64 * 1024 * 1024
#: Names in the metadata of a schema.
TOPIC, QUEUES, LEVELS = b"holdfast.topic", b"holdfast.queues", b"holdfast.priority_levels"

Write = Callable[["pa.RecordBatch"], None]


class TopicShape(NamedTuple):
    """The topic of the messages in a file."""

    topic: str
    queue_count: int
    priority_levels: int


@contextmanager
def open_table_file(
    path: Path, form: Form, schema: "pa.Schema", shape: TopicShape
) -> Iterator[Write]:
    """Yield the function that writes a record batch to the file. If the context ends with an error,
    there is no file, and an existing file is unchanged. Raises OSError, which names the file."""
    part = path.with_name(f".{path.name}.part")
    metadata = {
        TOPIC: shape.topic.encode(),
        QUEUES: b"%d" % shape.queue_count,
        LEVELS: b"%d" % shape.priority_levels,
    }
    try:
        with part.open("wb") as file:
            with _WRITERS[form](file, schema.with_metadata(metadata)) as write:
                yield write
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a failed write() has no name, and pyarrow's error neither
        raise


@contextmanager
def _write_parquet(file: BinaryIO, schema: "pa.Schema") -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow import parquet

    waiting: list[pa.RecordBatch] = []

    def write_waiting() -> None:
        if waiting:
            table = pa.Table.from_batches(waiting, schema)
            writer.write_table(table, max(len(table), 1))
            waiting.clear()

    def write(batch: pa.RecordBatch) -> None:
        waiting.append(batch.replace_schema_metadata(schema.metadata))
        if sum(each.nbytes for each in waiting) >= _ROW_GROUP_BYTES:
            write_waiting()

    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        yield write
        write_waiting()


@contextmanager
def _write_arrow(file: BinaryIO, schema: "pa.Schema") -> Iterator[Write]:
    import pyarrow as pa

    with pa.ipc.new_file(file, schema) as writer:
        yield lambda batch: writer.write_batch(batch.replace_schema_metadata(schema.metadata))


@contextmanager
def _write_ndjson(file: BinaryIO, schema: "pa.Schema") -> Iterator[Write]:
    import msgspec
    import pyarrow as pa

    encoder = msgspec.json.Encoder()
    # Integers instead of datetimes: pyarrow makes a datetime of each with the zone's name, and
    # while it looks up the zone it turns a KeyboardInterrupt into an ArrowInvalid.
    plain = pa.schema(
        field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field
        for field in schema.remove_metadata()
    )

    def write(batch: "pa.RecordBatch") -> None:
        rows = batch.cast(plain).to_pylist()
        file.write(encoder.encode_lines([_json_object(row) for row in rows]))

    yield write


def _json_object(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row, whose times are in microseconds, as `pull` prints a message. A body that is not
    UTF-8 becomes base64."""
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith("_timestamp"):
            fields[f"{name}_ms"] = 0 if value is None else round(value / 1000)
        elif name == "properties":
            fields[name] = dict(value)
        elif name == "body":
            try:
                fields["body"] = value.decode()
            except UnicodeDecodeError:
                fields["body_base64"] = value  # msgspec writes bytes as base64
        else:
            fields[name] = value
    return fields


_WRITERS: Mapping[Form, Callable[[BinaryIO, "pa.Schema"], Any]] = {
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "ndjson": _write_ndjson,
}
