"""Check and convert the values of options.

Each `as_` function is a click callback, or returns one. It returns None if the option is not given,
and reports a wrong value as wrong usage.
"""

import re
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import click

from holdfast.cli.input.outgoing import parse_property
from holdfast.cli.input.start_position import Start, parse_duration, parse_start
from holdfast.cli.output.figures import format_span
from holdfast.cli.output.message_format import Formatter, make_formatter
from holdfast.cli.output.terminal import is_terminal
from holdfast.units import SPAN_UNITS, parse_size, parse_span_ms

Callback = Callable[[click.Context, click.Parameter, Any], Any]


def option_callback(convert: Callable[[Any], object]) -> Callback:
    """Return a click callback that applies `convert`, which raises ValueError for a wrong value."""

    @wraps(convert)
    def callback(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from error

    return callback


def _check_name(kind: str, text: str) -> str:
    """Return the name of a topic or group. Raises ValueError for a text that cannot be a name."""
    from holdfast.client.transport.requests import check_name

    return check_name(kind, text)


as_group = option_callback(partial(_check_name, "group"))
as_topic = option_callback(partial(_check_name, "topic"))


@option_callback
def as_topics(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_check_name("topic", text) for text in texts)


@option_callback
def as_url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} must begin with http:// or https://")
    return text


@option_callback
def as_weighted_topics(texts: tuple[str, ...]) -> dict[str, int]:
    """Convert topics' names, each with an optional weight, such as orders=8. The default is 1."""
    weights: dict[str, int] = {}
    for text in texts:
        topic, _, weight = text.partition("=")
        if weight and not re.fullmatch(r"\d{1,9}", weight, re.ASCII):
            raise ValueError(f"{text!r}: a weight is an integer, as in orders=8")
        weights[_check_name("topic", topic)] = int(weight or 1)
    return weights


@option_callback
def as_topic_filters(texts: tuple[str, ...]) -> dict[str, str]:
    """Convert filters of topics: each is the topic, an equals sign, and the filter."""
    filters: dict[str, str] = {}
    for text in texts:
        topic, _, expression = text.partition("=")
        if not expression:
            raise ValueError(f"{text!r}: write TOPIC=FILTER, as in orders=paid,served")
        filters[_check_name("topic", topic)] = expression
    return filters


def as_span(minimum_ms: int = 0, unit: str = "ms") -> Callback:
    """Return a callback that converts a duration, such as 90s or 7d, to milliseconds. A number
    without a unit is in `unit`, as the option's name says, and may have a fraction. A duration
    shorter than `minimum_ms` is refused."""

    @option_callback
    def convert(text: str) -> int:
        is_number = re.fullmatch(r"\d{1,15}(\.\d{1,6})?", text, re.ASCII)
        span_ms = round(float(text) * SPAN_UNITS[unit]) if is_number else parse_span_ms(text)
        if span_ms is None:
            raise ValueError(f"{text!r} is not a duration such as 500ms, 90s or 7d")
        if span_ms < minimum_ms:
            raise ValueError(f"{text!r} is too short; at least {format_span(minimum_ms)}")
        return span_ms

    return convert


@option_callback
def as_milliseconds(text: str) -> list[int]:
    """Convert durations, such as 1s or 5000, separated by commas, to milliseconds."""
    spans = [parse_span_ms(each) for each in text.split(",")]
    if None in spans:
        raise ValueError(f"{text!r}: write durations such as 1s,5s,1m, or milliseconds")
    return [span for span in spans if span is not None]


@option_callback
def as_duration(text: str) -> int:
    """Convert a duration, such as 90s, to milliseconds. A number without a unit is refused."""
    return parse_duration(text)


@option_callback
def as_place_in_queue(texts: tuple[str, ...]) -> dict[str, dict[int, int]]:
    """Convert offsets, each given as TOPIC:QUEUE:OFFSET."""
    places: dict[str, dict[int, int]] = {}
    for text in texts:
        topic, *numbers = text.rsplit(":", 2)
        if len(numbers) != 2 or not all(re.fullmatch(r"\d{1,18}", n, re.ASCII) for n in numbers):
            raise ValueError(f"{text!r}: write TOPIC:QUEUE:OFFSET, as in orders:0:12")
        queue, offset = map(int, numbers)
        places.setdefault(_check_name("topic", topic), {})[queue] = offset
    return places


@option_callback
def as_properties(texts: tuple[str, ...]) -> dict[str, str]:
    return dict(map(parse_property, texts))


@option_callback
def as_size(text: str) -> int:
    """Convert a number of bytes, such as 65536 or 16MiB."""
    size = parse_size(text)
    if size is None:
        raise ValueError(f"{text!r} is not a size in bytes, or such as 16MiB")
    return size


@option_callback
def as_regex(text: str) -> str:
    """Check that a Python regular expression compiles."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r}: {error}") from error
    return text


@option_callback
def as_start(text: str) -> Start:
    """Convert `earliest`, `latest`, an offset or a time. A relative time is relative to now."""
    return parse_start(text, time.time_ns() // 1_000_000)


def as_formatter(context: click.Context, parameter: click.Parameter, text: str | None) -> Formatter:
    """Convert the name of a form, or a format, to the function that formats messages. The default
    is pretty on a terminal, otherwise json."""
    form = text or ("pretty" if is_terminal() else "json")
    formatter: Formatter = option_callback(make_formatter)(context, parameter, form)
    return formatter
