"""The values that parameters of the client take. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from holdfast.client.timestamps import Time

Durability = Literal["fsync", "written"]
Mode = Literal["competing", "keyed", "single_active", "exclusive"]
Engine = Literal["sfq", "dwrr"]
Cost = Literal["count", "bytes", "time", "given"]
End = Literal["earliest", "latest"]

#: What is done with a delivery, and what the broker replies.
Verb = Literal["ack", "nack", "release", "extend", "reject"]
Status = Literal["done", "stale", "invalid"]
#: Which messages of a consumer are processed one after another.
SerialBy = Literal["key", "queue", "nothing"]

#: One topic, several topics, or a mapping of topics to weights or {"weight": ..., "filter": ...}.
Topics = str | Sequence[str] | Mapping[str, int | Mapping[str, Any]]
#: Offsets by queue, or one end of all queues.
Offsets = Mapping[int, int] | End
ResetTo = End | Time
SeekTo = ResetTo | Mapping[str, Mapping[int, int]]
