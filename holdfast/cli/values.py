"""What option values mean: each function is a click callback that checks a text and converts it."""

import re
import time

import click

from holdfast.cli.message_format import Formatter, make_formatter
from holdfast.cli.output import is_terminal
from holdfast.cli.start import Start, parse_duration, parse_start
from holdfast.config import parse_size

Context = click.Context
Parameter = click.Parameter


def as_url(_context: Context, _parameter: Parameter, text: str) -> str:
    """Take an address of a broker."""
    if not text.startswith(("http://", "https://")):
        raise click.BadParameter(f"{text!r} must begin with http:// or https://.")
    return text


def as_topic(_context: Context, _parameter: Parameter, text: str) -> str:
    """Take a topic's name."""
    return _checked_name("topic", text)


def as_topics(_context: Context, _parameter: Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Take topics' names."""
    return tuple(_checked_name("topic", text) for text in texts)


def as_weighted_topics(
    _context: Context, _parameter: Parameter, texts: tuple[str, ...]
) -> dict[str, int]:
    """Take topics' names, each with its weight behind an equals sign, or without one."""
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
    """Take filters of topics: the topic, an equals sign, and its filter."""
    filters: dict[str, str] = {}
    for text in texts:
        topic, found, expression = text.partition("=")
        if not found or not expression:
            raise click.BadParameter(f"{text!r}: write TOPIC=FILTER, as in orders=paid,served.")
        filters[_checked_name("topic", topic)] = expression
    return filters


def as_milliseconds(_context: Context, _parameter: Parameter, text: str | None) -> list[int] | None:
    """Take numbers of milliseconds, separated by commas."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,15}(,\d{1,15})*", text, re.ASCII):
        raise click.BadParameter(f"{text!r}: write milliseconds such as 1000,5000,60000.")
    return [int(each) for each in text.split(",")]


def as_place_in_queue(
    _context: Context, _parameter: Parameter, texts: tuple[str, ...]
) -> dict[str, dict[int, int]]:
    """Take offsets, each as TOPIC:QUEUE:OFFSET."""
    places: dict[str, dict[int, int]] = {}
    for text in texts:
        topic, *numbers = text.rsplit(":", 2)
        if len(numbers) != 2 or not all(re.fullmatch(r"\d{1,18}", n, re.ASCII) for n in numbers):
            raise click.BadParameter(f"{text!r}: write TOPIC:QUEUE:OFFSET, as in orders:0:12.")
        queue, offset = map(int, numbers)
        places.setdefault(_checked_name("topic", topic), {})[queue] = offset
    return places


def as_group(_context: Context, _parameter: Parameter, text: str) -> str:
    """Take a group's name."""
    return _checked_name("group", text)


def as_size(_context: Context, _parameter: Parameter, text: str | None) -> int | None:
    """Take a number of bytes, such as 65536 or 16MiB."""
    if text is None:
        return None
    size = parse_size(text)
    if size is None:
        raise click.BadParameter(f"{text!r} is no size; write bytes, or such as 16MiB.")
    return size


def as_duration(_context: Context, _parameter: Parameter, text: str | None) -> int | None:
    """Take a while, such as 90s or 12h, in milliseconds."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


def as_regex(_context: Context, _parameter: Parameter, text: str | None) -> str | None:
    """Take a regular expression of Python's kind that compiles."""
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise click.BadParameter(f"{text!r}: {error}.") from error
    return text


def as_start(_context: Context, _parameter: Parameter, text: str | None) -> Start | None:
    """Take an end of the queue, an offset or a time, seen from now."""
    if text is None:
        return None
    try:
        return parse_start(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


def as_formatter(_context: Context, _parameter: Parameter, text: str | None) -> Formatter:
    """Take a form in which messages are printed; without one it is the output that decides."""
    try:
        return make_formatter(text or ("pretty" if is_terminal() else "json"))
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


def _checked_name(kind: str, text: str) -> str:
    from holdfast.client.requests import checked_name

    try:
        return checked_name(kind, text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error
