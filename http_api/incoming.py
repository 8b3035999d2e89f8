"""Messages as publishers write them, in each text format, made into one form and checked. Pure.

All or nothing: the first fault raises a Problem that names the message and the mend, before
anything is stored. Names of values in problems are those of the request: `messages[3].key`.
"""

import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import UNSET

from holdfast.commitlog.batch_check import MessageLimits
from holdfast.commitlog.priority import level_of, level_of_queue
from holdfast.consumequeue.errors import UnknownQueue
from holdfast.http_api.codecs import decode_json, decode_msgpack
from holdfast.http_api.message_count import lists_more_than
from holdfast.http_api.params import invalid
from holdfast.http_api.problems import Problem
from holdfast.http_api.types import (
    NewMessage,
    NewPackedMessage,
    publish_request,
)

M = TypeVar("M")


class Incoming(NamedTuple):
    """One message on its way in. A tuple: a request may bring a hundred thousand."""

    body: bytes
    key: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    queue: int | None = None
    ttl_ms: int | None = None
    priority: int | None = None


# -- formats -------------------------------------------------------------------------------


def from_json(body: bytes, limit: int) -> list[Incoming]:
    """Return the messages of a JSON body. Raises Problem."""
    if lists_more_than(limit, body):
        raise too_many_messages(limit)
    messages = _listed(decode_json, body, NewMessage, limit)
    return [_from_text(message, "messages[{}]", i) for i, message in enumerate(messages)]


