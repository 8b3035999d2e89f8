"""The sections of an encoded message (part 3.2 of the specification). Pure.

    header, delivery-annotations | message-annotations, properties, application-properties,
                                   body, footer
    may change on the way        | the rest is stored and delivered byte for byte

The sections have this order. Only the body is mandatory: one or more `data` sections, one or more
`amqp-sequence` sections, or one `amqp-value`. A message without a body gets an `amqp-value` that is
null.
"""

from enum import IntEnum
from typing import Any, NamedTuple

from holdfast.amqp.messages.fast_fields import Routing, read_header, read_routing, read_texts
from holdfast.amqp.wire.conditions import DecodeError
from holdfast.amqp.wire.performatives import Header, Properties, from_described
from holdfast.amqp.wire.types import Buffer, Described, Symbol, ULong, decode, skip


class Kind(IntEnum):
    """The kinds of sections, in the order of a message. The numbers are their descriptors."""

    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    AMQP_SEQUENCE = 0x76
    AMQP_VALUE = 0x77
    FOOTER = 0x78


_NAMES = {
    "amqp:header:list": Kind.HEADER,
    "amqp:delivery-annotations:map": Kind.DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": Kind.MESSAGE_ANNOTATIONS,
    "amqp:properties:list": Kind.PROPERTIES,
    "amqp:application-properties:map": Kind.APPLICATION_PROPERTIES,
    "amqp:data:binary": Kind.DATA,
    "amqp:amqp-sequence:list": Kind.AMQP_SEQUENCE,
    "amqp:amqp-value:*": Kind.AMQP_VALUE,
    "amqp:footer:map": Kind.FOOTER,
}
_KINDS = {int(kind): kind for kind in Kind}
_BODIES = (Kind.DATA, Kind.AMQP_SEQUENCE, Kind.AMQP_VALUE)
_CONTENTS: dict[Kind, type] = {Kind.DATA: bytes, Kind.AMQP_SEQUENCE: list}
_REPEATABLE = (Kind.DATA, Kind.AMQP_SEQUENCE)


class Span(NamedTuple):
    """Where a section lies: from `start` to `end`, its value from `value` on."""

    start: int
    value: int
    end: int


_NOTHING = Span(0, 0, 0)


