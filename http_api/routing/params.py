"""Query strings, declared and parsed: the fields of a dataclass are an endpoint's parameters.

    @dataclass(frozen=True, slots=True)
    class PullParams:
        offset: int | None = whole("The first offset wanted.")

    params = read_params(PullParams, query_pairs("offset=5"), config)

A bound is a number, or the name of a setting of HttpConfig. A value above its bound is refused with
limit-exceeded, never silently reduced to the bound. An undeclared name is refused, too, so that a
typing error does not silently select a default. The checks at the end are for values in bodies.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache, partial
from typing import Any, TypeVar, cast
from urllib.parse import unquote_to_bytes

import msgspec
from yarl import URL

from holdfast.consumequeue.errors import UnknownQueue
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routing.moments import (
    EXAMPLES,
    MAX_TIMESTAMP_MS,
    PATTERN,
    parse_time_ms,
)
from holdfast.http_api.wire.problems import Problem

P = TypeVar("P")

MAX_OFFSET = 2**63 - 1
#: At most this many queries, and at most this many single values, are cached.
_CACHE_SIZE = 1024
#: Queries with more characters are not cached.
_SHORT_CHARACTERS = 256
PAIRS_PATTERN = "^[0-9]{1,10}:[0-9]{1,18}(,[0-9]{1,10}:[0-9]{1,18})*$"
"""The pattern of offsets of several queues, in the OpenAPI document.

It accepts slightly fewer texts than the parser, because a pattern cannot express the maximum of a
number.
"""
PAIRS_EXAMPLE = "queue:offset pairs with commas between, as 0:12,1:40"
_PLAIN_PAIRS = re.compile(PAIRS_PATTERN.replace("$", r"\Z"))
_CLIENT_LABEL = re.compile(r"[!-~]{1,127}", re.ASCII)

Bound = int | str
"""A number, or the name of a setting whose value is the number."""


class Param(msgspec.Struct, frozen=True):
    """One parameter of a query string: how it is parsed, and how OpenAPI describes it."""

    doc: str
    parse: Callable[["Param", str, HttpConfig], Any]
    schema: Callable[["Param", HttpConfig], dict[str, object]]
    name: str = ""
    """The name in the query; "" if the parameter has the name of its field."""
    minimum: int = 0
    maximum: Bound = MAX_OFFSET
    default: str | None = None
    """The setting that is used if the parameter is missing."""
    choices: tuple[str, ...] = ()
    pattern: str = ""
    """The regular expression of a text in the OpenAPI document. The endpoint parses the text."""
    is_required: bool = False
    """Whether the OpenAPI document calls the parameter required. The endpoint must check this."""
    zero_turns_off: bool = False
    """Whether every value counts as 0 if the limit is 0. If not, values above 0 are refused."""

    def limit(self, config: HttpConfig) -> int:
        maximum = self.maximum
        return maximum if isinstance(maximum, int) else int(getattr(config, maximum))


def whole(
    doc: str,
    *,
    minimum: int = 0,
    maximum: Bound = MAX_OFFSET,
    default: str | int | None = None,
    required: bool = False,
    zero_turns_off: bool = False,
) -> Any:
    """Declare a whole number. `default` is a number or the name of a setting.

    If a `required` parameter is missing, its value is None, and the endpoint must refuse it.
    """
    setting = default if isinstance(default, str) else None
    return _declare(
        Param(
            doc,
            _parse_whole,
            _whole_schema,
            minimum=minimum,
            maximum=maximum,
            default=setting,
            is_required=required,
            zero_turns_off=zero_turns_off,
        ),
        default if setting is None else None,
    )


def moment(doc: str, *, required: bool = False) -> Any:
    """Declare a point in time. Its value is in milliseconds since 1970.

    If a `required` parameter is missing, its value is None, and the endpoint must refuse it.
    """
    return _declare(Param(doc, _parse_moment, _moment_schema, is_required=required), None)


def choice(doc: str, *choices: str, name: str = "", default: str | None = None) -> Any:
    """Declare a parameter whose value must be one of `choices`."""
    return _declare(Param(doc, _parse_choice, _choice_schema, name, choices=choices), default)


def flag(doc: str) -> Any:
    """Declare a flag, which is "true" or "false" in the query. If it is missing, it is False."""
    return _declare(Param(doc, _parse_flag, _flag_schema), False)


def text(doc: str, *, maximum: Bound = 8192, required: bool = False, pattern: str = "") -> Any:
    """Declare a text of 1 to `maximum` bytes of UTF-8.

    `pattern` appears in the OpenAPI document but is not checked.
    """
    return _declare(
        Param(
            doc, _parse_text, _text_schema, maximum=maximum, pattern=pattern, is_required=required
        ),
        None,
    )


def _declare(param: Param, default: object) -> Any:
    return field(default=default, metadata={"param": param})


class Queries:
    """Parses query strings and caches the results. Belongs to the event loop.

    The same query string always gives the same parameters, and clients repeat their queries. The
    queries of a reader that advances differ only in the offset, so single values are cached, too.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._cached = lru_cache(_CACHE_SIZE)(self._read)
        self._value_of = lru_cache(_CACHE_SIZE)(partial(read_value, config))

    def read(self, params: type, raw_query: str) -> Any:
        """Return a query's parameters. Several requests share the object: treat it as immutable.

        Raises the problems of `query_pairs` and `read_params`.
        """
        if len(raw_query) <= _SHORT_CHARACTERS:
            return self._cached(params, raw_query)
        return read_params(params, query_pairs(raw_query), self._config)

    def _read(self, params: type, raw_query: str) -> Any:
        return read_params(params, query_pairs(raw_query), self._config, self._value_of)


