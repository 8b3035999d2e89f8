import asyncio
import re

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from holdfast.consumequeue.slices import ITEMS_A_TURN
from holdfast.groups.service_types import GroupServiceStats
from holdfast.http_api.app import BrokerStatus
from holdfast.http_api.endpoints import state_metrics
from holdfast.http_api.endpoints.state_metrics import group_metrics
from holdfast.http_api.metrics import MAX_SERIES, OTHER, Durations, Metrics
from tests.support.event_loop.calls_a_turn import calls_a_turn
from tests.support.servers.api_server import Api


async def scrape(api: Api) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and label values."""
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
        api.get("/v1/topics/orders/queues/0/messages?offset=0&wait_ms=4000")
    )
    await api.held(1)
    held_s = time()
    assert (await scrape(api))[("holdfast_long_poll_parked",)] == 1
    await waiting
    # The pull was held at the latest from then on, for 4 s; the rest is the time to answer.
    left_s = time() - asked_s - (asked_s + 4.0 - held_s)
    found = await scrape(api)
    route = "/v1/topics/{topic}/queues/{queue}/messages"
    assert found["holdfast_http_request_seconds_sum", "200", route] < left_s + 0.05
    assert found[("holdfast_long_poll_expired_total",)] == 1
    assert found[("holdfast_long_poll_parked",)] == 0
    assert ("holdfast_scan_seconds_count",) in found
    assert found[("holdfast_scan_rescues_total",)] == 0


async def test_wake_ups_are_timed(api: Api) -> None:
    waiting = asyncio.create_task(
        api.get("/v1/topics/orders/queues/0/messages?offset=0&wait_ms=60000")
    )
    await api.held(1)
    await api.publish("orders", {"body": "x", "queue": 0})
    await waiting
    found = await scrape(api)
    assert found[("holdfast_long_poll_wake_seconds_count",)] == 1
    assert found[("holdfast_long_poll_woken_total",)] == 1


async def test_the_lag_of_groups_is_reported(api: Api) -> None:
    for _ in range(3):
        await api.publish("orders", {"body": "x", "queue": 0})
    await api.store.offsets.store_offsets("billing", api.store.table.get("orders"), {0: 1})
    assert (await scrape(api))["holdfast_group_lag_messages", "billing", "orders"] == 2


async def test_groups_without_leases_are_counted_apart_from_those_with_leases(api: Api) -> None:
    topic = api.store.table.get("orders")
    await api.send_json("PUT", "/v1/groups/billing", {"topics": {"orders": {}}})
    await api.store.offsets.store_offsets("billing", topic, {0: 0})
    await api.store.offsets.store_offsets("reports", topic, {0: 0})
    found = await scrape(api)
    assert found[("holdfast_groups",)] == 1
    assert found[("holdfast_groups_without_leases",)] == 1


async def test_a_recovering_broker_can_be_scraped(api: Api) -> None:
    api.status = BrokerStatus("recovering")
    found = await scrape(api)
    assert found[("holdfast_ready",)] == 0
    assert found["holdfast_build_info", "9.9.9"] == 1
    api.status = BrokerStatus("ready")


async def test_every_metric_has_base_units_and_a_known_prefix(api: Api) -> None:
    for name, *_ in await scrape(api):
        assert re.fullmatch(r"(holdfast|process)_[a-z_]+", name)
        assert "_ms" not in name


def test_topics_beyond_the_limit_share_a_label() -> None:
    registry = CollectorRegistry()
    counted = Metrics(registry)
    for number in range(MAX_SERIES + 50):
        counted.topic(f"topic-{number}").messages_in += 1
    assert registry.get_sample_value("holdfast_messages_in_total", {"topic": OTHER}) == 50
    counted.forget_topic("topic-0")
    assert registry.get_sample_value("holdfast_messages_in_total", {"topic": "topic-0"}) is None


async def test_a_scrape_examines_a_limited_number_of_queues_and_counts_the_others(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_metrics, "MAX_QUEUES_EXAMINED", 10)
    for name, queues in [("a", 4), ("b", 6), ("c", 1)]:
        await api.store.topics.create(name, queues=queues)
        await api.store.offsets.store_offsets(f"group-{name}", api.store.table.get(name), {0: 0})
    found = await scrape(api)
    assert {key[1] for key in found if key[0] == "holdfast_topic_messages"} == {"a", "b"}
    assert found[("holdfast_topics_left_out",)] == 2  # c, and orders
    assert ("holdfast_group_lag_messages", "group-c", "c") in found

    monkeypatch.setattr(state_metrics, "MAX_QUEUES_EXAMINED", 2)
    found = await scrape(api)
    lags = {key[1] for key in found if key[0] == "holdfast_group_lag_messages"}
    assert lags == {"group-a", "group-b"}
    assert {key[1] for key in found if key[0] == "holdfast_topic_messages"} == {"a"}


# O8: metrics lacked the process's own, lag in seconds and the age of the oldest message.
async def test_the_metrics_of_the_process_are_reported(api: Api) -> None:
    found = await scrape(api)
    assert found[("process_resident_memory_bytes",)] > 10_000_000
    assert found[("process_open_fds",)] > 3
    assert found[("process_start_time_seconds",)] > 0
    assert found[("process_cpu_seconds_total",)] > 0


async def test_ages_are_those_of_the_oldest_message(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.publish("orders", {"body": "a", "queue": 0}, {"body": "b", "queue": 0})
    await api.publish("orders", {"body": "c", "queue": 1})
    topic = api.store.table.get("orders")
    await api.store.offsets.store_offsets("g", topic, {0: 1, 1: 1})
    await api.store.offsets.store_offsets("done", topic, {0: 2, 1: 1})
    first, second, third = await api.store.lookups.stored_at(
        [((topic.topic_id, 0), 0), ((topic.topic_id, 0), 1), ((topic.topic_id, 1), 0)]
    )
    assert first is not None
    assert second is not None
    assert third is not None
    now_s = third / 1e6 + 100
    monkeypatch.setattr(state_metrics, "time", lambda: now_s)
    found = await scrape(api)
    oldest_s = found["holdfast_topic_oldest_message_seconds", "orders"]
    assert oldest_s == pytest.approx(now_s - first / 1e6, abs=0.001)
    lag_s = found["holdfast_group_lag_seconds", "g", "orders"]
    assert lag_s == pytest.approx(now_s - second / 1e6, abs=0.001)
    assert found["holdfast_group_lag_seconds", "done", "orders"] == 0


async def test_ages_are_read_for_a_limited_number_of_queues(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = api.store.table.get("orders").queue_count
    for name in ("a", "b", "c"):
        await api.store.topics.create(name, queues=queues)
    for more, shown in ((-1, 0), (0, 1), (1, 1)):
        monkeypatch.setattr(state_metrics, "MAX_QUEUES_AGED", queues + more)
        names = {key[1] for key in await scrape(api) if "oldest_message" in key[0]}
        assert len(names) == shown


async def test_groups_at_their_limit_are_named(api: Api) -> None:
    stats = GroupServiceStats(groups=3, at_limit=["a", "b"])
    found = {family.name: family for family in group_metrics(stats)}
    assert [each.value for each in found["holdfast_groups_at_limit"].samples] == [2]
    named = found["holdfast_group_at_limit"].samples
    assert [(each.labels["group"], each.value) for each in named] == [("a", 1), ("b", 1)]


async def test_ages_of_many_groups_take_several_loop_iterations(api: Api) -> None:
    topic = api.store.table.get("orders")
    for number in range(600):
        await api.store.offsets.store_offsets(f"g{number}", topic, {0: 0})
    with calls_a_turn(api.context.store.offsets, "group_topics") as looked:
        await state_metrics.age_metrics(api.context)
    assert looked.total == 600
    assert looked.most <= ITEMS_A_TURN


async def test_large_metrics_take_their_own_loop_iterations(api: Api) -> None:
    for number in range(MAX_SERIES):
        api.context.http.metrics.topic(f"t{number}").messages_in += 1
    with calls_a_turn(CounterMetricFamily, "add_metric") as added:
        await scrape(api)
    assert added.total >= 4 * MAX_SERIES
    assert added.most < 2 * MAX_SERIES


def test_a_bucket_counts_durations_up_to_its_bound() -> None:
    durations = Durations()
    for seconds in (0.0, 0.0005, 0.0006, 10.0, 11.0):
        durations.observe(seconds)
    counts = dict(durations.buckets())
    assert counts["0.0005"] == 2
    assert counts["0.001"] == 3
    assert counts["5.0"] == 3
    assert counts["10.0"] == 4
    assert counts["+Inf"] == 5
    assert durations.sum_s == 21.0011


def test_without_durations_every_bucket_is_empty() -> None:
    assert {count for _, count in Durations().buckets()} == {0}
