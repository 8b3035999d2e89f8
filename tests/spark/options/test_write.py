from pathlib import Path

import pytest

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.write import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BATCH_ROWS,
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    MAX_EPOCH,
    WRITE_OPTIONS,
    Transaction,
    WriteOptions,
    parse_write_options,
)

BASIC = {"url": "http://broker:8711"}


def parse(streaming: bool = False, /, **given: str) -> WriteOptions:
    return parse_write_options({**BASIC, **given}, streaming=streaming)


def test_defaults() -> None:
    options = parse()
    assert options.topic is None
    assert options.durability == "fsync"
    assert options.max_batch_bytes == DEFAULT_BATCH_BYTES
    assert options.max_batch_rows == DEFAULT_BATCH_ROWS
    assert options.is_idempotent
    assert not options.create_topic
    assert options.transaction is None


def test_a_stream_accepts_options_that_spark_adds() -> None:
    parse(True, checkpointLocation="/tmp/x", TOPIC="orders")


@pytest.mark.parametrize(
    ("name", "most"), [("maxBatchBytes", MAX_BATCH_BYTES), ("maxBatchRows", MAX_BATCH_ROWS)]
)
def test_sizes_have_limits(name: str, most: int) -> None:
    for value in (1, most - 1, most):
        parse(False, **{name: str(value)})
    for value in (0, most + 1):
        with pytest.raises(InvalidOption, match=name):
            parse(False, **{name: str(value)})


def test_a_batch_write_may_be_named() -> None:
    options = parse(txnAppId="nightly", txnVersion=str(MAX_EPOCH))
    assert options.transaction == Transaction("nightly", MAX_EPOCH)


@pytest.mark.parametrize(
    ("streaming", "given", "says"),
    [
        (False, {"txnAppId": "nightly"}, "'txnVersion': is missing"),
        (False, {"txnVersion": "1"}, "'txnAppId': is missing"),
        (False, {"txnAppId": "a", "txnVersion": "-1"}, "not an integer"),
        (False, {"txnAppId": "a", "txnVersion": str(MAX_EPOCH + 1)}, "is more than"),
        (False, {"txnAppId": "a", "txnVersion": "1", "idempotent": "false"}, "contradict"),
        (True, {"txnAppId": "a", "txnVersion": "1"}, "a stream uses its checkpoint"),
        (False, {"durability": "none"}, "none of fsync, written"),
        (False, {"startingOffsets": "earliest"}, "is unknown"),
        (False, {"topics": "a"}, "did you mean 'topic'"),
    ],
)
def test_contradictions_are_refused(streaming: bool, given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        parse(streaming, **given)


def test_the_page_has_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    missing = [name for name in WRITE_OPTIONS if f"`{name}`" not in page]
    assert not missing
