from operator import attrgetter

import pytest

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.offsets import (
    EARLIEST,
    LATEST,
    AtTime,
    EarliestOrLatest,
    ExplicitOffsets,
    StoredByGroup,
)
from holdfast.spark.options.read import OPTIONS, parse_options

BASIC = {"url": "http://broker:8711", "topic": "orders"}


def test_defaults_read_a_whole_topic() -> None:
    options = parse_options(BASIC)
    assert options.address.url == "http://broker:8711"
    assert options.topics == ("orders",)
    assert options.start == EarliestOrLatest(EARLIEST)
    assert options.end == EarliestOrLatest(LATEST)
    assert options.fail_on_data_loss
    assert list(options.columns) == [
        "queue", "offset", "key", "tag", "properties", "body", "born_timestamp", "store_timestamp",
    ]  # fmt: skip


def test_names_are_not_case_sensitive() -> None:
    options = parse_options({"URL": "http://b:1", "TOPIC": "t", "startingoffsets": '{"0": 5}'})
    assert options.start == ExplicitOffsets({None: {0: 5}})


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"url": "http://b:1/"}, "address.url", "http://b:1"),
        ({"url": "https://b/prefix/"}, "address.url", "https://b/prefix"),
        ({"url": "b:8711"}, "address.url", "http://b:8711"),
        ({"url": None, "kafka.bootstrap.servers": "b:1"}, "address.url", "http://b:1"),
        ({"url": None, "kafka.bootstrap.servers": "https://b"}, "address.url", "https://b"),
        ({"url": "http://[::1]:8711"}, "address.url", "http://[::1]:8711"),
        ({"topic": "a"}, "topics", ("a",)),
        ({"topic": None, "subscribe": "a, b,a"}, "topics", ("a", "b")),
        ({"topic": None, "assign": '{"a": [0, 2]}'}, "assigned", {"a": frozenset({0, 2})}),
        ({"startingOffsets": "group:billing"}, "start", StoredByGroup("billing")),
        ({"endingTimestamp": "17"}, "end", AtTime(17)),
        ({"maxBytesPerPartition": "1"}, "max_bytes_per_partition", 1),
        ({"maxBytesPerPartition": "64m"}, "max_bytes_per_partition", 64 << 20),
        ({"maxBytesPerPartition": "2 MiB"}, "max_bytes_per_partition", 2 << 20),
        ({"maxBytesPerPartition": "1gb"}, "max_bytes_per_partition", 1 << 30),
    ],
)
def test_values_are_parsed(given: dict[str, str | None], name: str, value: object) -> None:
    options = {name: text for name, text in (BASIC | given).items() if text is not None}
    assert attrgetter(name)(parse_options(options)) == value


@pytest.mark.parametrize(
    "given", [{"subscribe": "a,b"}, {"subscribePattern": "a.*"}, {"assign": '{"a":[0],"b":[0]}'}]
)
def test_several_topics_get_a_topic_column(given: dict[str, str]) -> None:
    assert "topic" in parse_options({"url": "b:1", **given}).columns


def test_columns_have_the_given_order() -> None:
    options = parse_options(BASIC | {"columns": "body, message_id,topic"})
    columns = [("body", "binary"), ("message_id", "string"), ("topic", "string")]
    assert list(options.columns.items()) == columns


def test_a_body_can_be_left_out() -> None:
    assert "body" not in parse_options(BASIC | {"includeBody": "false"}).columns
    kafka = parse_options(BASIC | {"includeBody": "false", "schema": "kafka"})
    assert "value" not in kafka.columns


def test_kafka_columns_are_the_connectors() -> None:
    options = parse_options(BASIC | {"schema": "kafka", "includeHeaders": "true"})
    assert list(options.columns.items()) == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert "headers" not in parse_options(BASIC | {"schema": "kafka"}).columns


