from collections.abc import Iterator

import pytest

from holdfast.spark.broker.transport import Transport
from holdfast.spark.errors import BrokerRefused, BrokerUnavailable, ReplyMismatch
from holdfast.spark.options.location import Address
from tests.support.servers.fake_broker import HANG_UP, Answer, FakeBroker


class Clock:
    """A clock that only sleeps advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def transport(broker: FakeBroker, clock: Clock) -> Iterator[Transport]:
    broker.topic("orders")
    transport = Transport(Address(broker.url), clock=clock, sleep=clock.sleep, retry_for_s=20)
    yield transport
    transport.close()


def test_a_kept_connection_that_was_closed_is_opened_again_at_once(
    broker: FakeBroker, transport: Transport, clock: Clock
) -> None:
    transport.get("/v1/topics/orders")
    broker.answer_once(lambda _: HANG_UP)
    assert transport.get("/v1/topics/orders").json()["topic"] == "orders"
    assert clock.slept == []


def test_a_broker_that_is_away_is_tried_again_with_growing_pauses(clock: Clock) -> None:
    transport = Transport(
        Address("http://127.0.0.1:1"), clock=clock, sleep=clock.sleep, retry_for_s=20
    )
    with pytest.raises(BrokerUnavailable, match="ConnectionRefused") as caught:
        transport.get("/v1/topics")
    assert 15 < caught.value.waited_s <= 20
    assert clock.slept[0] <= 0.1
    assert 2.5 <= clock.slept[-1] <= 5


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_transient_failures_are_retried(
    broker: FakeBroker, transport: Transport, clock: Clock, status: int
) -> None:
    broker.fail_once(status)
    assert transport.get("/v1/topics/orders").json()["topic"] == "orders"
    assert len(clock.slept) == 1


def test_retry_after_is_honoured(broker: FakeBroker, transport: Transport, clock: Clock) -> None:
    broker.fail_once(503, headers={"Retry-After": "7"})
    transport.get("/v1/topics/orders")
    assert clock.slept == [7.0]


def test_no_pause_exceeds_the_allowed_time(
    broker: FakeBroker, transport: Transport, clock: Clock
) -> None:
    broker.fail_once(503, headers={"Retry-After": "21"})
    with pytest.raises(BrokerUnavailable, match="test-fault"):
        transport.get("/v1/topics/orders")
    assert clock.slept == []


@pytest.mark.parametrize("status", [429, 502, 503, 504, 507])
def test_a_publish_waits_for_room_too(
    broker: FakeBroker, transport: Transport, clock: Clock, status: int
) -> None:
    broker.fail_once(status, match="/messages", headers={"Retry-After": "3"})
    # the fake broker refuses publishes, but it received the retry
    with pytest.raises(BrokerRefused, match="404"):
        transport.post("/v1/topics/orders/messages", b"one", {"key": "a"})
    assert clock.slept == [3.0]
    assert broker.requests == ["POST /v1/topics/orders/messages?key=a"] * 2


@pytest.mark.parametrize("status", [400, 401, 404, 410, 416, 500, 507])
def test_permanent_failures_are_raised_at_once(
    broker: FakeBroker, transport: Transport, clock: Clock, status: int
) -> None:
    broker.fail_once(status)
    with pytest.raises(BrokerRefused) as caught:
        transport.get("/v1/topics/orders")
    assert (caught.value.status, caught.value.type) == (status, "/problems/test-fault")
    assert clock.slept == []


def test_a_refusal_without_a_problem_is_worded_by_its_status(
    broker: FakeBroker, transport: Transport
) -> None:
    broker.faults.append(lambda _: Answer(403, {"Content-Type": "text/html"}, b"<p>no</p>"))
    with pytest.raises(BrokerRefused, match=r"403 about:blank\): Forbidden"):
        transport.get("/v1/topics/orders")


def test_a_truncated_reply_is_requested_again(broker: FakeBroker, transport: Transport) -> None:
    broker.answer_once(lambda _: Answer(200, {"Content-Length": "1000"}, b"{"))
    assert transport.get("/v1/topics/orders").json()["topic"] == "orders"


def test_a_reply_that_is_not_json_is_no_brokers(broker: FakeBroker, transport: Transport) -> None:
    broker.faults.append(lambda _: Answer(200, {"Content-Type": "text/html"}, b"<p>hello</p>"))
    with pytest.raises(ReplyMismatch):
        transport.get("/").json()


def test_a_path_prefix_is_kept(broker: FakeBroker) -> None:
    with pytest.raises(BrokerRefused):
        Transport(Address(f"{broker.url}/proxy")).get("/v1/topics")
    assert broker.requests == ["GET /proxy/v1/topics"]
