"""Runs commands for python-qpid-proton: one JSON object per line of standard input, one reply per
line of standard output. See ../clients.py for the commands and ../values.py for the form of values.

It runs in an environment of its own, which has python-qpid-proton and no Holdfast.
"""

import json
import struct
import sys
import uuid
from typing import Any

import proton
from proton import Delivery, Link, Message, symbol
from proton.handlers import MessagingHandler
from proton.reactor import AtMostOnce, Container, LinkOption, Selector

URL = sys.argv[1]


class Second(LinkOption):  # type: ignore[misc]
    """Ask the broker to settle first, and settle after it."""

    def apply(self, link: Link) -> None:
        link.rcv_settle_mode = Link.RCV_SECOND


class Command(MessagingHandler):  # type: ignore[misc]
    """What all commands share: one connection, and an end."""

    def __init__(self, asked: dict[str, Any]) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self.asked = asked
        self.reply: dict[str, Any] = {}

    def on_start(self, event: Any) -> None:
        event.reactor.schedule(60, self)
        self.connection = event.container.connect(
            URL, reconnect=False, allowed_mechs="ANONYMOUS",
            max_frame_size=self.asked.get("frame_bytes"),
        )  # fmt: skip
        self.attach(event.container)

    def attach(self, container: Container) -> None:
        raise NotImplementedError

    def fail(self, error: str) -> None:
        self.reply = {"error": error}
        self.connection.close()

    def on_timer_task(self, event: Any) -> None:
        self.fail(f"{self.asked['verb']} took more than 60 s")

    def on_link_error(self, event: Any) -> None:
        self._failed(event.link.remote_condition)

    def on_session_error(self, event: Any) -> None:
        self._failed(event.session.remote_condition)

    def on_connection_error(self, event: Any) -> None:
        self._failed(event.connection.remote_condition)

    def on_transport_error(self, event: Any) -> None:
        self._failed(event.transport.condition)

    def _failed(self, condition: Any) -> None:
        self.fail(f"{condition.name}: {condition.description}")

    def on_link_closed(self, event: Any) -> None:
        event.connection.close()

    def on_connection_closed(self, event: Any) -> None:
        event.container.stop()

    def on_disconnected(self, event: Any) -> None:
        self.reply = self.reply or {"error": "cut off"}
        event.container.stop()


class Send(Command):
    """Send the messages and report their outcomes."""

    def attach(self, container: Container) -> None:
        options = AtMostOnce() if self.asked.get("settled") else None
        self.waiting = list(self.asked["messages"])
        self.outcomes: list[str] = []
        container.create_sender(self.connection, self.asked["address"], options=options)

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self.waiting:
            event.sender.send(decode_message(self.waiting.pop(0)))
            if self.asked.get("settled"):
                self._append(event.sender, "settled")

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if delivery.updated and delivery.remote_state:
            name = {
                Delivery.ACCEPTED: "accepted", Delivery.REJECTED: "rejected",
                Delivery.RELEASED: "released", Delivery.MODIFIED: "modified",
            }[delivery.remote_state]  # fmt: skip
            delivery.settle()
            self._append(event.link, name)

    def _append(self, sender: Any, outcome: str) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) == len(self.asked["messages"]):
            self.reply = {"outcomes": self.outcomes}
            sender.close()


