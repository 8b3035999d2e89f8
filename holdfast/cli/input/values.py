"""Checks and converts the values of options. Each `as_` function is a click callback; `as_span`
returns one."""

import re
import time
from collections.abc import Callable

import click

from holdfast.cli.input.outgoing import parse_property
from holdfast.cli.input.start_position import Start, parse_duration, parse_start
from holdfast.cli.output.figures import format_span
from holdfast.cli.output.message_format import Formatter, make_formatter
from holdfast.cli.output.terminal import is_terminal
from holdfast.config import SPAN_UNITS, parse_size, parse_span_ms

Context = click.Context
Parameter = click.Parameter


def as_url(_context: Context, _parameter: Parameter, text: str) -> str:
    """Check a broker's address."""
    if not text.startswith(("http://", "https://")):
        raise click.BadParameter(f"{text!r} must begin with http:// or https://.")
    return text


def as_topic(_context: Context, _parameter: Parameter, text: str) -> str:
    """Check a topic's name."""
    return _checked_name("topic", text)


def as_topics(_context: Context, _parameter: Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Check topics' names."""
    return tuple(_checked_name("topic", text) for text in texts)


def as_weighted_topics(
    _context: Context, _parameter: Parameter, texts: tuple[str, ...]
) -> dict[str, int]:
    """Convert topics' names, each with an optional weight after an equals sign. The default weight
    is 1."""
    weights: dict[str, int] = {}
    for text in texts:
        topic, _, weight = text.partition("=")
        if weight and not re.fullmatch(r"\d{1,9}", weight, re.ASCII):
            raise click.BadParameter(f"{text!r}: a weight is a whole number, as in orders=8.")
        weights[_checked_name("topic", topic)] = int(weight or 1)
    return weights


def as_topic_filters(
    _context: Context, _parameter: Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Convert filters of topics: each is the topic, an equals sign, and the filter."""
    filters: dict[str, str] = {}
    for text in texts:
        topic, found, expression = text.partition("=")
        if not found or not expression:
            raise click.BadParameter(f"{text!r}: write TOPIC=FILTER, as in orders=paid,served.")
        filters[_checked_name("topic", topic)] = expression
    return filters


def as_span(minimum_ms: int = 0, unit: str = "ms") -> Callable[..., int | None]:
    """Return a callback that converts a duration, such as 90s or 7d, to milliseconds.

    A number without a unit is in `unit`, as the option's name says. A duration shorter than
    `minimum_ms` is refused.
    """

    def convert(_context: Context, _parameter: Parameter, text: str | None) -> int | None:
        if text is None:
            return None
        span_ms = _span_ms(text, unit)
        if span_ms is None:
            raise click.BadParameter(f"{text!r} is no time; write such as 500ms, 90s or 7d.")
        if span_ms < minimum_ms:
            raise click.BadParameter(f"{text!r} is too short; at least {format_span(minimum_ms)}.")
        return span_ms

    return convert


def as_milliseconds(_context: Context, _parameter: Parameter, text: str | None) -> list[int] | None:
    """Convert durations, such as 1s or 5000, separated by commas, to milliseconds."""
    if text is None:
        return None
    spans = [parse_span_ms(each) for each in text.split(",")]
    if None in spans:
        raise click.BadParameter(f"{text!r}: write times such as 1s,5s,1m, or milliseconds.")
    return [span for span in spans if span is not None]


def as_place_in_queue(
    _context: Context, _parameter: Parameter, texts: tuple[str, ...]
) -> dict[str, dict[int, int]]:
    """Convert offsets, each given as TOPIC:QUEUE:OFFSET."""
    places: dict[str, dict[int, int]] = {}
    for text in texts:
        topic, *numbers = text.rsplit(":", 2)
        if len(numbers) != 2 or not all(re.fullmatch(r"\d{1,18}", n, re.ASCII) for n in numbers):
            raise click.BadParameter(f"{text!r}: write TOPIC:QUEUE:OFFSET, as in orders:0:12.")
        queue, offset = map(int, numbers)
        places.setdefault(_checked_name("topic", topic), {})[queue] = offset
    return places


def as_properties(
    _context: Context, _parameter: Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Convert properties, each given as NAME=VALUE."""
    try:
        return dict(map(parse_property, texts))
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


def as_group(_context: Context, _parameter: Parameter, text: str) -> str:
    """Check a group's name."""
    return _checked_name("group", text)


def as_size(_context: Context, _parameter: Parameter, text: str | None) -> int | None:
    """Convert a number of bytes, such as 65536 or 16MiB."""
    if text is None:
        return None
    size = parse_size(text)
    if size is None:
        raise click.BadParameter(f"{text!r} is no size; write bytes, or such as 16MiB.")
    return size


def as_duration(_context: Context, _parameter: Parameter, text: str | None) -> int | None:
    """Convert a duration, such as 90s or 12h, to milliseconds. A number without a unit is
    refused."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


def as_regex(_context: Context, _parameter: Parameter, text: str | None) -> str | None:
    """Check that a Python regular expression compiles."""
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise click.BadParameter(f"{text!r}: {error}.") from error
    return text


def as_start(_context: Context, _parameter: Parameter, text: str | None) -> Start | None:
    """Convert `earliest`, `latest`, an offset or a time. A relative time is relative to now."""
    if text is None:
        return None
    try:
        return parse_start(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


def as_formatter(_context: Context, _parameter: Parameter, text: str | None) -> Formatter:
    """Convert the name of a form, or a format, to the function that formats messages. The default
    is pretty on a terminal, otherwise json."""
    try:
        return make_formatter(text or ("pretty" if is_terminal() else "json"))
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


def _span_ms(text: str, unit: str) -> int | None:
    """Return the milliseconds of a duration, or None for any other text. A number without a unit is
    in `unit`, and may have a fraction."""
    if re.fullmatch(r"\d{1,15}(\.\d{1,6})?", text, re.ASCII):
        return round(float(text) * SPAN_UNITS[unit])
    return parse_span_ms(text)


def _checked_name(kind: str, text: str) -> str:
    from holdfast.client.transport.requests import check_name

    try:
        return check_name(kind, text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error
