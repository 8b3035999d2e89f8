"""The messages of a file that `holdfast export` or another program wrote: Parquet, an Arrow IPC
file, or lines of JSON. The first bytes of the file show its form.

A Parquet or Arrow file needs the column `body`; it may have `key`, `tag`, `properties`, `queue` and
`born_timestamp`. All other columns are ignored.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from holdfast.cli.input.outgoing import LineError, Outgoing, read_json
from holdfast.cli.output.table_file import LEVELS, QUEUES

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET, _ARROW = b"PAR1", b"ARROW1"
_ROWS_AT_ONCE = 10_000


class RowError(LineError):
    """A row cannot be published as a message. `line` is the row's number, from 1."""

    def __str__(self) -> str:
        return f"row {self.line}: {self.reason}"


class QueueShape(NamedTuple):
    """The number of queues of a topic, and of its priority levels."""

    queue_count: int
    priority_levels: int


class TableFile:
    """An open file of messages. Use it in `with`.

    `shape` is that of the exported topic, or None if the file does not record it. `total` is the
    sum of the sizes of all messages: a row has the size 1, and a line of JSON its bytes.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError, and ValueError for a file that is damaged or has no
        bodies."""
        self._closing = ExitStack()
        self.shape: QueueShape | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._file = self._closing.enter_context(path.open("rb"))
        try:
            start = self._file.read(len(_ARROW))
            self._file.seek(0)
            self.in_bytes = not start.startswith((_PARQUET, _ARROW))
            if self.in_bytes:
                self.total = path.stat().st_size
            else:
                self._open_table(is_parquet=start.startswith(_PARQUET))
        except BaseException:
            self._closing.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _open_table(self, *, is_parquet: bool) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        if is_parquet:
            opened = self._closing.enter_context(parquet.ParquetFile(self._file))
            schema, self.total = opened.schema_arrow, opened.metadata.num_rows
            self._batches = opened.iter_batches(_ROWS_AT_ONCE, columns=_used_columns(schema))
        else:
            mapped = self._closing.enter_context(pa.memory_map(self._file.name))
            opened = self._closing.enter_context(pa.ipc.open_file(mapped))
            schema, numbers = opened.schema, range(opened.num_record_batches)
            self.total = sum(opened.get_batch(number).num_rows for number in numbers)
            self._batches = map(opened.get_batch, numbers)
        if "body" not in schema.names:
            raise ValueError(f"it has no column body, but {', '.join(schema.names)}")
        metadata: Mapping[bytes, bytes] = schema.metadata or {}
        if QUEUES in metadata:
            self.shape = QueueShape(int(metadata[QUEUES]), int(metadata.get(LEVELS, b"1")))

    def messages(self) -> Iterator[Outgoing]:
        """Yield the messages in order. Raises LineError or RowError for the first one that cannot
        be published, and ValueError if the file is damaged."""
        if self._batches is None:
            yield from read_json(self._file)
            return
        row = 0
        for batch in self._batches:
            yield from _messages_of(batch, row)
            row += len(batch)


def _used_columns(schema: "pa.Schema") -> list[str]:
    return [name for name in schema.names if name in _COLUMNS]


def _messages_of(batch: "pa.RecordBatch", first_row: int) -> Iterator[Outgoing]:
    names = _used_columns(batch.schema)
    columns = {name: _to_list(name, batch.column(name)) for name in names}
    missing = [None] * len(batch)
    rows = zip(*(columns.get(name, missing) for name in _COLUMNS), strict=True)
    for row, (body, key, tag, properties, queue, born_ms) in enumerate(rows, first_row + 1):
        if body is None:
            raise RowError(row, "its body is null")
        yield Outgoing(body, key, tag, dict(properties or ()), 1, None, None, queue, born_ms)


def _to_list(name: str, column: "pa.Array") -> list[Any]:
    """Return a column's values as Python objects. Raises ValueError for an unfit type."""
    import pyarrow as pa

    try:
        if name == "born_timestamp":
            # A null means that the message has no such time, which is stored as 0.
            stamps = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
            values = stamps.fill_null(0)
        else:
            values = column.cast(_types()[name])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"its column {name} is {column.type}: {error}") from error
    return list(values.to_pylist())


def _types() -> "Mapping[str, pa.DataType]":
    import pyarrow as pa

    return {
        "body": pa.binary(),
        "key": pa.string(),
        "tag": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
        "queue": pa.int64(),
    }


_COLUMNS = ("body", "key", "tag", "properties", "queue", "born_timestamp")
