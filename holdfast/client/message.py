"""The former name of `holdfast.client.read.message`. Older programs and pickles still use it."""

from holdfast.client.read import message as _message
from holdfast.client.read.message import (
    LoneMessage,
    Message,
    MessageBatch,
    MessageList,
    texts_of,
)
from holdfast.client.read.results import PublishResult, PullResult, Skipped, StoredOffsets

__all__ = ["PublishResult", "StoredOffsets", "Skipped", "PullResult", "Message", "LoneMessage"]
__all__ += ["MessageList", "MessageBatch", "texts_of"]


def __getattr__(name: str) -> object:  # names that are newer than this module
    return getattr(_message, name)
