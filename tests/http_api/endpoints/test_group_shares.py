"""How a served group divides deliveries between topics: by weight, by bytes or by time."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.groups.config import FAIR_ENGINES
from holdfast.groups.core.fair_set import OVERHEAD_BYTES
from tests.support.group_api import GroupApi, bodies, serving_groups

#: The founding table: ten topics with these weights.
WEIGHTS = {f"p{number}": 4 * (number + 1) for number in range(10)}
ROUND = sum(WEIGHTS.values())

engines = pytest.mark.parametrize("engine", FAIR_ENGINES)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[GroupApi]:
    async with serving_groups(tmp_path / "data") as api:
        yield api


async def backlog(api: GroupApi, counts: dict[str, int], size: int = 0) -> None:
    """Create topics with this many messages each; their bodies begin with the topic's name."""
    for topic, count in counts.items():
        await api.topic(topic)
        await api.publish(*[topic.ljust(size, ".")] * count, topic=topic)


def topics_of(reply: Any) -> list[str]:
    return [each["topic"] for each in reply["messages"]]


async def served(api: GroupApi) -> dict[str, Any]:
    return {each["topic"]: each["served"] for each in (await api.describe())["topics"]}


# -- by weight -----------------------------------------------------------------------------


@engines
async def test_shares_follow_the_weights_for_any_member(api: GroupApi, engine: str) -> None:
    # F2, F3, F8, F15, F19, F21, P1
    """Members receive in random order, one message, a few or a thousand at a time.

    At every point each topic is at most one turn away from its share.
    """
    rounds = 52
    await backlog(api, {topic: weight * (rounds + 1) for topic, weight in WEIGHTS.items()})
    weights = {topic: {"weight": weight} for topic, weight in WEIGHTS.items()}
    await api.group(topics=weights, fairness={"engine": engine})
    rng, got, count = Random(20261121), Counter[str](), 0
    while count < rounds * ROUND:
        most = min(rng.choice((1, 7, 32, 1000)), rounds * ROUND - count)
        reply = await api.receive(f"m{rng.randrange(3)}", max_messages=most)
        await api.settle("ack", reply)
        for topic in topics_of(reply):
            count += 1
            got[topic] += 1
            for each, weight in WEIGHTS.items():
                bound = weight + 1 if engine == "dwrr" else 2
                assert abs(got[each] - count * weight / ROUND) <= bound, (each, count)
            if count % ROUND == 0 and count >= 11_000:
                for each, weight in WEIGHTS.items():
                    assert got[each] == pytest.approx(count * weight / ROUND, rel=0.005)
    assert {topic: each["count"] for topic, each in (await served(api)).items()} == got


async def test_delivered_messages_and_rates_are_reported_per_queue(api: GroupApi) -> None:
    # F19
    await backlog(api, {"bulk": 600, "express": 600})
    await api.group(topics={"bulk": {"weight": 1}, "express": {"weight": 2}})
    api.later(120)  # a rate is measured over the last minute
    got = Counter(topics_of(await api.receive(max_messages=900)))
    assert got == {"bulk": 300, "express": 600}
    found = await served(api)
    assert {topic: each["count"] for topic, each in found.items()} == got
    assert {topic: each["rate"] for topic, each in found.items()} == {"bulk": 5.0, "express": 10.0}


# -- by bytes and by time ------------------------------------------------------------------


@engines
async def test_a_share_may_be_of_bytes(api: GroupApi, engine: str) -> None:  # F5, F7
    """A message of 1,000 bytes costs as much as five of 200, including the overhead per message."""
    await backlog(api, {"small": 200}, 200 - OVERHEAD_BYTES)
    await backlog(api, {"large": 200}, 1000 - OVERHEAD_BYTES)
    weights = {"small": {"weight": 1000}, "large": {"weight": 1000}}
    await api.group(topics=weights, fairness={"engine": engine, "cost": "bytes"})
    got = topics_of(await api.receive(max_messages=120))
    assert got.count("small") == pytest.approx(100, abs=5)
    reported = await served(api)
    assert reported["small"]["bytes"] == got.count("small") * (200 - OVERHEAD_BYTES)


WORK_MS = {"slow": 20.0, "quick": 2.0}


class Workers:
    """Ten workers that run in parallel, in simulated time.

    Each receives ten messages, processes them one after another, settles them, and repeats.
    """

    def __init__(self, api: GroupApi, verb: str, *, says_how_long: bool) -> None:
        self.counted: Counter[str] = Counter()
        self._api = api
        self._verb = verb
        self._says_how_long = says_how_long

    async def work_until(self, slow: int) -> None:
        """Work until `slow` slow messages are done."""
        busy: list[tuple[float, int, dict[str, list[Any]]]] = [(0.0, n, {}) for n in range(10)]
        now_ms = 0.0
        while self.counted["slow"] < slow:
            free_ms, worker, done = heappop(busy)
            self._api.later((free_ms - now_ms) / 1000)
            now_ms = free_ms
            for topic, messages in done.items():
                self.counted[topic] += len(messages)
                used_ms = WORK_MS[topic] if self._says_how_long else None
                await self._api.settle(self._verb, *messages, used_ms=used_ms)
            taken: dict[str, list[Any]] = defaultdict(list)
            for message in (await self._api.receive(f"w{worker}", max_messages=10))["messages"]:
                taken[message["topic"]].append(message)
            takes_ms = sum(WORK_MS[topic] * len(each) for topic, each in taken.items())
            heappush(busy, (now_ms + takes_ms, worker, taken))

    @property
    def slow_share(self) -> float:
        """The share of all working time that slow messages used."""
        worked = {topic: WORK_MS[topic] * count for topic, count in self.counted.items()}
        return worked["slow"] / sum(worked.values())


@engines
@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
async def test_a_share_may_be_of_working_time(api: GroupApi, engine: str, verb: str) -> None:
    # F7, P8
    """Members receive ten messages at once, so the time since delivery is meaningless.

    The time that members report counts, for every kind of settlement.
    """
    await backlog(api, {"slow": 200, "quick": 1500})
    fairness = {"engine": engine, "cost": "time"}
    await api.group(topics={"slow": {}, "quick": {}}, fairness=fairness, backoff_ms=[600_000])
    workers = Workers(api, verb, says_how_long=True)
    await workers.work_until(slow=100)
    assert 0.47 <= workers.slow_share <= 0.53, workers.counted


async def test_without_used_ms_the_time_since_delivery_counts(api: GroupApi) -> None:
    await backlog(api, {"slow": 200, "quick": 1500})
    await api.group(topics={"slow": {}, "quick": {}}, fairness={"cost": "time"})
    workers = Workers(api, "ack", says_how_long=False)
    await workers.work_until(slow=100)
    assert workers.slow_share > 0.6, workers.counted


async def test_used_ms_is_limited_to_the_elapsed_time(api: GroupApi) -> None:
    """A member that reports ten hours, one hour after it received the message, has used one hour.

    Compared with that the delay of a slow machine is negligible.
    """
    await backlog(api, {"slow": 100, "quick": 100})
    await api.group(topics={"slow": {}, "quick": {}}, fairness={"cost": "time"})
    first = await api.receive(max_messages=2, lease_ms=2 * 3_600_000)
    api.later(3600.0)
    for message in first["messages"]:
        hours = 10 if message["topic"] == "slow" else 1
        await api.settle("ack", message, used_ms=hours * 3_600_000.0)
    got = bodies(await api.receive(max_messages=20))
    assert got.count("slow") == pytest.approx(10, abs=1)