class Sections:
    """The sections of one message. The constructor finds them by their sizes.

    It raises DecodeError if the bytes are not the sections of a message. A method that
    decodes a section raises DecodeError if the content of the section is not valid.
    """

    __slots__ = ("_spans", "body", "buffer")

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self._spans: dict[Kind, Span] = {}
        self.body: list[tuple[Kind, Span]] = []
        """The body sections; all are of one kind."""
        last = None
        offset = 0
        while offset < len(buffer):
            kind, value = _kind_at(buffer, offset)
            end = _end_of(buffer, value)
            if last is not None and (kind < last or (kind == last and kind not in _REPEATABLE)):
                raise DecodeError(f"the section {kind.name} is not in its place")
            span = Span(offset, value, end)
            if kind in _BODIES:
                if self.body and self.body[0][0] is not kind:
                    raise DecodeError("the body has sections of two kinds")
                self.body.append((kind, span))
            else:
                self._spans[kind] = span
            last, offset = kind, end
        if not self.body:
            self._add_null_body()

    def _add_null_body(self) -> None:
        """Add the body that the specification asks for. Qpid Proton sends messages without one."""
        if not self.buffer:
            raise DecodeError("a message has no section")
        footer = self._spans.get(Kind.FOOTER)
        start = footer.start if footer else len(self.buffer)
        self.buffer = b"".join((self.buffer[:start], _NULL_BODY, self.buffer[start:]))
        end = start + len(_NULL_BODY)
        self.body.append((Kind.AMQP_VALUE, Span(start, end - 1, end)))
        if footer:
            moved = (each + len(_NULL_BODY) for each in footer)
            self._spans[Kind.FOOTER] = Span(*moved)

    def header(self) -> Header:
        """Return the header. Without a header section, return the default header."""
        span = self._spans.get(Kind.HEADER)
        fast = read_header(self.buffer, span.value, span.end) if span else None
        return fast or self._composite(Kind.HEADER, 0x70, Header) or Header()

    def properties(self) -> Properties:
        """Return the properties. Without a properties section, all of them are None."""
        return self._composite(Kind.PROPERTIES, 0x73, Properties) or Properties()

    def routing(self) -> Routing:
        """Return the properties that the broker uses. Other properties may be invalid."""
        span = self._spans.get(Kind.PROPERTIES)
        if span is None:
            return Routing()
        fast = read_routing(self.buffer, span.value, span.end)
        if fast is not None:
            return fast
        properties = self.properties()
        return Routing(properties.subject, properties.absolute_expiry_time, properties.group_id)

    def annotations(self) -> dict[Any, Any]:
        """Return the message-annotations, or an empty dict if there are none."""
        return self._map(Kind.MESSAGE_ANNOTATIONS)

    def text_annotation(self, name: str) -> str | None:
        """Return the message-annotation `name` if it is a string, otherwise None. Raises
        DecodeError if the message-annotations are not valid."""
        span = self._spans.get(Kind.MESSAGE_ANNOTATIONS)
        if span is None:
            return None
        texts = read_texts(self.buffer, span.value, span.end)
        if texts is not None:
            text = texts.get(name.encode())
            return None if text is None else text.decode()
        found = self.annotations().get(Symbol(name))
        return str(found) if type(found) is str else None

    def application_properties(self) -> dict[str, Any]:
        """Return the application-properties. Raises DecodeError if a name is not a string."""
        found = self._map(Kind.APPLICATION_PROPERTIES)
        if any(type(name) is not str for name in found):
            raise DecodeError("the name of an application property is not a string")
        return found

    def body_value(self, index: int = 0) -> Any:
        """Return the decoded value of a body section."""
        return decode(self.buffer, self.body[index][1].value)[0]

    def only_text(self) -> bytes | None:
        """Return the content of the body, if it is one binary value, or one string in an
        amqp-value: then the content as UTF-8. Raises DecodeError for a string that is not UTF-8."""
        if len(self.body) != 1:
            return None
        kind, (_, value, end) = self.body[0]
        code = self.buffer[value]
        if code == 0xA0:
            return bytes(self.buffer[value + 2 : end])
        if code == 0xB0:
            return bytes(self.buffer[value + 5 : end])
        if kind is Kind.AMQP_VALUE and code in (0xA1, 0xB1):
            content = bytes(self.buffer[value + (2 if code == 0xA1 else 5) : end])
            self.body_value()  # checks it
            return content
        return None

    def check_body(self) -> None:
        """Raise DecodeError if the content of a body section is not valid."""
        for kind, span in self.body:
            value, _ = decode(self.buffer, span.value)
            expected = _CONTENTS.get(kind)
            if expected is not None and type(value) is not expected:
                raise DecodeError(f"the section {kind.name} is not valid")

    def check_footer(self) -> None:
        """Raise DecodeError if there is a footer that is not valid."""
        self._map(Kind.FOOTER)

    def bare(self) -> bytes:
        """Return the encoded sections after the header and the delivery-annotations."""
        skipped = (Kind.HEADER, Kind.DELIVERY_ANNOTATIONS)
        start = max((self._spans[kind].end for kind in skipped if kind in self._spans), default=0)
        return bytes(self.buffer[start:])

    def around_body(self) -> tuple[bytes, bytes, bytes]:
        """Return what the bare message has around its body, encoded: the message-annotations, the
        other sections before the body, and the sections after the body."""
        buffer, spans = self.buffer, self._spans
        annotations = spans.get(Kind.MESSAGE_ANNOTATIONS, _NOTHING)
        kinds = (Kind.PROPERTIES, Kind.APPLICATION_PROPERTIES)
        before = [spans[kind] for kind in kinds if kind in spans]
        start, end = self.body[0][1].start, self.body[-1][1].end
        return (
            bytes(buffer[annotations.start : annotations.end]),
            bytes(buffer[before[0].start : start]) if before else b"",
            bytes(buffer[end:]),
        )

    def body_bytes(self) -> bytes:
        """Return the encoded body sections."""
        return bytes(self.buffer[self.body[0][1].start : self.body[-1][1].end])

    def __contains__(self, kind: Kind) -> bool:
        return kind in self._spans

    def _composite(self, kind: Kind, code: int, expected: type) -> Any:
        span = self._spans.get(kind)
        if span is None:
            return None
        value = from_described(Described(ULong(code), decode(self.buffer, span.value)[0]))
        if type(value) is not expected:
            raise DecodeError(f"the section {kind.name} is not valid")
        return value

    def _map(self, kind: Kind) -> dict[Any, Any]:
        span = self._spans.get(kind)
        if span is None:
            return {}
        value = decode(self.buffer, span.value)[0]
        if type(value) is not dict:
            raise DecodeError(f"the section {kind.name} is not a map")
        return value


#: An amqp-value section whose value is null.
_NULL_BODY = b"\x00\x53\x77\x40"


def _end_of(buffer: Buffer, value: int) -> int:
    """Return the offset after the value at `value`, as `skip` does, but faster for values whose
    size is in one byte."""
    if value + 1 < len(buffer) and buffer[value] in _SIZE_IN_ONE_BYTE:
        end = value + 2 + buffer[value + 1]
        if end <= len(buffer):
            return end
    return skip(buffer, value)


#: The constructors of binary, string, list and map with a size of one byte.
_SIZE_IN_ONE_BYTE = frozenset({0xA0, 0xA1, 0xC0, 0xC1})


def _kind_at(buffer: Buffer, offset: int) -> tuple[Kind, int]:
    """Return the kind of the section at `offset`, and where its value begins."""
    if buffer[offset : offset + 2] == b"\x00\x53" and offset + 2 < len(buffer):
        kind, value = _KINDS.get(buffer[offset + 2]), offset + 3
    elif buffer[offset] == 0:
        descriptor, value = decode(buffer, offset + 1)
        kind = None
        if type(descriptor) is ULong:
            kind = _KINDS.get(descriptor)
        elif type(descriptor) is Symbol:
            kind = _NAMES.get(descriptor)
    else:
        kind, value = None, offset
    if kind is None:
        raise DecodeError("the bytes are not a section of a message")
    return kind, value