def from_lines(body: bytes, limit: int) -> list[Incoming]:
    """Return the messages of an NDJSON body: an object a line, blank lines left out, of which
    there may be as many as there may be messages.

    Raises Problem.
    """
    if body.count(b"\n") > 2 * limit:  # more blank lines than anybody means
        raise too_many_messages(limit)
    lines = [(i, line) for i, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    _check_count(len(lines), limit)
    return [
        _from_text(decode_json(line, NewMessage, where=f"line {i}"), "line {}", i)
        for i, line in lines
    ]


def from_msgpack(body: bytes, limit: int) -> list[Incoming]:
    """Return the messages of a msgpack body. Raises Problem."""
    messages = _listed(decode_msgpack, body, NewPackedMessage, limit)
    return [_from_packed(message, i) for i, message in enumerate(messages)]


def _listed(
    decode: Callable[[bytes, Any], Any], body: bytes, message: Callable[..., M], limit: int
) -> list[M]:
    """Return a request's messages, at least one and at most `limit`."""
    try:
        messages: list[M] = decode(body, publish_request(message, limit)).messages
    except Problem as problem:
        if _TOO_LONG in problem.detail and problem.members.get("parameter") == "messages":
            raise too_many_messages(limit) from None
        raise
    _check_count(len(messages), limit)
    return messages


#: How msgspec words that a list is longer than its type allows.
_TOO_LONG = "Expected `array` of length <="


def _from_packed(message: NewPackedMessage, number: int) -> Incoming:
    raw = bytes(message.body)
    return Incoming(
        # A body may be text too; a type cannot say both.
        decode_msgpack(raw, str, where=f"messages[{number}].body").encode()
        if _is_text(raw)
        else decode_msgpack(raw, bytes, where=f"messages[{number}].body"),
        message.key,
        message.tag,
        message.properties,
        message.queue,
        message.ttl_ms,
        message.priority,
    )


def _is_text(raw: bytes) -> bool:
    """Return whether a msgpack value is a str, by its first byte."""
    return 0xA0 <= raw[0] <= 0xBF or raw[0] in (0xD9, 0xDA, 0xDB)


def _from_text(message: NewMessage, where: str, number: int) -> Incoming:
    """Return a message of a text format; `where` and its number name it in problems."""
    text, base64 = message.body, message.body_base64
    if text is not UNSET and base64 is UNSET:
        body = text.encode()
    elif text is UNSET and base64 is not UNSET:
        body = _from_base64(base64, where.format(number))
    else:
        raise _not_one_body(where.format(number), none=text is UNSET)
    return Incoming(
        body,
        message.key,
        message.tag,
        message.properties,
        message.queue,
        message.ttl_ms,
        message.priority,
    )


def _not_one_body(where: str, *, none: bool) -> Problem:
    if none:
        return Problem(
            "missing-parameter",
            f"{where} has no body; give it body (a text) or body_base64",
            parameter=f"{where}.body",
        )
    return Problem(
        "invalid-parameter",
        f"{where} has both body and body_base64; give it one of them",
        parameter=f"{where}.body_base64",
    )


def _from_base64(given: str, where: str) -> bytes:
    try:
        return binascii.a2b_base64(given, strict_mode=True)
    except ValueError as error:
        raise invalid(
            f"{where}.body_base64",
            given[:40],
            "base64 of RFC 4648 section 4, with its padding and without line ends",
            f"{where}.body_base64 is not base64 ({error})",
        ) from error


def _check_count(count: int, limit: int) -> None:
    if count == 0:
        raise Problem(
            "invalid-parameter",
            "there is no message to publish; send at least one",
            parameter="messages",
        )
    if count > limit:
        raise too_many_messages(limit)


def too_many_messages(limit: int) -> Problem:
    """Return the problem of a request with more than `limit` messages."""
    return Problem(
        "request-too-large",
        f"there are more than max_messages_per_request ({limit}) messages; send fewer at a time",
        limit=limit,
        limit_name="max_messages_per_request",
    )


# -- checks --------------------------------------------------------------------------------


def check_messages(messages: Sequence[Incoming], limits: MessageLimits) -> None:
    """Pass messages that a topic with these limits takes. Raises Problem."""
    for index, message in enumerate(messages):
        size = len(message.body)
        if message.key is not None:
            size += _text_size(message.key, "key", index, limits.max_key_bytes)
        if message.tag is not None:
            size += _text_size(message.tag, "tag", index, limits.max_tag_bytes)
        if message.properties:
            properties_size = 0
            for name, value in message.properties.items():
                if not name:
                    raise _empty("properties", index, "a property name is empty; name it")
                properties_size += len(name.encode()) + len(value.encode())
                if properties_size > limits.max_properties_bytes:  # there may be a million more
                    break
            _check_size("max_properties_bytes", limits.max_properties_bytes, properties_size, index)
            size += properties_size
        _check_size("max_message_bytes", limits.max_message_bytes, size, index)


def check_queues(messages: Sequence[Incoming], topic: str, queue_count: int, levels: int) -> None:
    """Pass messages whose queues a topic has, and whose priorities have the level of the queue
    that is named beside them. Raises UnknownQueue, Problem."""
    for index, message in enumerate(messages):
        if (queue := message.queue) is None:
            continue
        if queue >= queue_count:
            raise UnknownQueue(topic, queue, queue_count)
        level = level_of_queue(queue, levels)
        if message.priority is not None and level_of(message.priority, levels) != level:
            raise Problem(
                "invalid-parameter",
                f"messages[{index}].priority is {message.priority}, which is level "
                f"{level_of(message.priority, levels)} of {levels}, but its queue {queue} is of "
                f"level {level}; leave one of them out",
                parameter=f"messages[{index}].priority",
                index=index,
            )


def _text_size(text: str, what: str, index: int, limit: int) -> int:
    if not text:
        raise _empty(what, index, f"an empty {what} means none; leave it out instead")
    size = len(text.encode())
    _check_size(f"max_{what}_bytes", limit, size, index)
    return size


def _empty(what: str, index: int, mend: str) -> Problem:
    return Problem(
        "invalid-parameter",
        f"messages[{index}].{what}: {mend}",
        parameter=f"messages[{index}].{what}",
        index=index,
    )


def _check_size(limit_name: str, limit: int, size: int, index: int) -> None:
    if size > limit:
        raise message_too_large(limit_name, limit, size, index)


def message_too_large(limit_name: str, limit: int, size: int, index: int) -> Problem:
    """Return the problem of one message over a limit; `index` counts from 0 in its request."""
    return Problem(
        "message-too-large",
        f"message {index}: {size} bytes exceed {limit_name} ({limit}); send a smaller one, or "
        "raise the limit",
        limit=limit,
        limit_name=limit_name,
        found=size,
        index=index,
    )
