"""Decode the messages and the producer of a publish request, and check them.

Messages are in JSON, NDJSON or msgpack; `publish_batches` decodes binary batches. The first error
raises a Problem, before any message is stored. The Problem identifies the message by its name in
the request, such as `messages[3].key`, and says how to fix the error.
"""

import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from multidict import MultiMapping, istr

from holdfast.commitlog.append.producer_sequences import BROKER_EPOCH
from holdfast.commitlog.format.batch_check import MessageLimits
from holdfast.commitlog.format.priority import level_of, level_of_queue
from holdfast.commitlog.format.session_ids import producer_id_of
from holdfast.consumequeue.errors import UnknownQueue
from holdfast.consumequeue.topics import Topic
from holdfast.groups.serving.letters import RESERVED_PREFIX
from holdfast.http_api.routing.codecs import decode_json, decode_msgpack
from holdfast.http_api.routing.params import MAX_OFFSET, invalid, whole_number
from holdfast.http_api.schemas.messages import (
    MessageToPublish,
    PackedMessageToPublish,
    publish_request,
)
from holdfast.http_api.wire.head_cache import SEQUENCE
from holdfast.http_api.wire.problems import Problem, request_too_large
from holdfast.http_api.wire.request import single_header

M = TypeVar("M")

#: A string, or a bracket. A string without a closing quote extends to the end. The quantifiers are
#: possessive: they never backtrack, so no byte is examined twice.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]', re.DOTALL)
_OPENING, _CLOSING = b"{[", b"}]"
#: The depth of a message in brackets: in {"messages": [{, the third bracket begins a message.
_MESSAGE_DEPTH = 3
# These are istr objects, so that a case-insensitive look-up need not convert them each time.
_ID = istr("Holdfast-Producer-Id")
_EPOCH = istr("Holdfast-Producer-Epoch")
_SEQUENCE = istr(SEQUENCE)
_HEADERS = (_ID, _EPOCH, _SEQUENCE)

_PRODUCER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}", re.ASCII)


class MessageToStore(NamedTuple):
    """One message to publish. It is a tuple, because a request may have 100,000 messages."""

    body: bytes
    key: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    queue: int | None = None
    ttl_ms: int | None = None
    priority: int | None = None


# -- formats -------------------------------------------------------------------------------


def from_json(body: bytes, limit: int) -> list[MessageToStore]:
    """Return the messages of a JSON body. Raises Problem."""
    if has_more_messages(limit, body):
        raise too_many_messages(limit)
    messages = _decode_list(decode_json, body, MessageToPublish, limit)
    return [_convert_text(message, "messages[{}]", i) for i, message in enumerate(messages)]


def has_more_messages(limit: int, body: bytes) -> bool:
    """Return whether a publish request in JSON has more than `limit` messages.

    This runs before decoding: msgspec checks the length of a list only after it has built the whole
    list, and meanwhile all other threads wait (GIL). A body of 16 MiB may have a million messages.
    For invalid JSON, the result may be True or False; decoding then reports the error.
    """
    if body.count(b"{") <= limit + 1:
        return False
    depth = count = 0
    for token in _TOKEN.finditer(body):
        sign = body[token.start()]
        if sign in _OPENING:
            depth += 1
            if depth == _MESSAGE_DEPTH and sign == _OPENING[0]:
                count += 1
                if count > limit:
                    return True
        elif sign in _CLOSING:
            depth -= 1
    return False