class Receive(Command):
    """Receive messages, settle them, and drain what is left."""

    def attach(self, container: Container) -> None:
        asked = self.asked
        options: list[Any] = []
        if asked.get("selector"):
            options.append(Selector(asked["selector"]))
        if asked.get("settled"):
            options.append(AtMostOnce())
        if asked.get("second"):
            options.append(Second())
        self.messages: list[Any] = []
        self.unsettled = 0
        self.is_drained = False
        self.receiver = container.create_receiver(
            self.connection, asked["address"], options=options
        )

    def on_link_opened(self, event: Any) -> None:
        self.receiver.flow(max(self.asked.get("credit") or 0, self.asked["count"]))
        self._finish()

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if delivery.readable and not delivery.partial:
            message = Message()
            message.recv(self.receiver)
            self.messages.append(encode_message(message))
            self._settle(delivery)
        if self.asked.get("second") and delivery.settled:
            delivery.settle()
            self.unsettled -= 1
        self._finish()

    def _settle(self, delivery: Delivery) -> None:
        outcome = self.asked.get("outcome") or "accept"
        if outcome == "none":
            return
        if outcome == "reject":
            delivery.local.condition = proton.Condition("test:bad", "not wanted")
        if outcome == "modify":
            delivery.local.failed = bool(self.asked.get("failed"))
            delivery.local.undeliverable = bool(self.asked.get("undeliverable"))
        delivery.update({
            "accept": Delivery.ACCEPTED, "reject": Delivery.REJECTED,
            "release": Delivery.RELEASED, "modify": Delivery.MODIFIED,
        }[outcome])  # fmt: skip
        if self.asked.get("second"):
            self.unsettled += 1
        else:
            delivery.settle()

    def on_link_flow(self, event: Any) -> None:
        if self.receiver.drain_mode and not self.receiver.credit:
            self.is_drained = True
            self._finish()

    def _finish(self) -> None:
        if len(self.messages) < self.asked["count"] or self.unsettled:
            return
        if self.asked.get("drain") and not self.is_drained:
            if not self.receiver.drain_mode:
                self.receiver.drain(0 if self.receiver.credit else 1)
            return
        self.reply = {"messages": self.messages, "drained": self.is_drained}
        self.receiver.close()


# ---- Messages

_PROPERTIES = {
    "message_id": "id", "user_id": "user_id", "to": "address", "subject": "subject",
    "reply_to": "reply_to", "correlation_id": "correlation_id", "content_type": "content_type",
    "content_encoding": "content_encoding", "absolute_expiry_time": "expiry_time",
    "creation_time": "creation_time", "group_id": "group_id", "group_sequence": "group_sequence",
    "reply_to_group_id": "reply_to_group_id",
}  # fmt: skip
_SECONDS = ("absolute_expiry_time", "creation_time")


def decode_message(fields: dict[str, Any]) -> Message:
    message = Message()
    header = fields.get("header", {})
    message.durable = header.get("durable", False)
    message.priority = header.get("priority", 4)
    message.ttl = header.get("ttl", 0) / 1000
    for name, value in fields.get("properties", {}).items():
        found = decode(value)
        setattr(message, _PROPERTIES[name], found / 1000 if name in _SECONDS else found)
    if "annotations" in fields:
        message.annotations = decode(["map", fields["annotations"]])
    if "application_properties" in fields:
        message.properties = decode(["map", fields["application_properties"]])
    section, *parts = fields["body"]
    if section == "data":
        message.inferred, message.body = True, bytes.fromhex("".join(parts))
    elif section == "sequence":
        message.inferred, message.body = True, [decode(each) for part in parts for each in part]
    else:
        message.body = decode(parts[0])
    return message


def encode_message(message: Message) -> dict[str, Any]:
    properties = {}
    for name, attribute in _PROPERTIES.items():
        found = getattr(message, attribute)
        if found not in (None, "", b"", 0):
            if name in _SECONDS:
                found = proton.timestamp(round(found * 1000))
            elif name == "group_sequence":
                found = proton.uint(found)
            elif name in ("content_type", "content_encoding"):
                found = symbol(found)
            properties[name] = encode(found)
    if message.inferred and isinstance(message.body, bytes | memoryview):
        body: list[Any] = ["data", bytes(message.body).hex()]
    elif message.inferred and isinstance(message.body, list):
        body = ["sequence", [encode(each) for each in message.body]]
    else:
        body = ["value", encode(message.body)]
    return {
        "header": {
            "durable": message.durable, "priority": message.priority,
            "ttl": round(message.ttl * 1000), "first_acquirer": message.first_acquirer,
            "delivery_count": message.delivery_count,
        },
        "annotations": encode(message.annotations or {})[1],
        "properties": properties,
        "application_properties": encode(message.properties or {})[1],
        "body": body,
    }  # fmt: skip


# ---- Values

