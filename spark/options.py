"""What a read was asked for: its options, parsed and checked. Pure.

Spark hands every option over as a string and ignores what nobody asks for; here an option
that is unknown, or that contradicts another, is refused, because one silently ignored is how
a job comes to read the wrong rows. Names follow the Kafka connector where it has one.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from holdfast.spark.columns import SCHEMAS, choose_columns, nearest
from holdfast.spark.errors import InvalidOption
from holdfast.spark.offsets import (
    EARLIEST,
    LATEST,
    AtTime,
    Everywhere,
    Given,
    OffsetSpec,
    parse_offsets,
)
from holdfast.spark.tls import TlsFiles

#: Every option and what it does; docs/spark.md lists the same.
OPTIONS: Mapping[str, str] = {
    "url": "address of the broker, as every executor can reach it",
    "kafka.bootstrap.servers": "the same under its Kafka name; host:port will do",
    "token": "access token",
    "caFile": "authorities to trust in place of the system's (PEM, a path on every executor)",
    "certFile": "certificate to show to a broker that asks for one (PEM, likewise)",
    "keyFile": "its key (PEM, likewise); without it certFile holds it",
    "topic": "topic to read, or several with commas between",
    "subscribe": "the same under its Kafka name",
    "subscribePattern": "regular expression that topics match as a whole",
    "assign": 'only these queues: {"topic": [0, 1]}',
    "startingOffsets": "earliest (default), JSON, or group:NAME",
    "endingOffsets": "latest (default), JSON, or group:NAME; exclusive",
    "startingTimestamp": "begin at the first message stored at or after this time, in ms",
    "endingTimestamp": "end before the first message stored at or after this time, in ms",
    "topicIds": "fail unless the topics still have these ids (a bound read sets it)",
    "schema": "holdfast (default) or kafka",
    "columns": "names of the columns wanted, with commas between",
    "includeBody": "false leaves the body out (default true)",
    "includeHeaders": "true adds headers to the Kafka columns (default false)",
    "tag": "only messages with this tag, or one of several with commas between",
    "filter": "only messages that this SQL92 expression over the properties holds for",
    "minPartitions": "split into at least so many tasks, if there are as many blocks",
    "maxBytesPerPartition": "split into tasks of at most so many bytes (default 128m)",
    "fetchMaxBytes": "bytes that a task asks for at once (default 8m, at most 16m)",
    "failOnDataLoss": "false skips messages that are gone, and says so in the log (default true)",
}

DEFAULT_PARTITION_BYTES = 128 * 1024 * 1024  # as Spark cuts files
DEFAULT_FETCH_BYTES = 8 * 1024 * 1024
MAX_FETCH_BYTES = 16 * 1024 * 1024  # the broker's own cap on a pull

_BY_FOLD = {name.lower(): name for name in OPTIONS}
_SIZE = re.compile(r"(\d+) *([kmg]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """One batch read. Exactly one of `topics`, `pattern` and `assigned` says what is read."""

    url: str
    token: str | None = field(repr=False)
    tls: TlsFiles
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: Mapping[str, frozenset[int]] | None
    start: OffsetSpec
    end: OffsetSpec
    topic_ids: Mapping[str, int]
    columns: Mapping[str, str]
    tags: frozenset[str]
    filter: str | None
    min_partitions: int | None
    max_bytes_per_partition: int
    fetch_max_bytes: int
    fail_on_data_loss: bool


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of one read. Names are not case-sensitive. Raises InvalidOption."""
    options = _Options(given)
    topics, pattern, assigned = _parse_topics(options)
    several = pattern is not None or len(topics or assigned or ()) > 1
    start, end = _parse_range(options, several=several)
    url = _parse_url(options)
    schema = options.one_of("schema", tuple(SCHEMAS), "holdfast")
    include_headers = options.flag("includeHeaders", False)
    if include_headers and schema != "kafka":
        raise InvalidOption("includeHeaders", "belongs to schema=kafka; the column is 'properties'")
    return ReadOptions(
        url=url,
        token=_parse_token(options),
        tls=_parse_tls(options, url),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        start=start,
        end=end,
        topic_ids=_parse_topic_ids(options),
        columns=choose_columns(
            schema,
            options.text("columns"),
            several_topics=several,
            include_body=options.flag("includeBody", True),
            include_headers=include_headers,
        ),
        tags=frozenset(_parse_list("tag", options.text("tag") or "")),
        filter=options.text("filter"),
        min_partitions=options.count("minPartitions"),
        max_bytes_per_partition=options.size("maxBytesPerPartition", DEFAULT_PARTITION_BYTES),
        fetch_max_bytes=options.size("fetchMaxBytes", DEFAULT_FETCH_BYTES, maximum=MAX_FETCH_BYTES),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
    )


