"""Values of every type reach each other client unchanged.

A client writes each value as a body, and where its library can, as an application property and as
an annotation. A client reads all of them and reports what its library hands to programs.
"""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.amqp.clients import Client
from tests.interop.amqp.values import JMS_VALUES, VALUES, Value, canonical, is_simple

Message = dict[str, Any]

WRITERS = READERS = ["go-amqp", "rhea", "proton", "qpid-jms", "protonj2"]

#: Types that JMS has for properties of messages.
_JMS_PROPERTIES = ("boolean", "byte", "short", "int", "long", "float", "double", "string")


def can_write(client: str, name: str) -> bool:
    """Return whether a client's library can encode a value as a body."""
    value = VALUES[name]
    match client:
        case "go-amqp":
            return value[0] not in ("decimal32", "decimal64", "decimal128", "char")
        case "qpid-jms":
            return bool(value[0] != "array")
        case "protonj2":
            return name != "array of timestamp"
        case _:
            return True


def can_read(client: str, name: str) -> bool:
    """Return whether a client's library decodes a value."""
    match client:
        case "go-amqp":  # the same types as it writes: a message with any other ends the link
            return can_write(client, name)
        case "qpid-jms":
            return VALUES[name][0] not in ("array", "symbol")
        case _:
            return True


def shown(client: str, value: Value) -> Any:
    """Return what a client's library hands to a program for a value."""
    match client:
        case "go-amqp":
            return _converted(value, {"symbol": "string"})
        case "rhea":
            return _as_javascript(value)
        case "protonj2":
            if value[:2] == ["array", "timestamp"]:
                return ["array", "long", value[2]]
            return _converted(value, {"timestamp": "long"})
        case _:
            return value


def _converted(value: Value, names: dict[str, str]) -> Value:
    """Return a value whose types have other names."""
    if value[0] == "list":
        return ["list", [_converted(each, names) for each in value[1]]]
    return [names.get(value[0], value[0]), *value[1:]]


def _as_javascript(value: Value) -> Value:
    """Return what rhea shows: all numbers are one type, and what is no number is a buffer."""
    kind, content = value[0], value[1]
    match kind:
        case "null" | "boolean" | "string" | "binary" | "timestamp":
            return value
        case "symbol":
            return ["string", content]
        case "float" | "double":
            layout = ">f" if kind == "float" else ">d"
            return ["number", struct.unpack(layout, bytes.fromhex(content))[0]]
        case "uuid" | "decimal32" | "decimal64" | "decimal128":
            return ["binary", content]
        case "list":
            return ["list", [_as_javascript(each) for each in content]]
        case "map":  # the keys of an object are strings
            return ["map", [[["string", key[1]], _as_javascript(each)] for key, each in content]]
        case "array" if content == "boolean":  # rhea reads each octet as a number
            return ["list", [["number", int(each)] for each in value[2]]]
        case "array":
            return ["list", [_as_javascript([content, each]) for each in value[2]]]
        case _:
            number = int(content)
            if abs(number) < _SAFE:
                return ["number", number]
            return ["binary", (number % 2**64).to_bytes(8, "big").hex()]


#: JavaScript's numbers are exact below this one.
_SAFE = 2**53


def message_of(writer: str, name: str) -> Message:
    """Return the message with a value in all places where a client can put it."""
    value = VALUES[name]
    properties = [[["string", "name"], ["string", name]]]
    message: Message = {"body": ["value", value], "application_properties": properties}
    if writer == "qpid-jms":
        if value[0] not in ("null", "string", "list", "map"):  # an object message holds no other
            message["body"] = ["value", ["list", [value]]]
        if value[0] in _JMS_PROPERTIES:
            properties.append([["string", "property"], value])
        return message
    if is_simple(value):
        properties.append([["string", "property"], value])
    message["annotations"] = [[["symbol", "x-opt-value"], value]]
    return message


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_types_arrive_unchanged(
    client: Callable[[str], Client], address: str, writer: str, reader: str
) -> None:
    names = [name for name in VALUES if can_write(writer, name) and can_read(reader, name)]
    sent = [message_of(writer, name) for name in names]
    assert client(writer).send(address, sent) == ["accepted"] * len(sent)
    received = client(reader).receive(address, len(sent))
    differences = []
    for name, before, after in zip(names, sent, received, strict=True):
        for place, value in values_of(before).items():
            found = values_of(after).get(place)
            if reader == "qpid-jms" and not (place == "body" or _is_jms(place, value)):
                continue
            expected = shown(reader, value)
            if (reader, place, value[0]) == ("qpid-jms", "body", "binary"):
                expected = ["data", value[1]]  # a bytes message
            if canonical(found) != canonical(expected):
                differences.append((name, place, found))
    assert not differences, json.dumps(differences)


