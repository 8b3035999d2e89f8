"""A served group reports its shares and divides by bytes. tests/groups/core has the other cases."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.groups.config import FAIR_ENGINES
from holdfast.groups.core.fair_set import OVERHEAD_BYTES
from tests.support.servers.group_api import GroupApi, serving_groups

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


@engines
async def test_a_share_may_be_of_the_cost_that_publishers_give(api: GroupApi, engine: str) -> None:
    """F7: messages of cost 5 get a fifth of the deliveries. The setting may change at any time."""
    for topic, properties in (("dear", {"holdfast-cost": "5"}), ("cheap", {})):
        await api.topic(topic)
        await api.publish(*["x"] * 300, topic=topic, properties=properties)
    topics: dict[str, dict[str, int]] = {"dear": {}, "cheap": {}}
    made = await api.group(topics=topics, fairness={"engine": engine})
    assert made["config"]["fairness"]["cost"] == "count"
    assert topics_of(await api.receive(max_messages=40)).count("dear") == 20
    changed = await api.group(topics=topics, fairness={"engine": engine, "cost": "given"})
    assert changed["config"]["fairness"]["cost"] == "given"
    got = topics_of(await api.receive(max_messages=120))
    assert got.count("cheap") == pytest.approx(100, abs=6)
