"""Finds which field of a body is invalid, and which values it may have. Pure.

msgspec reports a place such as `$.messages[0].properties[...]`. It omits the key of an object and
the allowed values of an enumeration. This file finds the key in the body, and the values in the
type. That takes as long as decoding, so keys are found only in short bodies.
"""

import json
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

#: For a body with more bytes, the place is reported as msgspec gives it.
SHORT_BYTES = 128 * 1024
_STEP = re.compile(r"\.?(\w+)|\[(\d+)\]|(\[\.\.\.\])")
_KINDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}


class Member(NamedTuple):
    """A place in a body, such as `messages[0].properties["n"]`, and the type required there.

    The type is None if it could not be found.
    """

    path: str
    type: Any


def find_member(path: str, type_: Any, body: Any) -> Member:
    """Return the place in a body for a path of msgspec without its `$`.

    `body` is the decoded body. If it is UNSET, keys of objects appear as `[...]`.
    """
    named = ""
    for field, index, any_key in _STEP.findall(path):
        key: Any = None
        if field:
            type_, body = _field(type_, field), _get(body, field)
            named += f".{field}" if named else field
        elif index:
            type_, body = _item(type_, list), _get(body, int(index))
            named += f"[{index}]"
        else:
            type_ = _item(type_, dict)
            key = _refused_key(body, type_)
            body = _get(body, key)
            named += any_key if key is None else f"[{json.dumps(key[:100], ensure_ascii=False)}]"
    return Member(named, type_)


def allowed_at(type_: Any) -> str:
    """Return a description of the values that a type allows, such as "earliest or latest"."""
    words: list[str] = []
    for each in _alternatives(type_):
        if get_origin(each) is Literal:
            words += get_args(each)
        elif each in _KINDS:
            words.append(_KINDS[each])
        elif each is not msgspec.UnsetType:
            words.append("a list" if _origin(each) is list else "an object")
    return " or ".join(dict.fromkeys(words))


def members_of(type_: Any) -> str:
    """Return the names of the fields that an object may have, separated by commas.

    Return "" if the type is not an object with known fields.
    """
    for each in _alternatives(type_):
        if _is_struct(each):
            return ", ".join(field.encode_name for field in msgspec.structs.fields(each))
    return ""


def _is_struct(type_: Any) -> bool:
    origin = _origin(type_)
    return isinstance(origin, type) and issubclass(origin, msgspec.Struct)


def _alternatives(type_: Any) -> Iterator[Any]:
    """Yield the alternatives of a union, or else the type itself, without annotations."""
    origin = get_origin(type_)
    if origin is Annotated:
        yield from _alternatives(get_args(type_)[0])
    elif origin in (Union, UnionType):
        for each in get_args(type_):
            yield from _alternatives(each)
    elif type_ is not None:
        yield type_


def _origin(type_: Any) -> Any:
    return get_origin(type_) or type_


def _field(type_: Any, name: str) -> Any:
    for each in _alternatives(type_):
        if _is_struct(each):
            for field in msgspec.structs.fields(each):
                if field.encode_name == name:
                    return field.type
    return None


def _item(type_: Any, container: type) -> Any:
    """Return the type of the items of a list, or of the values of an object."""
    for each in _alternatives(type_):
        if _origin(each) is container and get_args(each):
            return get_args(each)[-1]
    return None


def _get(body: Any, key: Any) -> Any:
    try:
        return body[key]
    except (KeyError, IndexError, TypeError):
        return msgspec.UNSET


def _refused_key(body: Any, type_: Any) -> Any:
    """Return the first key of an object whose value does not fit the type; None if all fit."""
    if not isinstance(body, Mapping) or type_ is None:
        return None
    for key, value in body.items():
        try:
            msgspec.convert(value, type_)
        except msgspec.ValidationError:
            return key if isinstance(key, str) else None
    return None
