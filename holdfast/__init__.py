"""Holdfast: a log-structured message broker with long polling.

The client's names are available here: `holdfast.Client`, `holdfast.AsyncClient`,
`holdfast.errors`, `holdfast.connect`. They are imported at their first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import (
        AsyncClient,
        Channel,
        ChannelMessage,
        Client,
        Connection,
        Delivery,
        GroupDescription,
        HoldfastError,
        Message,
        MessageBatch,
        PublishResult,
        PullResult,
        StoredOffsets,
        TopicDescription,
        connect,
        errors,
    )

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Channel",
    "ChannelMessage",
    "Client",
    "Connection",
    "Delivery",
    "GroupDescription",
    "Message",
    "MessageBatch",
    "PublishResult",
    "PullResult",
    "StoredOffsets",
    "TopicDescription",
    "HoldfastError",
    "connect",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast import client

    value = getattr(client, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
