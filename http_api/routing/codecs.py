"""Media types of requests and replies, and the decoding and encoding of bodies. Pure.

Every error in a body becomes a Problem that says where in the body the error is.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.commitlog.format.batch_header import Buffer
from holdfast.http_api.routing.wrong_member import SHORT_BYTES, allowed_at, find_member, members_of
from holdfast.http_api.wire.problems import Problem

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
MSGPACK = "application/msgpack"
#: The content type that curl -d sends by default.
FORM = "application/x-www-form-urlencoded"
BATCH = "application/vnd.holdfast.batch"
EVENTS = "text/event-stream"

#: Other names of the same media types.
_ALIASES = {
    "application/ndjson": NDJSON,
    "application/jsonl": NDJSON,
    "application/x-msgpack": MSGPACK,
    "application/vnd.msgpack": MSGPACK,
}

STRUCTURED = (JSON, MSGPACK)

#: The first byte of a msgpack list with more than 15 elements -> how many bytes its length has.
_LISTS = {0xDC: 2, 0xDD: 4}
#: The first byte of a msgpack object with more than 15 fields -> how many bytes its length has.
_OBJECTS = {0xDE: 2, 0xDF: 4}
_LISTED = msgspec.msgpack.Decoder(list[msgspec.Raw])
_NAMED = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


# -- media types ---------------------------------------------------------------------------


@lru_cache(maxsize=256)
def media_type(content_type: str) -> str:
    """Return the media type in a Content-Type header, without parameters. Return "" for "".

    Raises Problem (unsupported-media-type) for JSON in a charset other than UTF-8, because the
    broker would misread it.
    """
    essence, _, parameters = content_type.partition(";")
    bare = essence.strip().lower()
    bare = _ALIASES.get(bare, bare)
    charset = re.search(r"charset\s*=\s*\"?([^\s;\"]+)", parameters, re.IGNORECASE)
    if bare in (JSON, NDJSON) and charset and charset[1].lower() not in ("utf-8", "utf8"):
        raise Problem(
            "unsupported-media-type",
            f"{bare} is UTF-8 here, not {charset[1][:40]}; convert the body and leave the "
            "charset out",
            found=content_type[:200],
            allowed=[bare],
        )
    return bare


@lru_cache(maxsize=256)
def negotiate(accept: str, offered: Sequence[str]) -> str:
    """Return the media type in `offered` that an Accept header prefers.

    If it prefers several types equally, return the first of them. An empty header accepts every
    type. Raises Problem (not-acceptable) if no type is acceptable.
    """
    if not accept.strip():
        return offered[0]
    ranges = [_media_range(each) for each in accept.split(",") if each.strip()]
    best, best_quality = "", 0.0
    for each in offered:
        quality = _quality(each, ranges)
        if quality > best_quality:
            best, best_quality = each, quality
    if not best:
        raise Problem(
            "not-acceptable",
            f"none of {accept[:200]!r} can be sent; accept one of: {', '.join(offered)}",
            found=accept[:200],
            allowed=list(offered),
        )
    return best


@lru_cache(maxsize=256)
def accepts_rebuilt(accept: str) -> bool:
    """Return whether an Accept header has the type of binary batches with `rebuilt=1`: the client
    also reads blocks that the broker merged for the reply."""
    for each in accept.split(","):
        essence, *parameters = (part.strip().lower() for part in each.split(";"))
        if essence == BATCH and "rebuilt=1" in parameters:
            return True
    return False


def _media_range(given: str) -> tuple[str, float]:
    """Return a media range and its quality. An invalid quality counts as 0 (not acceptable)."""
    essence, *parameters = (part.strip().lower() for part in given.split(";"))
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            value = value.strip()
            valid = re.fullmatch(r"[01](\.\d{0,3})?", value, re.ASCII)
            quality = min(float(value), 1.0) if valid else 0.0
    return _ALIASES.get(essence, essence), quality


def _quality(offered: str, ranges: list[tuple[str, float]]) -> float:
    """Return the quality of the most specific range that covers `offered`; 0 if no range does.

    Wildcards do not cover the type of event streams: an event stream has no end, so a client must
    ask for it explicitly.
    """
    qualities = dict(reversed(ranges))
    wildcards = () if offered == EVENTS else (offered.partition("/")[0] + "/*", "*/*")
    for candidate in (offered, *wildcards):
        if candidate in qualities:
            return qualities[candidate]
    return 0.0


# -- decoding ------------------------------------------------------------------------------


def decode(content_type: str, body: bytes, type_: type[T]) -> T:
    """Return a JSON or msgpack body as `type_`.

    An empty body is decoded as an empty object. The content type that curl sends by default counts
    as JSON. Raises Problem: unsupported-media-type, malformed-json, malformed-msgpack,
    invalid-parameter, missing-parameter.
    """
    kind = media_type(content_type)
    if not body:
        return decode_json(b"{}", type_)
    if kind in (JSON, FORM, ""):
        return decode_json(body, type_)
    if kind == MSGPACK:
        return decode_msgpack(body, type_)
    raise unsupported(kind, STRUCTURED)


def check_count(content_type: str, body: bytes, most: int) -> None:
    """Raise Problem (limit-exceeded) if a JSON or msgpack body has more than `most` values.

    msgspec decodes a list or an object as a whole, and other threads must wait (GIL). For a million
    names or receipts that would take a tenth of a second, only to refuse the request. Also raises
    Problem: unsupported-media-type, malformed-msgpack.
    """
    if len(body) <= most:
        return
    is_msgpack = media_type(content_type) == MSGPACK
    try:
        is_too_much = lists_more_than(most, body, is_msgpack=is_msgpack)
    except msgspec.MsgspecError as error:
        raise _malformed("malformed-msgpack", error, "") from error
    if is_too_much:
        raise Problem(
            "limit-exceeded",
            f"the body lists more than {most} values; list fewer in one request",
            limit=most,
            limit_name="max_values_per_request",
        )


def lists_more_than(most: int, body: bytes, *, is_msgpack: bool) -> bool:
    """Return whether a body has more than `most` values.

    For JSON, this function counts commas, also commas inside texts. For msgpack, it raises
    MsgspecError if the body is not one complete value.
    """
    if len(body) <= most:
        return False
    if is_msgpack:
        return _count(body, most) > most
    return body.count(b",") >= most


def _count(raw: bytes | memoryview, most: int) -> int:
    """Return the number of values in a msgpack value, including the value itself.

    If there are more than `most` values, return any number above `most`.
    """
    is_list, claimed = _claimed(raw)
    if claimed == 0 or claimed >= most:
        return claimed + 1
    children = _children(raw, is_list)
    if len(children) < claimed:
        return most + 1  # a name occurs twice: msgspec would decode both values
    count = claimed + 1
    for child in children:
        if count > most:
            break
        count += _count(memoryview(child), most - count + 1) - 1
    return count


def _claimed(raw: bytes | memoryview) -> tuple[bool, int]:
    """Return whether a value is a list, and the declared length of a list or an object.

    The length is 0 if the value is empty, or neither a list nor an object.
    """
    first = raw[0]
    if first >> 4 in (0x8, 0x9):
        return first >> 4 == 0x9, first & 0xF
    size = _LISTS.get(first) or _OBJECTS.get(first) or 0
    return first in _LISTS, int.from_bytes(raw[1 : 1 + size], "big")


def _children(raw: bytes | memoryview, is_list: bool) -> Sequence[msgspec.Raw]:
    return _LISTED.decode(raw) if is_list else list(_NAMED.decode(raw).values())


def unsupported(found: str, allowed: Sequence[str]) -> Problem:
    return Problem(
        "unsupported-media-type",
        f"{found[:100] or 'a body without Content-Type'} is not understood here; send "
        f"Content-Type: {' or '.join(allowed)}",
        found=found[:200],
        allowed=list(allowed),
    )


_json_decoder: Callable[[Any], "msgspec.json.Decoder[Any]"] = cache(msgspec.json.Decoder)


def decode_json(body: bytes, type_: type[T], *, where: str = "") -> T:
    """Return a JSON text as `type_`. Problems show `where` before the name of an invalid field.

    Raises Problem: malformed-json, invalid-parameter, missing-parameter.
    """
    value: T = _decode(_json_decoder(type_), body, "malformed-json", where)
    return value


_msgpack_decoder: Callable[[Any], "msgspec.msgpack.Decoder[Any]"] = cache(msgspec.msgpack.Decoder)


def decode_msgpack(body: bytes, type_: type[T], *, where: str = "") -> T:
    """Return a msgpack body as `type_`. Problems show `where` before the name of an invalid field.

    Decoding stops at the first value that does not fit the type, so a false length in the body
    allocates no memory. Raises Problem: malformed-msgpack, invalid-parameter, missing-parameter.
    """
    value: T = _decode(_msgpack_decoder(type_), body, "malformed-msgpack", where)
    return value


_HINTS = {
    "malformed-json": "send UTF-8 that is well-formed",
    "malformed-msgpack": "encode it again, as one msgpack object with text keys",
}
#: Replacements for error messages of msgspec that do not explain the error completely.
_PLAINER = {
    ("malformed-json", "Input data was truncated"): "it ends in the middle of a value, or has one "
    "half of a pair of surrogates",
}


def _decode(
    decoder: "msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]",
    body: bytes,
    malformed: str,
    where: str,
) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_member(str(error), where, decoder, body) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(malformed, error, where) from error
    except RecursionError as error:
        raise Problem(malformed, "it is nested too deeply; send it flat") from error


def _malformed(malformed: str, error: Exception, where: str) -> Problem:
    at = f"{where}: " if where else ""
    what = _PLAINER.get((malformed, str(error)), error)
    return Problem(malformed, f"{at}{what}; {_HINTS[malformed]}")


#: msgspec's path begins with this text if a key of an object is invalid.
_A_KEY_IN = "`key` in "
_ENUM = "Invalid enum value "


def _invalid_member(
    message: str,
    where: str,
    decoder: "msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]",
    body: bytes,
) -> Problem:
    """Return the problem for an error message of msgspec.

    Such a message is "Expected `int`, got `str` - at `$.messages[0].queue`".
    """
    what, _, at = message.partition(" - at ")
    is_key = at.startswith(_A_KEY_IN)
    path = at.removeprefix(_A_KEY_IN).strip("`").removeprefix("$").removeprefix(".")
    member = find_member(path, decoder.type, _untyped(decoder, body, path))
    parameter = ".".join(part for part in (where, member.path) if part)
    unknown = re.fullmatch(r"Object (?:contains unknown|missing required) field `(.*)`", what)
    if unknown:
        parameter = ".".join(part for part in (parameter, unknown[1][:200]) if part)
    if unknown and "unknown" in what and (names := members_of(member.type)):
        return Problem(
            "invalid-parameter",
            f"{parameter}: {what}; allowed: {names}",
            parameter=parameter,
            allowed=names,
        )
    if what.startswith(_ENUM):
        allowed, found = allowed_at(member.type), what.removeprefix(_ENUM)[:200]
        return Problem(
            "invalid-parameter",
            f"{parameter or 'the body'} is {found}; allowed: {allowed}",
            **({"parameter": parameter} if parameter else {}),
            found=found.strip("'"),
            allowed=allowed,
        )
    slug = "missing-parameter" if "missing required" in what else "invalid-parameter"
    members = {"parameter": parameter} if parameter else {}
    place = f"{'a key of ' if is_key else ''}{parameter or 'the body'}"
    return Problem(
        slug,
        f"{place}: {what}; see /openapi.json for what is allowed",
        **members,
    )


def _untyped(
    decoder: "msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]", body: bytes, path: str
) -> Any:
    """Return the body decoded without a type, so that `find_member` can find the keys in it.

    In `path`, msgspec writes "[...]" instead of the key of an object. Return UNSET if `path` has no
    "[...]", or if the body is long or invalid.
    """
    if "[...]" not in path or len(body) > SHORT_BYTES:
        return UNSET
    untyped: Any = type(decoder)()
    try:
        return untyped.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return UNSET


# -- encoding ------------------------------------------------------------------------------


def encode(media: str, value: object) -> bytes:
    """Return the value of a reply, encoded as `media` (JSON or msgpack)."""
    return _ENCODE[media](value)


_ENCODE: dict[str, Callable[[object], bytes]] = {
    JSON: msgspec.json.Encoder().encode,
    MSGPACK: msgspec.msgpack.Encoder().encode,
}
_json_encoder = msgspec.json.Encoder()


def encode_lines(values: Sequence[object]) -> bytes:
    """Return `values` as NDJSON: each value is one line of JSON."""
    return _json_encoder.encode_lines(values)


# -- long lists, in portions ---------------------------------------------------------------
# Encoding ten megabytes in one step would block the event loop for tens of milliseconds.

_EMPTY_ARRAY = b"\x90"
_ARRAY_16, _ARRAY_32 = 16, 2**16


def encode_elements(media: str, values: Sequence[object]) -> bytes:
    """Return the encoded elements of a list, without the brackets (JSON) or header (msgpack)."""
    whole = encode(media, values)
    if media == JSON:
        return whole[1:-1]
    size = 1 if len(values) < _ARRAY_16 else 3 if len(values) < _ARRAY_32 else 5
    return whole[size:]


def encode_listing(
    media: str, envelope: object, name: str, portions: Sequence[bytes], count: int
) -> list[Buffer]:
    """Return the parts of a reply: the encoded `envelope`, with elements in its list `name`.

    In `envelope` this list must be empty, and no text before the list may look like the list's name
    with an empty list. `portions` are results of `encode_elements`, with `count` elements in total.
    """
    parts: list[Buffer] = []
    for portion in portions:
        parts += [b",", portion] if parts and media == JSON else [portion]
    return wrap_listing(media, envelope, name, parts, count)


def wrap_listing(
    media: str, envelope: object, name: str, parts: Sequence[Buffer], count: int
) -> list[Buffer]:
    """Return the same as `encode_listing`, for `parts` that already have commas between them."""
    whole = encode(media, envelope)
    if media == JSON:
        before, empty, behind = whole.partition(f'"{name}":[]'.encode())
        assert empty
        return [before + empty[:-1], *parts, b"]" + behind]
    before, empty, behind = whole.partition(name.encode() + _EMPTY_ARRAY)
    assert empty
    return [before + empty[:-1] + b"\xdd" + count.to_bytes(4, "big"), *parts, behind]