class _Options:
    """The options given, by documented name, with the parsers that several of them share."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given: dict[str, str] = {}
        for name, value in given.items():
            known = _BY_FOLD.get(name.lower())
            if known is None:
                raise _unknown(name)
            self._given[known] = value

    def text(self, name: str) -> str | None:
        """Return an option's text, None when it is not given; given empty is refused."""
        value = self._given.get(name)
        if value is not None and not value.strip():
            raise InvalidOption(name, "is given, but empty")
        return None if value is None else value.strip()

    def exactly_one(self, *names: str) -> str:
        """Return which one of `names` is given."""
        found = [name for name in names if name in self._given]
        if len(found) != 1:
            count = "none of them is" if not found else "not " + " and ".join(found)
            raise InvalidOption(names[0], f"give exactly one of {', '.join(names)}; {count}")
        return found[0]

    def at_most_one(self, *names: str) -> None:
        found = [name for name in names if name in self._given]
        if len(found) > 1:
            raise InvalidOption(found[0], f"and {found[1]!r} contradict each other; leave one out")

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = (self.text(name) or default).lower()
        if value not in allowed:
            raise InvalidOption(name, f"{value!r} is none of {', '.join(allowed)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return self.one_of(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, *, minimum: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdecimal()) or int(value) < minimum:
            raise InvalidOption(name, f"{value!r} is no whole number from {minimum} up")
        return int(value)

    def count(self, name: str) -> int | None:
        return self.number(name, minimum=1)

    def size(self, name: str, default: int, *, maximum: int | None = None) -> int:
        value = self.text(name)
        if value is None:
            return default
        match = _SIZE.fullmatch(value)
        size = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else 0
        if size < 1 or (maximum is not None and size > maximum):
            limit = "" if maximum is None else f" up to {maximum}"
            raise InvalidOption(name, f"{value!r} is no size in bytes (such as 64m){limit}")
        return size

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON object, empty when the option is not given."""
        text = self.text(name)
        if text is None:
            return {}
        try:
            value = json.loads(text)
        except ValueError as error:
            raise InvalidOption(name, f"not JSON: {error}") from error
        if not isinstance(value, dict) or not value:
            raise InvalidOption(name, f"{text!r} is no JSON object with something in it")
        return value


def _unknown(name: str) -> InvalidOption:
    if name.lower() == "path":
        return InvalidOption(
            "path", "reading a data directory without its broker is not there yet; give url"
        )
    if name.lower().startswith("kafka."):
        return InvalidOption(name, "settings of Kafka's client have no meaning here; leave it out")
    return InvalidOption(name, f"is unknown{nearest(name, OPTIONS)}")


def _parse_token(options: _Options) -> str | None:
    """Return the token. What is wrong with it is said without it."""
    token = options.text("token")
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise InvalidOption("token", "holds a blank or a sign that no token has")
    return token


def _parse_url(options: _Options) -> str:
    name = options.exactly_one("url", "kafka.bootstrap.servers")
    text = options.text(name) or ""
    if "," in text:
        raise InvalidOption(name, f"{text!r} are several addresses; Holdfast is one broker")
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port_fits = parts.port is None or parts.port > 0
    except ValueError as error:
        raise InvalidOption(name, f"{text!r} is no address: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_fits:
        raise InvalidOption(name, f"{text!r} is no address such as http://broker:8711")
    if parts.username or parts.query or parts.fragment:
        raise InvalidOption(name, "takes no user, query or fragment; access is by token")
    return url.rstrip("/")


def _parse_tls(options: _Options, url: str) -> TlsFiles:
    files = TlsFiles(options.text("caFile"), options.text("certFile"), options.text("keyFile"))
    for name, value in (("caFile", files.ca_file), ("certFile", files.cert_file)):
        if value is not None and not url.startswith("https://"):
            raise InvalidOption(name, f"goes with an address that begins https://, not {url}")
    if files.key_file is not None and files.cert_file is None:
        raise InvalidOption("keyFile", "is the key of certFile; give both")
    return files


def _parse_topics(
    options: _Options,
) -> tuple[tuple[str, ...] | None, str | None, Mapping[str, frozenset[int]] | None]:
    """Return (topics, pattern, assigned queues), one of which is not None."""
    name = options.exactly_one("topic", "subscribe", "subscribePattern", "assign")
    text = options.text(name) or ""
    if name == "assign":
        return None, None, _parse_assigned(options.json("assign"))
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidOption(name, f"{text!r} is no regular expression: {error}") from error
        return None, text, None
    return tuple(_parse_list(name, text)), None, None


def _parse_assigned(given: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    for topic, queues in given.items():
        if (
            not isinstance(queues, list)
            or not queues
            or any(type(queue) is not int or queue < 0 for queue in queues)
        ):
            raise InvalidOption("assign", f"{topic!r} needs a list of queue numbers")
    return {topic: frozenset(queues) for topic, queues in given.items()}


def _parse_list(name: str, text: str) -> list[str]:
    """Return the distinct words of a comma list, in order; none for an empty text."""
    words = [word.strip() for word in text.split(",")] if text else []
    if "" in words:
        raise InvalidOption(name, f"{text!r} has an empty name in it")
    return list(dict.fromkeys(words))


def _parse_range(options: _Options, *, several: bool) -> tuple[OffsetSpec, OffsetSpec]:
    options.at_most_one("startingTimestamp", "startingOffsets")
    options.at_most_one("endingTimestamp", "endingOffsets")
    start: OffsetSpec = Everywhere(EARLIEST)
    end: OffsetSpec = Everywhere(LATEST)
    if (text := options.text("startingOffsets")) is not None:
        start = parse_offsets("startingOffsets", text, ending=False)
    if (text := options.text("endingOffsets")) is not None:
        end = parse_offsets("endingOffsets", text, ending=True)
    first_ms = options.number("startingTimestamp", minimum=0)
    last_ms = options.number("endingTimestamp", minimum=0)
    if first_ms is not None:
        start = AtTime(first_ms)
    if last_ms is not None:
        end = AtTime(last_ms)
    if first_ms is not None and last_ms is not None and first_ms > last_ms:
        raise InvalidOption("startingTimestamp", f"{first_ms} is after endingTimestamp {last_ms}")
    for name, spec in (("startingOffsets", start), ("endingOffsets", end)):
        if several and isinstance(spec, Given) and None in spec.by_topic:
            raise InvalidOption(
                name, 'several topics are read: name them, as in {"orders": {"0": 12}}'
            )
    return start, end


def _parse_topic_ids(options: _Options) -> dict[str, int]:
    given = options.json("topicIds")
    if any(type(topic_id) is not int for topic_id in given.values()):
        raise InvalidOption("topicIds", 'gives a topic\'s id as a number: {"orders": 7}')
    return given
