"""Holdfast: a log-structured message broker with long polling.

The client's names are here: `holdfast.Client`, `holdfast.AsyncClient`, `holdfast.errors`. They
are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import (
        AsyncClient,
        Client,
        Delivery,
        HoldfastError,
        Message,
        MessageBatch,
        PublishResult,
        PullResult,
        StoredOffsets,
        errors,
    )

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "Delivery",
    "Message",
    "MessageBatch",
    "PublishResult",
    "PullResult",
    "StoredOffsets",
    "HoldfastError",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast import client

    value = getattr(client, name)
    globals()[name] = value
    return value