@pytest.mark.parametrize(
    ("given", "option", "says"),
    [
        ({"startingOfsets": "latest"}, "startingOfsets", "did you mean 'startingOffsets'"),
        ({"zzz": "1"}, "zzz", "known are url, "),
        ({"transport": "files"}, "transport", "give path"),
        ({"transport": "ftp"}, "transport", "none of auto, files, http"),
        ({"path": " "}, "path", "empty"),
        (
            {"path": "/data", "transport": "files", "filter": "a = 1"},
            "filter",
            "only a broker evaluates it",
        ),
        ({"kafka.group.id": "g"}, "kafka.group.id", "joins no group"),
        ({"url": ""}, "url", "empty"),
        ({"url": "http://b:1,http://c:1"}, "url", "one broker"),
        ({"url": "ftp://b"}, "url", "not an address"),
        ({"url": "http://b:99999"}, "url", "not an address"),
        ({"url": "http://user:pw@b"}, "url", "token"),
        ({"kafka.bootstrap.servers": "b:1"}, "url", "exactly one"),
        ({"subscribe": "a"}, "topic", "exactly one"),
        ({"topic": "a,,b"}, "topic", "empty name"),
        ({"startingOffsets": "latest"}, "startingOffsets", "reads nothing"),
        ({"endingOffsets": "earliest"}, "endingOffsets", "reads nothing"),
        ({"startingOffsets": "soon"}, "startingOffsets", "not earliest"),
        ({"startingOffsets": '{"0": 1'}, "startingOffsets", "not JSON"),
        ({"startingOffsets": "1", "startingTimestamp": "1"}, "startingTimestamp", "contradict"),
        ({"startingTimestamp": "-1"}, "startingTimestamp", "not an integer"),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "startingTimestamp", "after"),
        ({"columns": "boddy"}, "columns", "did you mean 'body'"),
        ({"columns": "body,body"}, "columns", "twice"),
        ({"columns": "body", "includeBody": "false"}, "includeBody", "columns names"),
        ({"includeBody": "no"}, "includeBody", "none of true, false"),
        ({"includeHeaders": "true"}, "includeHeaders", "schema=kafka"),
        ({"schema": "avro"}, "schema", "none of holdfast, kafka"),
        ({"minPartitions": "0"}, "minPartitions", "at least 1"),
        ({"maxBytesPerPartition": "much"}, "maxBytesPerPartition", "not a size"),
        ({"fetchMaxBytes": "17m"}, "fetchMaxBytes", "up to 16777216"),
        ({"topicIds": "[]"}, "topicIds", "JSON object"),
        ({"topicIds": '{"a": "b"}'}, "topicIds", "a number"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], option: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says) as caught:
        parse_options(BASIC | given)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topic": "t"}, "exactly one of url"),
        ({"url": "b:1"}, "exactly one of topic"),
        ({"url": "b:1", "subscribePattern": "("}, "regular expression"),
        ({"url": "b:1", "assign": '{"a": [-1]}'}, "list of queue numbers"),
        ({"url": "b:1", "assign": "7"}, "JSON object"),
        ({"url": "b:1", "subscribe": "a,b", "startingOffsets": '{"0": 1}'}, "name them"),
    ],
)
def test_a_read_needs_one_broker_and_one_choice_of_topics(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        parse_options(given)


@pytest.mark.parametrize(
    "url", ["http://:hidden@b", "ftp://me:hidden@b", "http://a,http://me:hidden@b", "a,me:hidden@b"]
)
def test_a_password_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidOption, match="use the option token") as caught:
        parse_options(BASIC | {"url": url})
    assert "hidden" not in str(caught.value)


def test_an_address_may_have_its_scheme_in_capitals() -> None:
    location = parse_options(BASIC | {"url": "HTTPS://Broker:1", "caFile": "/ca.pem"}).location
    assert location.require_broker("").url == "HTTPS://Broker:1"


def test_every_option_has_its_line() -> None:
    assert all(OPTIONS.values())


def test_a_directory_may_replace_a_broker() -> None:
    options = parse_options({"topic": "t", "path": "/data"})
    assert (options.location.address, options.location.path) == (None, "/data")
    assert options.location.transport == "auto"
    with pytest.raises(InvalidOption, match="give url together with path"):
        _ = options.address
    both = parse_options({"topic": "t", "path": "/data", "url": "http://broker:8711"})
    assert both.address.url == "http://broker:8711"
    assert both.location.path == "/data"


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"transport": "http"}, "transport"),
        ({"token": "secret"}, "token"),
        ({"caFile": "/ca.pem"}, "caFile"),
        ({"filter": "a = 1"}, "filter"),
    ],
)
def test_options_that_need_a_broker_are_refused_without_one(
    given: dict[str, str], option: str
) -> None:
    with pytest.raises(InvalidOption, match=option):
        parse_options({"topic": "t", "path": "/data", **given})
