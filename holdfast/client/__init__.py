"""The Python client. Its names are imported when they are first used, so that what needs no
client, such as a Spark executor, does not pay for one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import errors
    from holdfast.client.async_client import AsyncClient
    from holdfast.client.async_producer import AsyncProducer, SendHandle
    from holdfast.client.consumer import AsyncConsumer, Consumer
    from holdfast.client.delivery import Delivery, ReceivedMessage, ReceiveResult, Settling
    from holdfast.client.errors import HoldfastError
    from holdfast.client.message import (
        Message,
        MessageBatch,
        PublishResult,
        PullResult,
        StoredOffsets,
    )
    from holdfast.client.offset_consumer import AsyncOffsetConsumer, OffsetConsumer
    from holdfast.client.reader import AsyncReader, Reader
    from holdfast.client.sync_client import Client
    from holdfast.client.sync_producer import BlockingSendHandle, Producer

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
    "HoldfastError",
    "errors",
]

_MODULES = {
    "AsyncClient": "async_client",
    "Client": "sync_client",
    "Message": "message",
    "MessageBatch": "message",
    "PublishResult": "message",
    "PullResult": "message",
    "StoredOffsets": "message",
    "AsyncProducer": "async_producer",
    "Producer": "sync_producer",
    "SendHandle": "async_producer",
    "BlockingSendHandle": "sync_producer",
    "AsyncReader": "reader",
    "Reader": "reader",
    "AsyncConsumer": "consumer",
    "Consumer": "consumer",
    "Delivery": "delivery",
    "ReceivedMessage": "delivery",
    "ReceiveResult": "delivery",
    "Settling": "delivery",
    "AsyncOffsetConsumer": "offset_consumer",
    "OffsetConsumer": "offset_consumer",
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
