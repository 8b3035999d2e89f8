"""The Python client: `produce/` publishes, `read/` reads by offset, and `consume/` consumes in
groups. All three use `transport/`.

Each name is imported when it is first used. So a program that uses only a part of this package
(a Spark executor, for example) does not load the whole client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import errors
    from holdfast.client.async_client import AsyncClient
    from holdfast.client.consume.consumer import AsyncConsumer, Consumer
    from holdfast.client.consume.delivery import Delivery, ReceivedMessage, ReceiveResult, Settling
    from holdfast.client.descriptions import (
        BrokerInfo,
        Fairness,
        GroupConfig,
        GroupDescription,
        GroupMember,
        GroupQueue,
        GroupSummary,
        GroupTopic,
        OffsetsReset,
        QueueDescription,
        Served,
        Split,
        Subscription,
        TopicConfig,
        TopicDescription,
        TopicSummary,
    )
    from holdfast.client.errors import HoldfastError
    from holdfast.client.produce.producers import (
        AsyncProducer,
        BlockingSendHandle,
        Producer,
        SendHandle,
    )
    from holdfast.client.read.message import (
        Message,
        MessageBatch,
        PublishResult,
        PullResult,
        StoredOffsets,
    )
    from holdfast.client.read.readers import (
        AsyncOffsetConsumer,
        AsyncReader,
        OffsetConsumer,
        Reader,
    )
    from holdfast.client.sync_client import Client

__all__ = [
    "AsyncClient",
    "Client",
    "Message",
    "MessageBatch",
    "PublishResult",
    "PullResult",
    "StoredOffsets",
    "AsyncProducer",
    "Producer",
    "SendHandle",
    "BlockingSendHandle",
    "AsyncReader",
    "Reader",
    "AsyncConsumer",
    "Consumer",
    "Delivery",
    "ReceivedMessage",
    "ReceiveResult",
    "Settling",
    "AsyncOffsetConsumer",
    "OffsetConsumer",
    "BrokerInfo",
    "Fairness",
    "GroupConfig",
    "GroupDescription",
    "GroupMember",
    "GroupQueue",
    "GroupSummary",
    "GroupTopic",
    "OffsetsReset",
    "QueueDescription",
    "Served",
    "Split",
    "Subscription",
    "TopicConfig",
    "TopicDescription",
    "TopicSummary",
    "HoldfastError",
    "errors",
]

_MODULES = {
    "AsyncClient": "async_client",
    "Client": "sync_client",
    "Message": "read.message",
    "MessageBatch": "read.message",
    "PublishResult": "read.message",
    "PullResult": "read.message",
    "StoredOffsets": "read.message",
    "AsyncProducer": "produce.producers",
    "Producer": "produce.producers",
    "SendHandle": "produce.producers",
    "BlockingSendHandle": "produce.producers",
    "AsyncReader": "read.readers",
    "Reader": "read.readers",
    "AsyncConsumer": "consume.consumer",
    "Consumer": "consume.consumer",
    "Delivery": "consume.delivery",
    "ReceivedMessage": "consume.delivery",
    "ReceiveResult": "consume.delivery",
    "Settling": "consume.delivery",
    "AsyncOffsetConsumer": "read.readers",
    "OffsetConsumer": "read.readers",
    "BrokerInfo": "descriptions",
    "Fairness": "descriptions",
    "GroupConfig": "descriptions",
    "GroupDescription": "descriptions",
    "GroupMember": "descriptions",
    "GroupQueue": "descriptions",
    "GroupSummary": "descriptions",
    "GroupTopic": "descriptions",
    "OffsetsReset": "descriptions",
    "QueueDescription": "descriptions",
    "Served": "descriptions",
    "Split": "descriptions",
    "Subscription": "descriptions",
    "TopicConfig": "descriptions",
    "TopicDescription": "descriptions",
    "TopicSummary": "descriptions",
    "HoldfastError": "errors",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("holdfast.client.errors")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"holdfast.client.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
