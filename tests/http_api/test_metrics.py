import asyncio
import re

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from holdfast.http_api import metrics
from holdfast.http_api.app import BrokerStatus
from holdfast.http_api.metrics import Metrics
from tests.support.api_server import Api


async def scrape(api: Api) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and its labels' values."""
    answer = await api.get("/metrics", Accept="text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
    assert answer.headers["Content-Type"].startswith("text/plain")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


async def test_messages_and_bytes_are_counted_by_topic(api: Api) -> None:
    await api.publish("orders", {"body": "a", "queue": 0}, {"body": "b", "queue": 0})
    await api.get("/v1/topics/orders/queues/0/messages?offset=0")
    found = await scrape(api)
    assert found["holdfast_messages_in_total", "orders"] == 2
    assert found["holdfast_messages_out_total", "orders"] == 2
    assert found["holdfast_bytes_in_total", "orders"] > 0
    assert found["holdfast_bytes_out_total", "orders"] > 0
    assert found["holdfast_topic_messages", "orders"] == 2
    assert found["holdfast_topic_end_offset", "orders"] == 2


async def test_requests_are_timed_by_route_and_status(api: Api) -> None:
    await api.get("/v1/topics/orders")
    await api.get("/v1/topics/unknown")
    await api.get("/v1/nothing/at/all")
    found = await scrape(api)
    name = "holdfast_http_request_seconds_count"
    assert found[name, "200", "/v1/topics/{topic}"] == 1
    assert found[name, "404", "/v1/topics/{topic}"] == 1
    assert found[name, "404", "other"] == 1


async def test_waiting_is_not_counted_as_answering(api: Api) -> None:
    time = asyncio.get_running_loop().time
    asked_s = time()
    waiting = asyncio.create_task(
        api.get("/v1/topics/orders/queues/0/messages?offset=0&wait_ms=1000")
    )
    await api.held(1)
    held_s = time()
    assert (await scrape(api))[("holdfast_long_poll_parked",)] == 1
    await waiting
    # It was held from then on at the latest, to the end of its second: what is left is answering.
    left_s = time() - asked_s - (asked_s + 1.0 - held_s)
    found = await scrape(api)
    route = "/v1/topics/{topic}/queues/{queue}/messages"
    assert found["holdfast_http_request_seconds_sum", "200", route] < left_s + 0.05
    assert found[("holdfast_long_poll_expired_total",)] == 1
    assert found[("holdfast_long_poll_parked",)] == 0
    assert ("holdfast_scan_seconds_count",) in found
    assert found[("holdfast_scan_rescues_total",)] == 0


async def test_the_wake_is_timed(api: Api) -> None:
    waiting = asyncio.create_task(
        api.get("/v1/topics/orders/queues/0/messages?offset=0&wait_ms=60000")
    )
    await api.held(1)
    await api.publish("orders", {"body": "x", "queue": 0})
    await waiting
    found = await scrape(api)
    assert found[("holdfast_long_poll_wake_seconds_count",)] == 1
    assert found[("holdfast_long_poll_woken_total",)] == 1


async def test_the_lag_of_groups_is_told(api: Api) -> None:
    for _ in range(3):
        await api.publish("orders", {"body": "x", "queue": 0})
    await api.store.store_offsets("billing", api.store.topic("orders"), {0: 1})
    assert (await scrape(api))["holdfast_group_lag_messages", "billing", "orders"] == 2


async def test_a_recovering_broker_can_be_scraped(api: Api) -> None:
    api.status = BrokerStatus("recovering")
    found = await scrape(api)
    assert found[("holdfast_ready",)] == 0
    assert found["holdfast_build_info", "9.9.9"] == 1
    api.status = BrokerStatus("ready")


async def test_every_name_is_in_base_units_and_ours(api: Api) -> None:
    for name, *_ in await scrape(api):
        assert re.fullmatch(r"holdfast_[a-z_]+", name)
        assert "_ms" not in name


def test_topics_beyond_the_limit_share_a_label() -> None:
    registry = CollectorRegistry()
    counted = Metrics(registry)
    for number in range(metrics.MAX_SERIES + 50):
        counted.topic(f"topic-{number}").messages_in += 1
    assert registry.get_sample_value("holdfast_messages_in_total", {"topic": metrics.OTHER}) == 50
    counted.forget_topic("topic-0")
    assert registry.get_sample_value("holdfast_messages_in_total", {"topic": "topic-0"}) is None


async def test_a_scrape_looks_at_so_many_queues_and_counts_what_it_leaves_out(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_QUEUES_LOOKED_AT", 10)
    for name, queues in [("a", 4), ("b", 6), ("c", 1)]:
        await api.store.create_topic(name, queues=queues)
        await api.store.store_offsets(f"group-{name}", api.store.topic(name), {0: 0})
    found = await scrape(api)
    assert {key[1] for key in found if key[0] == "holdfast_topic_messages"} == {"a", "b"}
    assert found[("holdfast_topics_left_out",)] == 2  # c, and orders
    assert ("holdfast_group_lag_messages", "group-c", "c") in found

    monkeypatch.setattr(metrics, "MAX_QUEUES_LOOKED_AT", 2)
    found = await scrape(api)
    lags = {key[1] for key in found if key[0] == "holdfast_group_lag_messages"}
    assert lags == {"group-a", "group-b"}
    assert {key[1] for key in found if key[0] == "holdfast_topic_messages"} == {"a"}