_INTEGERS = {
    "ubyte": proton.ubyte, "ushort": proton.ushort, "uint": proton.uint, "ulong": proton.ulong,
    "byte": proton.byte, "short": proton.short, "int": proton.int32, "long": int,
    "timestamp": proton.timestamp,
}  # fmt: skip
_ARRAYS = {
    "boolean": proton.Data.BOOL, "ubyte": proton.Data.UBYTE, "ushort": proton.Data.USHORT,
    "uint": proton.Data.UINT, "ulong": proton.Data.ULONG, "byte": proton.Data.BYTE,
    "short": proton.Data.SHORT, "int": proton.Data.INT, "long": proton.Data.LONG,
    "float": proton.Data.FLOAT, "double": proton.Data.DOUBLE, "char": proton.Data.CHAR,
    "decimal32": proton.Data.DECIMAL32, "decimal64": proton.Data.DECIMAL64,
    "decimal128": proton.Data.DECIMAL128, "timestamp": proton.Data.TIMESTAMP,
    "uuid": proton.Data.UUID, "binary": proton.Data.BINARY, "string": proton.Data.STRING,
    "symbol": proton.Data.SYMBOL,
}  # fmt: skip
_ELEMENTS = {number: name for name, number in _ARRAYS.items()}


def decode(typed: list[Any]) -> Any:
    kind, value = typed[0], typed[1]
    if kind in _INTEGERS:
        return _INTEGERS[kind](int(value))
    match kind:
        case "null" | "boolean" | "string":
            return value
        case "float":
            return proton.float32(struct.unpack(">f", bytes.fromhex(value))[0])
        case "double":
            return struct.unpack(">d", bytes.fromhex(value))[0]
        case "decimal32":
            return proton.decimal32(int(value, 16))
        case "decimal64":
            return proton.decimal64(int(value, 16))
        case "decimal128":
            return proton.decimal128(bytes.fromhex(value))
        case "char":
            return proton.char(chr(int(value)))
        case "uuid":
            return uuid.UUID(value)
        case "binary":
            return bytes.fromhex(value)
        case "symbol":
            return symbol(value)
        case "list":
            return [decode(each) for each in value]
        case "map":
            return {decode(key): decode(each) for key, each in value}
        case "array":
            elements = [decode([value, each]) for each in typed[2]]
            return proton.Array(proton.UNDESCRIBED, _ARRAYS[value], *elements)
    raise ValueError(kind)


_NAMES = {type_: name for name, type_ in _INTEGERS.items()}


def encode(value: Any) -> list[Any]:
    kind = type(value)
    if kind in _NAMES:
        return [_NAMES[kind], str(int(value))]
    match value:
        case None:
            return ["null", None]
        case bool():
            return ["boolean", value]
        case proton.float32():
            return ["float", struct.pack(">f", value).hex()]
        case proton.decimal32():
            return ["decimal32", f"{int(value):08x}"]
        case proton.decimal64():
            return ["decimal64", f"{int(value):016x}"]
        case proton.decimal128():
            return ["decimal128", bytes(value).hex()]
        case float():
            return ["double", struct.pack(">d", value).hex()]
        case proton.char():
            return ["char", str(ord(value))]
        case uuid.UUID():
            return ["uuid", value.hex]
        case bytes() | memoryview():
            return ["binary", bytes(value).hex()]
        case proton.symbol():
            return ["symbol", str(value)]
        case str():
            return ["string", value]
        case proton.Array():
            return ["array", _ELEMENTS[value.type], [encode(each)[1] for each in value.elements]]
        case list():
            return ["list", [encode(each) for each in value]]
        case dict():
            return ["map", [[encode(key), encode(each)] for key, each in value.items()]]
    return ["unknown", kind.__name__]


def main() -> None:
    commands = {"send": Send, "receive": Receive}
    for line in sys.stdin:
        asked = json.loads(line)
        command = commands[asked["verb"]](asked)
        try:
            Container(command).run()
            reply = command.reply
        except Exception as error:  # a reply is owed for every line
            reply = {"error": repr(error)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