def from_lines(body: bytes, limit: int) -> list[MessageToStore]:
    """Return the messages of an NDJSON body: one object per line.

    Blank lines are skipped. A body may have at most twice as many lines as messages are allowed.
    Raises Problem.
    """
    if body.count(b"\n") > 2 * limit:
        raise too_many_messages(limit)
    lines = [(i, line) for i, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    _check_count(len(lines), limit)
    return [
        _convert_text(decode_json(line, MessageToPublish, where=f"line {i}"), "line {}", i)
        for i, line in lines
    ]


def from_msgpack(body: bytes, limit: int) -> list[MessageToStore]:
    """Return the messages of a msgpack body. Raises Problem."""
    messages = _decode_list(decode_msgpack, body, PackedMessageToPublish, limit)
    return [_convert_packed(message, i) for i, message in enumerate(messages)]


def _decode_list(
    decode: Callable[[bytes, Any], Any], body: bytes, message: Callable[..., M], limit: int
) -> list[M]:
    """Return the messages of a request. Raises Problem if there are none, or more than `limit`."""
    try:
        request = decode(body, publish_request(message, limit))
    except Problem as problem:
        if _TOO_LONG in problem.detail and problem.members.get("parameter") == "messages":
            raise too_many_messages(limit) from None
        raise
    messages: list[M] | UnsetType = request.messages
    single = [name for name in _MEMBERS if getattr(request, name, None) not in (None, UNSET)]
    if messages is UNSET:
        if not single:
            raise Problem(
                "missing-parameter",
                "there is no message; give messages (a list), or the fields of a single message",
                parameter="messages",
            )
        return [request]
    if single:
        raise invalid(
            single[0],
            single[0],
            "either messages, or the fields of a single message",
            f"the request has both messages and {single[0]}",
        )
    _check_count(len(messages), limit)
    return messages


#: The names of the fields that a message may have.
_MEMBERS = MessageToPublish.__struct_fields__
#: msgspec's text for a list that is longer than its type allows.
_TOO_LONG = "Expected `array` of length <="


def _convert_packed(message: PackedMessageToPublish, number: int) -> MessageToStore:
    if message.body is UNSET:
        raise Problem(
            "missing-parameter",
            f"messages[{number}] has no body; give it one, as bin or as a text",
            parameter=f"messages[{number}].body",
        )
    raw = bytes(message.body)
    return MessageToStore(
        # A body may be bytes or a text. One msgspec type cannot express both.
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
    """Return whether a msgpack value is a str, decided by its first byte."""
    return 0xA0 <= raw[0] <= 0xBF or raw[0] in (0xD9, 0xDA, 0xDB)


def _convert_text(message: MessageToPublish, where: str, number: int) -> MessageToStore:
    """Convert a message of JSON or NDJSON. In problems, `where` with `number` names the message."""
    text, base64 = message.body, message.body_base64
    if text is not UNSET and base64 is UNSET:
        body = text.encode()
    elif text is UNSET and base64 is not UNSET:
        body = _decode_base64(base64, where.format(number))
    else:
        raise _not_one_body(where.format(number), none=text is UNSET)
    return MessageToStore(
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


def _decode_base64(given: str, where: str) -> bytes:
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
    return request_too_large(
        "max_messages_per_request",
        limit,
        "there are more than {limit} messages; send fewer at a time",
    )


def too_many_batches(limit: int) -> Problem:
    """Return the problem of a request with messages for more than `limit` queues or batches."""
    return request_too_large(
        "max_batches_per_request",
        limit,
        "there are more than {limit} batches, or queues that the messages go to; send fewer at a "
        "time",
    )


# -- checks --------------------------------------------------------------------------------


def check_messages(messages: Sequence[MessageToStore], limits: MessageLimits) -> None:
    """Raise Problem if a topic with these limits does not accept the messages."""
    most = limits.max_message_bytes
    for index, message in enumerate(messages):
        if len(message.body) > most:
            raise message_too_large("max_message_bytes", most, len(message.body), index)
        if message.key is not None:
            _check_text("key", message.key, index, limits.max_key_bytes)
        if message.tag is not None:
            _check_text("tag", message.tag, index, limits.max_tag_bytes)
        if message.properties:
            size = 0
            for name, value in message.properties.items():
                if not name:
                    raise _empty("properties", index, "a property name is empty; name it")
                if name.startswith(RESERVED_PREFIX):
                    raise reserved_property(name, index)
                size += len(name.encode()) + len(value.encode())
                if size > limits.max_properties_bytes:
                    break  # there may be a million more properties
            _check_size("max_properties_bytes", limits.max_properties_bytes, size, index)


def check_queues(messages: Sequence[MessageToStore], topic: Topic) -> None:
    """Raise UnknownQueue if a message names a queue that the topic does not have.

    Raise Problem if a message has both a queue and a priority, and they are of different levels.
    """
    queue_count, levels = topic.queue_count, topic.priority_levels
    for index, message in enumerate(messages):
        if (queue := message.queue) is None:
            continue
        if queue >= queue_count:
            raise UnknownQueue(topic.name, queue, queue_count)
        if message.priority is None:
            continue
        level = level_of_queue(queue, levels)
        if level_of(message.priority, levels) != level:
            raise Problem(
                "invalid-parameter",
                f"messages[{index}].priority is {message.priority}, which is level "
                f"{level_of(message.priority, levels)} of {levels}, but its queue {queue} is of "
                f"level {level}; leave one of them out",
                parameter=f"messages[{index}].priority",
                index=index,
            )


def _check_text(what: str, text: str, index: int, limit: int) -> None:
    if not text:
        raise _empty(what, index, f"an empty {what} means none; leave it out instead")
    _check_size(f"max_{what}_bytes", limit, len(text.encode()), index)


def _empty(what: str, index: int, fix: str) -> Problem:
    return Problem(
        "invalid-parameter",
        f"messages[{index}].{what}: {fix}",
        parameter=f"messages[{index}].{what}",
        index=index,
    )


def _check_size(limit_name: str, limit: int, size: int, index: int) -> None:
    if size > limit:
        raise message_too_large(limit_name, limit, size, index)


def reserved_property(name: str, index: int) -> Problem:
    """Return the problem of a property that only the broker may write."""
    parameter = f"messages[{index}].properties[{json.dumps(name[:100], ensure_ascii=False)}]"
    return Problem(
        "reserved-property",
        f"{parameter}: properties that begin with {RESERVED_PREFIX!r} "
        "describe where a dead letter came from, and only the broker writes them; leave it out, "
        "or rename it",
        parameter=parameter,
        index=index,
    )


def message_too_large(limit_name: str, limit: int, size: int, index: int) -> Problem:
    """Return the problem of a message above a limit. `index` counts from 0 within the request."""
    return Problem(
        "message-too-large",
        f"message {index}: {size} bytes exceed {limit_name} ({limit}); send a smaller one, or "
        "raise the limit",
        limit=limit,
        limit_name=limit_name,
        found=size,
        index=index,
    )


# -- the producer --------------------------------------------------------------------------


class Producer(msgspec.Struct):
    """A producer, and the number of its request. `sequence` counts its requests to a topic.

    Treat as immutable.
    """

    producer_id: int
    epoch: int
    sequence: int


def request_producer(headers: MultiMapping[str]) -> Producer | None:
    """Return the producer in the three headers; None if all three are missing.

    Raises Problem: missing-parameter if only some are present, or invalid-parameter.
    """
    if _ID not in headers and _EPOCH not in headers and _SEQUENCE not in headers:
        return None
    producer_id, epoch, sequence = (single_header(headers, name) for name in _HEADERS)
    if producer_id is None or epoch is None or sequence is None:
        missing = next(name for name in _HEADERS if name not in headers)
        raise Problem(
            "missing-parameter",
            f"the header {missing} is missing; send {', '.join(_HEADERS)} together, or none",
            parameter=missing,
        )
    return Producer(
        _parse_producer_id(producer_id),
        _parse_number(_EPOCH, epoch, BROKER_EPOCH - 1),
        _parse_number(_SEQUENCE, sequence, MAX_OFFSET),
    )


def refuse_producer(headers: MultiMapping[str]) -> None:
    """Raise Problem if a request has one of the three headers of a producer.

    Binary batches contain the producer, so their requests must not have these headers.
    """
    for name in _HEADERS:
        if name in headers:
            raise invalid(
                name,
                headers[name],
                "no such header: put producer, epoch and sequence into the batches",
                f"{name} does not go with binary batches",
            )


def _parse_producer_id(given: str) -> int:
    number = whole_number(given)
    if number is None and (given.isdigit() or not _PRODUCER_NAME.fullmatch(given)):
        number = 0
    if number is not None and not 1 <= number <= MAX_OFFSET:
        raise invalid(_ID, given, "a number from 1 to 2^63-1, or a name of A-Z a-z 0-9 . _ -")
    return producer_id_of(given)


def _parse_number(name: str, given: str, maximum: int) -> int:
    number = whole_number(given)
    if number is None or number > maximum:
        raise invalid(name, given, f"a whole number from 0 to {maximum}")
    return number
