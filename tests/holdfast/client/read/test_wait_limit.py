"""Readers and consumers of a broker that allows only short waits."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client.errors import ApiError
from holdfast.client.read.wait_limit import WaitLimit
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.servers.fake_group import GROUP, fake_group, until


def refusal(parameter: str = "wait_ms", **members: object) -> ApiError:
    return ApiError(400, "limit-exceeded", members={"parameter": parameter, **members})


class Asked:
    """A broker whose limit is `limit_ms`, and the waits that it was asked for."""

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self.waits: list[int] = []

    async def __call__(self, wait_ms: int) -> str:
        self.waits.append(wait_ms)
        if wait_ms > self.limit_ms:
            raise refusal(limit=self.limit_ms)
        return "reply"


async def test_a_wait_is_shortened_after_a_refusal_and_stays_short() -> None:
    limit, broker = WaitLimit(), Asked(5_000)
    assert await limit.send(broker, 20_000) == "reply"
    assert await limit.send(broker, 20_000) == "reply"
    assert await limit.send(broker, 0) == "reply"
    broker.limit_ms = 700
    assert await limit.send(broker, 20_000) == "reply"
    assert broker.waits == [20_000, 5_000, 5_000, 0, 5_000, 700]


@pytest.mark.parametrize(
    "error",
    [
        refusal("max_bytes", limit=5),
        refusal(),
        refusal(limit="5"),
        refusal(limit=20_000),
        ApiError(400, "invalid-parameter", members={"parameter": "wait_ms", "limit": 5}),
    ],
)
async def test_other_refusals_are_raised(error: ApiError) -> None:
    async def refuse(wait_ms: int) -> None:
        raise error

    with pytest.raises(ApiError) as raised:
        await WaitLimit().send(refuse, 20_000)
    assert raised.value is error


async def test_a_member_takes_the_limit_of_its_broker() -> None:
    async with fake_group(max_wait_ms=3_000) as (group, client):
        async with client.consume("t", GROUP) as consumer:
            group.publish(1)
            assert (await anext(consumer)).offset == 0
            await until(lambda: len(group.named("receive")) == 3)
        waits = [body["wait_ms"] for body in group.named("receive")]
        assert waits == [20_000, 3_000, 3_000]
        attempts = [body["attempt_id"] for body in group.named("receive")]
        assert attempts[0] == attempts[1] != attempts[2]


@pytest.fixture
def impatient_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    arguments = (*TEST_ARGUMENTS, "--http-api-max-wait-ms", "300")
    with RunningBroker(tmp_path / "data", arguments) as broker:
        yield broker


def test_readers_and_consumers_follow_a_broker_with_a_short_limit(
    impatient_broker: RunningBroker,
) -> None:
    with impatient_broker.client() as client:
        client.create_topic("t", queues=1)
        of_queue = client.pull("t", queue=0, start="earliest")
        of_topic = client.pull("t", start="earliest")
        with (
            client.consume("t", "leases") as with_leases,
            client.consume_by_offsets("t", "offsets") as by_offsets,
        ):
            for number in range(3):
                client.publish("t", str(number))
                for messages in (of_queue, of_topic, with_leases, by_offsets):
                    assert next(messages).text == str(number)