@cache
def declared(params: Any) -> Mapping[str, tuple[str, Param]]:
    """Return the parameters that a dataclass declares: name -> (name of its field, parameter)."""
    found = {}
    for each in fields(params):
        param: Param = each.metadata["param"]
        found[param.name or each.name] = (each.name, param)
    return found


def query_pairs(raw_query: str) -> Iterable[tuple[str, str]]:
    """Return the decoded names and values of a query string, in their order.

    Raises Problem (invalid-parameter) if the query string is not percent-encoded UTF-8. yarl's
    decoder would replace invalid bytes by U+FFFD, so it could turn one key into another key.
    """
    if "%" in raw_query:
        try:
            unquote_to_bytes(raw_query).decode()
        except UnicodeError:
            raise invalid("query", raw_query, "percent-encoded UTF-8") from None
    if "%" in raw_query or "+" in raw_query or not raw_query.isascii():
        return URL.build(query_string=raw_query, encoded=True).query.items()
    # Without escapes, this gives the same result as yarl's decoder, in a fifth of the time.
    parts = [each.partition("=") for each in raw_query.split("&") if each]
    return [(name, value) for name, _, value in parts]


def read_params(
    params: type[P],
    query: Iterable[tuple[str, str]],
    config: HttpConfig,
    value_of: Callable[[type, str, str], Any] | None = None,
) -> P:
    """Return the parameters of a query as an object of the class `params`.

    `query` has the names and values. If `value_of` is given, it is called instead of
    `partial(read_value, config)`. Raises Problem (invalid-parameter) for an unknown parameter or a
    parameter that occurs twice, and the problems of `read_value`.
    """
    if value_of is None:
        value_of = partial(read_value, config)
    known = declared(cast(Any, params))
    values: dict[str, Any] = {}
    for name, given in query:
        if name not in known:
            raise _unknown(name, list(known))
        field_name, _ = known[name]
        if field_name in values:
            raise invalid(name, given, "one value", f"{name} is given more than once")
        values[field_name] = value_of(params, name, given)
    for field_name, param in known.values():
        if param.default is not None and field_name not in values:
            values[field_name] = getattr(config, param.default)
    return params(**values)


def read_value(config: HttpConfig, params: type, name: str, given: str) -> Any:
    """Return the value of one declared parameter, parsed from the text `given`.

    Raises Problem: invalid-parameter (not parsable, or too small) or limit-exceeded.
    """
    _, param = declared(params)[name]
    try:
        return param.parse(param, given, config)
    except _AboveLimit as error:
        detail = f"{name}={given[:40]} is above its limit; use {error.limit} at most"
        raise _limit_exceeded(detail, name, error.limit) from None
    except ValueError as error:
        raise invalid(name, given, str(error)) from None


@dataclass(eq=False, repr=False)
class _AboveLimit(Exception):
    limit: int


def whole_number(given: str) -> int | None:
    """Return a number of at most 19 decimal digits; None for any other text."""
    if not (given.isascii() and given.isdigit()) or len(given) > 19:
        return None
    return int(given)


def _parse_whole(param: Param, given: str, config: HttpConfig) -> int:
    limit = param.limit(config)
    value = whole_number(given)
    if value is None and given.isascii() and given.isdigit():
        raise _AboveLimit(limit)
    if value is None or value < param.minimum:
        raise ValueError(f"a whole number from {param.minimum} to {limit}")
    if value > limit:
        if limit == 0 and param.zero_turns_off:
            return 0
        raise _AboveLimit(limit)
    return value


def _whole_schema(param: Param, config: HttpConfig) -> dict[str, object]:
    limit = param.limit(config)
    if limit == 0 and param.zero_turns_off:
        limit = MAX_OFFSET
    return {"type": "integer", "minimum": param.minimum, "maximum": limit}


