"""The Python client: `produce/` publishes, `read/` reads by offset, and `consume/` consumes in
groups. All three use `transport/`. `session/` sends and receives over links of AMQP, and
`channels/` runs callbacks in threads of the program over such links.

Each name is imported when it is first used. So a program that uses only a part of this package
(a Spark executor, for example) does not load the whole client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import errors
    from holdfast.client.async_client import AsyncClient
    from holdfast.client.channels.channel import Channel
    from holdfast.client.channels.confirmation import Confirmation
    from holdfast.client.channels.connection import Connection, connect
    from holdfast.client.channels.messages import ChannelMessage
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
    from holdfast.client.instrumentation import Instrumentation
    from holdfast.client.produce.producers import (
        AsyncProducer,
        BlockingSendHandle,
        Producer,
        SendHandle,
    )
    from holdfast.client.read.message import Message, MessageBatch
    from holdfast.client.read.readers import (
        AsyncOffsetConsumer,
        AsyncReader,
        OffsetConsumer,
        Reader,
    )
    from holdfast.client.read.results import PublishResult, PullResult, StoredOffsets
    from holdfast.client.session.blocking import Receiver, Sender, Session
    from holdfast.client.session.links import AsyncReceiver, AsyncSender
    from holdfast.client.session.messages import LinkMessage
    from holdfast.client.session.session import AsyncSession
    from holdfast.client.sync_client import Client

__all__ = ["AsyncClient", "Client", "Message", "MessageBatch", "PublishResult", "PullResult"]
__all__ += ["StoredOffsets", "AsyncReader", "Reader", "AsyncOffsetConsumer", "OffsetConsumer"]
__all__ += ["AsyncProducer", "Producer", "SendHandle", "BlockingSendHandle"]
__all__ += ["AsyncConsumer", "Consumer", "Delivery", "ReceivedMessage", "ReceiveResult", "Settling"]
__all__ += ["BrokerInfo", "OffsetsReset", "QueueDescription", "Split", "TopicConfig"]
__all__ += ["TopicDescription", "TopicSummary", "Fairness", "GroupConfig", "GroupDescription"]
__all__ += ["GroupMember", "GroupQueue", "GroupSummary", "GroupTopic", "Served", "Subscription"]
__all__ += ["AsyncSession", "AsyncSender", "AsyncReceiver", "LinkMessage"]
__all__ += ["Session", "Sender", "Receiver"]
__all__ += ["Channel", "ChannelMessage", "Confirmation", "Connection", "connect"]
__all__ += ["Instrumentation", "HoldfastError", "errors"]

#: The modules of the names in __all__. All other names are in `descriptions`.
_MODULES = {
    "async_client": ("AsyncClient",),
    "sync_client": ("Client",),
    "read.message": ("Message", "MessageBatch"),
    "read.results": ("PublishResult", "PullResult", "StoredOffsets"),
    "read.readers": ("AsyncReader", "Reader", "AsyncOffsetConsumer", "OffsetConsumer"),
    "produce.producers": ("AsyncProducer", "Producer", "SendHandle", "BlockingSendHandle"),
    "consume.consumer": ("AsyncConsumer", "Consumer"),
    "consume.delivery": ("Delivery", "ReceivedMessage", "ReceiveResult", "Settling"),
    "session.session": ("AsyncSession",),
    "session.links": ("AsyncReceiver", "AsyncSender"),
    "session.messages": ("LinkMessage",),
    "session.blocking": ("Receiver", "Sender", "Session"),
    "channels.channel": ("Channel",),
    "channels.messages": ("ChannelMessage",),
    "channels.confirmation": ("Confirmation",),
    "channels.connection": ("Connection", "connect"),
    "errors": ("HoldfastError",),
    "instrumentation": ("Instrumentation",),
}
_MODULE_BY_NAME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return import_module("holdfast.client.errors")
    module = import_module(f"holdfast.client.{_MODULE_BY_NAME.get(name, 'descriptions')}")
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
