"""Convert the broker's msgpack messages into an Arrow record batch. Pure.

This is for reads with a filter expression. Only the broker can evaluate the expression, so it sends
the matching messages, not whole blocks. The columns are the same as those of decoder.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import pyarrow as pa

from holdfast.commitlog.format.batch_header import Buffer
from holdfast.spark.arrow.decoder import LOG_APPEND_TIME, arrow_schema
from holdfast.spark.errors import ReplyMismatch
from holdfast.spark.options.offsets import QueueRange

Message = Mapping[str, Any]


def unpack_messages(body: Buffer) -> list[Message]:
    """Return the messages in a pull's reply. Raises ReplyMismatch if it has no list of messages."""
    try:
        messages = msgpack.unpackb(body)["messages"]
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise ReplyMismatch(f"the broker's reply has no list of messages: {error!r}") from error
    assert isinstance(messages, list)
    return messages


def decode_messages(
    messages: Sequence[Message], source: QueueRange, columns: Mapping[str, str]
) -> pa.RecordBatch:
    schema = arrow_schema(columns)
    arrays = [
        pa.array([_VALUES[name](message, source) for message in messages], schema.field(name).type)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _priority(_: Message, source: QueueRange) -> int | None:
    return None if source.priority_levels is None else source.queue % source.priority_levels


def _headers(message: Message, _: QueueRange) -> list[dict[str, object]] | None:
    properties = message["properties"] or {}
    return [{"key": name, "value": value.encode()} for name, value in properties.items()] or None


def _to_us(milliseconds: int | None) -> int | None:
    return milliseconds * 1000 if milliseconds else None


_VALUES: Mapping[str, Callable[[Message, QueueRange], object]] = {
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