def _parse_moment(param: Param, given: str, config: HttpConfig) -> int:
    if given.isascii() and given.isdigit() and int(given[:20]) > MAX_TIMESTAMP_MS:
        raise _AboveLimit(MAX_TIMESTAMP_MS)
    return parse_time_ms(given)


def _moment_schema(param: Param, config: HttpConfig) -> dict[str, object]:
    return {"type": "string", "pattern": PATTERN, "examples": list(EXAMPLES)}


def _parse_choice(param: Param, given: str, config: HttpConfig) -> str:
    if given not in param.choices:
        raise ValueError(" or ".join(param.choices))
    return given


def _choice_schema(param: Param, config: HttpConfig) -> dict[str, object]:
    return {"type": "string", "enum": list(param.choices)}


def _parse_flag(param: Param, given: str, config: HttpConfig) -> bool:
    if given not in ("true", "false"):
        raise ValueError("true or false")
    return given == "true"


def _flag_schema(param: Param, config: HttpConfig) -> dict[str, object]:
    return {"type": "boolean"}


def _parse_text(param: Param, given: str, config: HttpConfig) -> str:
    if not given:
        raise ValueError("a text that is not empty; leave the parameter out for none")
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        raise ValueError("percent-encoded UTF-8") from None
    if size > param.limit(config):
        raise _AboveLimit(param.limit(config))
    return given


def _text_schema(param: Param, config: HttpConfig) -> dict[str, object]:
    schema: dict[str, object] = {
        "type": "string",
        "minLength": 1,
        "maxLength": param.limit(config),
    }
    if param.pattern:
        schema["pattern"] = param.pattern
    return schema


def invalid(parameter: str, found: object, allowed: str, detail: str | None = None) -> Problem:
    shown = found if not isinstance(found, str) else found[:200]
    return Problem(
        "invalid-parameter",
        f"{detail or f'{parameter} is {shown!r}'}; allowed: {allowed}",
        parameter=parameter,
        found=shown,
        allowed=allowed,
    )


def _unknown(name: str, known: list[str]) -> Problem:
    allowed = ", ".join(known) if known else "no parameters at all"
    return invalid(name, name, allowed, f"there is no parameter {name[:200]!r} here")


def check_at_most(
    parameter: str, value: float | None, limit: float, limit_name: str | None = None
) -> None:
    """Raise Problem (limit-exceeded) if a number exceeds its limit. None is accepted.

    So a value above its limit is refused, never silently reduced to the limit.
    """
    if value is not None and value > limit:
        detail = f"{parameter}={value} is above its limit; use {limit} at most"
        raise _limit_exceeded(detail, parameter, limit, limit_name)


def check_count_at_most(
    parameter: str, what: str, count: int, limit: int, limit_name: str | None = None
) -> None:
    """Raise Problem (limit-exceeded) if a list has more than `limit` elements."""
    if count > limit:
        detail = f"{count} {what} are given; give {limit} at most in one request"
        raise _limit_exceeded(detail, parameter, limit, limit_name)


def _limit_exceeded(
    detail: str, parameter: str, limit: float, limit_name: str | None = None
) -> Problem:
    named = {} if limit_name is None else {"limit_name": limit_name}
    return Problem("limit-exceeded", detail, parameter=parameter, limit=limit, **named)


def check_client_label(parameter: str, given: str) -> str:
    """Check and return a name that a client has chosen for itself or for a request.

    The name must have 1 to 127 visible ASCII characters. Raises Problem (invalid-parameter).
    """
    if not _CLIENT_LABEL.fullmatch(given):
        raise invalid(parameter, given, "1 to 127 visible characters of ASCII")
    return given


def parse_pairs(parameter: str, given: str, topic: Topic) -> dict[int, int]:
    """Return queue -> offset for a text such as "0:12,1:40", in the order of the text.

    Raises Problem, UnknownQueue.
    """
    if _PLAIN_PAIRS.match(given):
        numbers = [int(each) for each in given.replace(":", ",").split(",")]
        plain = dict(zip(numbers[::2], numbers[1::2], strict=True))
        if 2 * len(plain) == len(numbers) and max(plain) < topic.queue_count:
            return plain
    # The text is wrong or unusual. Parsing pair by pair finds the error, if there is one.
    offsets: dict[int, int] = {}
    for pair in given.split(","):
        queue_text, _, offset_text = pair.partition(":")
        queue, offset = whole_number(queue_text), whole_number(offset_text)
        if queue is None or offset is None:
            raise invalid(parameter, pair, PAIRS_EXAMPLE)
        if queue >= topic.queue_count:
            raise UnknownQueue(topic.name, queue, topic.queue_count)
        if queue in offsets:
            raise invalid(parameter, pair, "each queue once", f"queue {queue} is named twice")
        offsets[queue] = offset
    return offsets