def _is_jms(place: str, value: Value) -> bool:
    """Return whether JMS shows a value that is not in the body."""
    return place == "property" and value[0] in _JMS_PROPERTIES


def values_of(message: Message) -> dict[str, Value]:
    """Return the values in the places of a message."""
    found = {key[1]: value for key, value in message.get("annotations", [])}
    found |= {key[1]: value for key, value in message["application_properties"]}
    found.pop("name", None)
    section, *parts = message["body"]
    return found | {"body": parts[0] if section == "value" else [section, *parts]}


def _kinds(other: str) -> dict[str, tuple[str, list[Any]]]:
    """Return the kinds of JMS messages, each with its annotation x-opt-jms-msg-type, and its body
    in AMQP. Entries have the types of JMS that the other client can read and write."""
    entries = [(name, VALUES[name]) for name in JMS_VALUES if can_read(other, name)]
    return {
        "text": ("5", ["value", ["string", "grüße"]]),
        "bytes": ("3", ["data", "00ff10"]),
        "map": ("2", ["value", ["map", [[["string", name], value] for name, value in entries]]]),
        "stream": ("4", ["sequence", [value for _, value in entries]]),
    }


@pytest.mark.parametrize("other", READERS)
def test_jms_messages_arrive_as_their_kind(
    client: Callable[[str], Client], address: str, other: str
) -> None:
    """Text, bytes, map and stream messages, from qpid-jms to each client and back."""
    kinds = _kinds(other)
    sent = [{"kind": kind, "body": _of_jms(body)} for kind, (_, body) in kinds.items()]
    client("qpid-jms").send(address, sent)
    for (kind, (_, body)), found in zip(
        kinds.items(), client(other).receive(address, len(kinds)), strict=True
    ):
        if other == "qpid-jms":
            assert found["kind"] == kind
            body = _of_jms(body)
        assert canonical(found["body"]) == canonical(_shown_body(other, body))
    if other == "qpid-jms":
        return
    written = [
        {"annotations": [[["symbol", "x-opt-jms-msg-type"], ["byte", number]]], "body": body}
        for number, body in kinds.values()
    ]
    client(other).send(address, written)
    for (kind, (_, body)), found in zip(
        kinds.items(), client("qpid-jms").receive(address, len(kinds)), strict=True
    ):
        assert (found["kind"], canonical(found["body"])) == (kind, canonical(_of_jms(body)))


def _of_jms(body: list[Any]) -> list[Any]:
    """Return a body as the program with qpid-jms reads and writes it: a stream is a list."""
    return ["value", ["list", body[1]]] if body[0] == "sequence" else body


def _shown_body(client: str, body: list[Any]) -> list[Any]:
    if body[0] == "value":
        return ["value", shown(client, body[1])]
    if body[0] == "sequence":
        return ["sequence", shown(client, ["list", body[1]])[1]]
    return body


def test_object_messages_arrive_as_objects(client: Callable[[str], Client], address: str) -> None:
    """A serialized object of Java, which other clients see as bytes."""
    value = ["map", [[["string", "one"], ["int", "1"]], [["string", "two"], ["list", []]]]]
    message = {"kind": "object", "body": ["value", value]}
    client("qpid-jms").send(address, [message, message])
    (found,) = client("qpid-jms").receive(address, 1)
    assert (found["kind"], canonical(found["body"])) == ("object", canonical(["value", value]))
    (seen,) = client("proton").receive(address, 1)
    assert seen["body"][0] == "data"
    assert bytes.fromhex(seen["body"][1]).startswith(b"\xac\xed")  # the magic of serialization
    assert seen["properties"]["content_type"] == ["symbol", "application/x-java-serialized-object"]
