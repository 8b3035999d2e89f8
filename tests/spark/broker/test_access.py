"""Reading from a broker that requires a token, which Spark must not show anywhere."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.http_api.access.grants import parse_grants
from holdfast.http_api.access.token_file import TokenFile, create_token
from holdfast.spark.bound import bind
from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import BrokerRefused, InvalidOption
from holdfast.spark.options.location import Address
from holdfast.spark.options.read import parse_options
from holdfast.testing import TEST_ARGUMENTS, RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASIC = {"url": "http://broker:8711", "topic": "orders"}


def make_token(data_dir: Path, *grants: str) -> str:
    parsed = [grant for each in grants for grant in parse_grants(each)]
    return create_token(TokenFile(data_dir), name="", grants=parsed, now_ms=1)[1]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, str]]:
    """A broker with a topic of ten messages, and a token that may read them."""
    data_dir = tmp_path_factory.mktemp("guarded") / "data"
    everything = make_token(data_dir, "all")
    reader = make_token(data_dir, "consume:=orders:=billing")
    arguments = (*TEST_ARGUMENTS, "--access-authentication", "true")
    with RunningBroker(data_dir, arguments) as broker:
        with broker.client(token=everything) as client:
            client.create_topic("orders", queues=1)
            client.create_topic("others", queues=1)
            for number in range(10):
                client.publish("orders", b"%d" % number)
        yield broker, reader


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "zé", "a\x00b"])
def test_an_invalid_token_is_refused_and_not_printed(token: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        parse_options({**BASIC, "token": token})
    assert raised.value.option == "token"
    assert token not in f"{raised.value} {raised.value!r}"


def test_options_do_not_show_their_token() -> None:
    options = parse_options({**BASIC, "token": "secret-token"})
    assert options.address.token == "secret-token"
    assert "secret-token" not in repr(options)


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_refused_token_fails_at_once(
    guarded: tuple[RunningBroker, str], token: str | None
) -> None:
    started = time.monotonic()
    with (
        BrokerClient.open(Address(guarded[0].url, token)) as client,
        pytest.raises(BrokerRefused, match="token"),
    ):
        client.describe("orders")
    assert time.monotonic() - started < 30, "it was tried again"


def test_a_bound_read_does_not_show_its_token(guarded: tuple[RunningBroker, str]) -> None:
    broker, token = guarded
    bound = bind(broker.url, "orders", group="billing", token=token)
    assert bound.offsets == {"orders": {0: (0, 10)}}
    assert token not in repr(bound)
    bound.save()
    with pytest.raises(BrokerRefused, match="consume"):
        bind(broker.url, "others", token=token)


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_spark_reads_with_a_token_and_shows_it_nowhere(
    spark: "SparkSession", guarded: tuple[RunningBroker, str], caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    broker, token = guarded
    with caplog.at_level(logging.DEBUG, "holdfast"):
        options = {"url": broker.url, "topic": "orders", "token": token}
        frame = spark.read.format("holdfast").options(**options).load()
        assert frame.count() == 10
        for mode in ("simple", "extended", "formatted", "cost"):
            frame.explain(mode)
        spark.conf.set("spark.sql.codegen.wholeStage", "true")
        try:
            spark.read.format("holdfast").options(**options).load().explain("codegen")
        finally:
            spark.conf.set("spark.sql.codegen.wholeStage", "false")
        shown = [str(frame), repr(frame.schema), frame._jdf.queryExecution().toString()]
        wrong = {**options, "topic": "others"}
        with pytest.raises(Exception, match="consume") as raised:
            spark.read.format("holdfast").options(**wrong).load().collect()
        shown.append(f"{raised.value} {raised.value!r}")
    # The strings from which Spark's UI builds its pages.
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    plans = [executions.apply(n) for n in range(executions.size())]
    assert plans
    shown += [f"{each.physicalPlanDescription()} {each.details()}" for each in plans]
    shown += [str(each.modifiedConfigs()) for each in plans]
    shown += [caplog.text, *capfd.readouterr()]
    assert "Scan" in "".join(shown)
    assert token.partition(".")[2] not in "".join(shown)
