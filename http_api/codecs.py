"""Media types: which one a request speaks, which one its reply should, and typed decoding.

Every fault of a body becomes a Problem that says where it lies. Pure.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

import msgspec

from holdfast.http_api.problems import Problem

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
MSGPACK = "application/msgpack"
#: What curl -d says when nobody tells it what it sends.
FORM = "application/x-www-form-urlencoded"
BATCH = "application/vnd.holdfast.batch"

#: Other names under which the same is asked for or sent.
_ALIASES = {
    "application/ndjson": NDJSON,
    "application/jsonl": NDJSON,
    "application/x-msgpack": MSGPACK,
    "application/vnd.msgpack": MSGPACK,
}

STRUCTURED = (JSON, MSGPACK)


# -- which media type ----------------------------------------------------------------------


@lru_cache(maxsize=256)
def media_type(content_type: str) -> str:
    """Return the bare media type of a Content-Type header, empty for none.

    Raises Problem for a text in another charset than UTF-8, which could only be misread.
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
    """Return the one of `offered` that an Accept header likes best, the first of equals.

    No header accepts everything. Raises Problem (not-acceptable) when none will do.
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


def _media_range(given: str) -> tuple[str, float]:
    """Return a media range and its quality; one that cannot be read counts as refused."""
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
    """Return the quality of the most specific range that covers `offered`, 0 for none."""
    qualities = dict(reversed(ranges))
    for candidate in (offered, offered.partition("/")[0] + "/*", "*/*"):
        if candidate in qualities:
            return qualities[candidate]
    return 0.0


# -- decoding ------------------------------------------------------------------------------


def decode(content_type: str, body: bytes, type_: type[T]) -> T:
    """Return a JSON or msgpack body as `type_`. An empty body is an empty object, and what curl
    sends when it is told no type is JSON.

    Raises Problem: unsupported-media-type, malformed-json, malformed-msgpack,
    invalid-parameter.
    """
    kind = media_type(content_type)
    if not body:
        return decode_json(b"{}", type_)
    if kind in (JSON, FORM, ""):
        return decode_json(body, type_)
    if kind == MSGPACK:
        return decode_msgpack(body, type_)
    raise unsupported(kind, STRUCTURED)


def unsupported(found: str, allowed: Sequence[str]) -> Problem:
    """Return the problem of a body in a media type that is not understood."""
    return Problem(
        "unsupported-media-type",
        f"{found[:100] or 'a body without Content-Type'} is not understood here; send "
        f"Content-Type: {' or '.join(allowed)}",
        found=found[:200],
        allowed=list(allowed),
    )


_json_decoder: Callable[[Any], "msgspec.json.Decoder[Any]"] = cache(msgspec.json.Decoder)


def decode_json(body: bytes, type_: type[T], *, where: str = "") -> T:
    """Return a JSON text as `type_`; `where` leads the name of a member that is wrong.

    Raises Problem: malformed-json, invalid-parameter.
    """
    value: T = _decoded(_json_decoder(type_), body, "malformed-json", where)
    return value


_msgpack_decoder: Callable[[Any], "msgspec.msgpack.Decoder[Any]"] = cache(msgspec.msgpack.Decoder)


def decode_msgpack(body: bytes, type_: type[T], *, where: str = "") -> T:
    """Return a msgpack body as `type_`; `where` leads the name of a member that is wrong. What
    is not of the type is refused where it begins: nothing is built of what a body only claims.

    Raises Problem: malformed-msgpack, invalid-parameter.
    """
    value: T = _decoded(_msgpack_decoder(type_), body, "malformed-msgpack", where)
    return value


_MENDS = {
    "malformed-json": "send UTF-8 that is well-formed",
    "malformed-msgpack": "encode it again, as one msgpack object with text keys",
}
#: What msgspec says, where that is not all that it may mean.
_PLAINER = {
    ("malformed-json", "Input data was truncated"): "it ends in the middle of a value, or has one "
    "half of a pair of surrogates",
}


def _decoded(
    decoder: "msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]",
    body: bytes,
    malformed: str,
    where: str,
) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_member(str(error), where) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        at = f"{where}: " if where else ""
        what = _PLAINER.get((malformed, str(error)), error)
        raise Problem(malformed, f"{at}{what}; {_MENDS[malformed]}") from error
    except RecursionError as error:
        raise Problem(malformed, "it is nested too deeply; send it flat") from error


#: How msgspec begins the place of a fault that is an object's key, not its value.
_A_KEY_IN = "`key` in "


def _invalid_member(message: str, where: str) -> Problem:
    """Return the problem for what msgspec says, such as
    "Expected `int`, got `str` - at `$.messages[0].queue`"."""
    what, _, at = message.partition(" - at ")
    is_key = at.startswith(_A_KEY_IN)
    path = at.removeprefix(_A_KEY_IN).strip("`").removeprefix("$").removeprefix(".")
    parameter = ".".join(part for part in (where, path) if part)
    unknown = re.fullmatch(r"Object (?:contains unknown|missing required) field `(.*)`", what)
    if unknown:
        parameter = ".".join(part for part in (parameter, unknown[1][:200]) if part)
    slug = "missing-parameter" if "missing required" in what else "invalid-parameter"
    members = {"parameter": parameter} if parameter else {}
    place = f"{'a key of ' if is_key else ''}{parameter or 'the body'}"
    return Problem(
        slug,
        f"{place}: {what}; see /openapi.json for what is allowed",
        **members,
    )


# -- encoding ------------------------------------------------------------------------------


def encode(media: str, value: object) -> bytes:
    """Return a reply's value in JSON or msgpack."""
    return _ENCODE[media](value)


_ENCODE: dict[str, Callable[[object], bytes]] = {
    JSON: msgspec.json.Encoder().encode,
    MSGPACK: msgspec.msgpack.Encoder().encode,
}
_json_encoder = msgspec.json.Encoder()


def encode_lines(values: Sequence[object]) -> bytes:
    """Return values as NDJSON: each on a line of its own."""
    return _json_encoder.encode_lines(values)
