"""AMQP addresses, and what they name. Pure.

| address                                          | kind     | named                          |
|--------------------------------------------------|----------|--------------------------------|
| `NAME`, `queue://NAME`, `/queues/NAME`           | QUEUE    | topic NAME, and group NAME     |
| `topic://NAME`                                   | TOPIC    | topic NAME                     |
| `/topics/T`                                      | TOPIC    | topic T                        |
| `/topics/T/queues/N`                             | TOPIC    | queue N of topic T             |
| `/groups/G`                                      | GROUP    | group G                        |
| `/groups/G/topics/T`                             | GROUP    | group G, messages of topic T   |
| `/exchanges/X`, `/exchanges/X/KEY`               | EXCHANGE | topic X, messages with tag KEY |
| `/temp/ID`                                       | TEMP     | a dynamic node                 |
| `/management`                                    | MANAGER  | the HTTP API                   |
| `$cbs`, `$management`, `NAME/$management`        | refused  | nodes of Azure's services      |

The parts of a path are percent-decoded. `valid_name` replaces a name that is not allowed for topics
by an allowed name.
"""

import re
from enum import Enum
from urllib.parse import unquote

import msgspec

from holdfast.amqp.termini.names import hashed_name
from holdfast.amqp.wire.conditions import INVALID_FIELD, NOT_IMPLEMENTED, LinkFailed
from holdfast.consumequeue.errors import InvalidName
from holdfast.consumequeue.topics import check_name


class Kind(Enum):
    """What an address names: see the table of the module."""

    QUEUE = "queue"
    TOPIC = "topic"
    GROUP = "group"
    EXCHANGE = "exchange"
    TEMP = "temporary"
    MANAGER = "management"


class Address(msgspec.Struct, frozen=True):
    """A parsed address. `name` is a valid name of a topic or group."""

    kind: Kind
    name: str = ""
    queue: int | None = None
    topic: str | None = None
    tag: str | None = None


_SCHEMES = {"queue://": Kind.QUEUE, "topic://": Kind.TOPIC}
#: Nodes that Azure's clients expect. As topics they would store the clients' tokens and requests,
#: and the clients would wait for replies.
_NOT_IMPLEMENTED = ("$cbs", "$management")


def parse_address(text: str) -> Address:
    """Return what an address names.

    Raises LinkFailed: amqp:invalid-field for an empty address and for a path not in the table,
    amqp:not-implemented for an address that the table says is refused.
    """
    if text.rpartition("/")[2] in _NOT_IMPLEMENTED:
        raise LinkFailed(
            NOT_IMPLEMENTED,
            f"this broker has no {text!r}: log in with SASL PLAIN, whose password is the token, "
            "and use the management of Holdfast, /management",
        )
    for scheme, kind in _SCHEMES.items():
        if text.startswith(scheme):
            return Address(kind, _name(text, text.removeprefix(scheme)))
    if not text.startswith("/"):
        return Address(Kind.QUEUE, _name(text, text))
    match [unquote(part) for part in text.split("/")[1:]]:
        case ["queues", name]:
            return Address(Kind.QUEUE, _name(text, name))
        case ["topics", name]:
            return Address(Kind.TOPIC, _name(text, name))
        case ["topics", name, "queues", queue] if re.fullmatch(r"\d{1,9}", queue, re.ASCII):
            return Address(Kind.TOPIC, _name(text, name), queue=int(queue))
        case ["groups", name]:
            return Address(Kind.GROUP, _name(text, name))
        case ["groups", name, "topics", topic]:
            return Address(Kind.GROUP, _name(text, name), topic=_name(text, topic))
        case ["exchanges", name]:
            return Address(Kind.EXCHANGE, _name(text, name))
        case ["exchanges", name, key] if key:
            return Address(Kind.EXCHANGE, _name(text, name), tag=key)
        case ["temp", name] if name:
            return Address(Kind.TEMP, name)
        case ["management"]:
            return Address(Kind.MANAGER)
    raise _invalid(text)


def _name(address: str, name: str) -> str:
    if not name:
        raise _invalid(address)
    return valid_name(name)


def _invalid(address: str) -> LinkFailed:
    return LinkFailed(
        INVALID_FIELD,
        f"{address!r} is not an address: use NAME, /topics/T, /topics/T/queues/N, /groups/G, "
        "/groups/G/topics/T, /queues/Q or /exchanges/X/KEY",
    )


def valid_name(name: str) -> str:
    """Return `name` if a topic or group may have it, otherwise a valid name made of it.

    The valid name is `amqp-`, the readable characters of `name`, and 16 characters of the SHA-256
    of `name`. Different values of `name` give different valid names.
    """
    try:
        return check_name("topic", name)
    except InvalidName:
        return hashed_name("amqp-", name, name)
