"""Convert single messages into an Arrow record batch. Pure.

This is for reads with a filter expression. Only the broker can evaluate the expression, so it sends
the matching messages, not whole blocks. The columns are the same as those of decoder.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.arrow.decoder import LOG_APPEND_TIME, SourceQueue, arrow_schema

Message = Mapping[str, Any]


def decode_messages(
    messages: Sequence[Message], source: SourceQueue, columns: Mapping[str, str]
) -> pa.RecordBatch:
    schema = arrow_schema(columns)
    arrays = [
        pa.array([_VALUES[name](message, source) for message in messages], schema.field(name).type)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _priority(_: Message, source: SourceQueue) -> int | None:
    return None if source.priority_levels is None else source.queue % source.priority_levels


def _headers(message: Message, _: SourceQueue) -> list[dict[str, object]] | None:
    properties = message["properties"] or {}
    return [{"key": name, "value": value.encode()} for name, value in properties.items()] or None


def _to_us(milliseconds: int | None) -> int | None:
    return milliseconds * 1000 if milliseconds else None


_VALUES: Mapping[str, Callable[[Message, SourceQueue], object]] = {
    "topic": lambda _, source: source.topic,
    "queue": lambda _, source: source.queue,
    "partition": lambda _, source: source.queue,
    "priority": _priority,
    "offset": lambda message, _: message["offset"],
    "message_id": lambda message, _: message["message_id"],
    "key": lambda message, _: message["key"],
    "tag": lambda message, _: message["tag"],
    "properties": lambda message, _: list((message["properties"] or {}).items()),
    "headers": _headers,
    "body": lambda message, _: message["body"],
    "value": lambda message, _: message["body"],
    "born_timestamp": lambda message, _: _to_us(message["born_timestamp_ms"]),
    "store_timestamp": lambda message, _: _to_us(message["store_timestamp_ms"]),
    "timestamp": lambda message, _: _to_us(message["store_timestamp_ms"]),
    "timestampType": lambda *_: LOG_APPEND_TIME,
}
