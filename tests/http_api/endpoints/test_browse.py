"""Browsing a topic in the order of time, over its queues, from every edge."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.reading import browsing
from tests.support.clients.tokens import let_in
from tests.support.servers.api_server import Api

PATH = "/v1/topics/orders/messages/browse"


async def browse(api: Api, query: str = "") -> Any:
    answer = await api.get(PATH + query)
    assert answer.status == 200, answer.body
    return answer.json()


def places(reply: Any) -> list[tuple[int, int]]:
    return [(each["queue"], each["offset"]) for each in reply["messages"]]


def next_offsets(reply: Any) -> str:
    return ",".join(f"{each['queue']}:{each['next_offset']}" for each in reply["queues"])


async def fill(api: Api, queues: Sequence[int], **more: object) -> None:
    """Publish one message after the other, each with a store timestamp of its own."""
    for number, queue in enumerate(queues):
        answer = await api.publish("orders", {"body": str(number), "queue": queue, **more})
        assert answer.status == 200


async def test_an_empty_topic_has_no_messages_from_any_start(api: Api) -> None:
    for query in ("", "?order=oldest", "?queue=0", "?offsets=0:0", "?offsets=0:9&order=oldest",
                  "?timestamp_ms=0", "?timestamp_ms=4102444800000", "?tag=a"):  # fmt: skip
        reply = await browse(api, query)
        assert (reply["messages"], reply["more"]) == ([], False), query
        assert {each["next_offset"] for each in reply["queues"]} == {0}


async def test_the_order_is_that_of_the_time_over_all_queues(api: Api) -> None:
    queues = [0, 1, 1, 0, 1, 0, 0]
    await fill(api, queues)
    newest = await browse(api)
    assert [each["body"] for each in newest["messages"]] == list("6543210")
    assert newest["more"] is False
    oldest = await browse(api, "?order=oldest")
    assert oldest["messages"] == newest["messages"][::-1]
    assert places(await browse(api, "?queue=1")) == [(1, 2), (1, 1), (1, 0)]


@pytest.mark.parametrize("chunk", [1, 3, 64])
async def test_pages_join_without_gap_or_repetition(
    api: Api, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "CHUNK_MESSAGES", chunk)
    await fill(api, random.Random(7).choices((0, 1), k=25))
    for order in ("newest", "oldest"):
        found, query = [], ""
        while True:
            reply = await browse(api, f"?order={order}&max_messages=4{query}")
            assert len(reply["messages"]) <= 4
            found += [int(each["body"]) for each in reply["messages"]]
            if not reply["more"]:
                break
            query = f"&offsets={next_offsets(reply)}"
        assert found == sorted(range(25), reverse=order == "newest")


async def test_the_page_before_is_read_in_the_other_order(api: Api) -> None:
    """The start of a page is the start of the way back: the same messages do not come again."""
    await fill(api, [0, 1] * 6)
    first = await browse(api, "?max_messages=5")
    second = await browse(api, f"?max_messages=5&offsets={next_offsets(first)}")
    starts = ",".join(f"{each['queue']}:{each['start_offset']}" for each in second["queues"])
    back = await browse(api, f"?order=oldest&max_messages=5&offsets={starts}")
    assert back["messages"] == first["messages"][::-1]


async def test_an_offset_outside_of_the_queue_counts_as_the_nearest_end(api: Api) -> None:
    await fill(api, [0] * 6)
    api.trim(0, 2)
    every = [(0, 5), (0, 4), (0, 3), (0, 2)]
    for offset, newest, oldest in (
        (0, [], every[::-1]),  # before the first kept message
        (2, [], every[::-1]),
        (3, [(0, 2)], every[2::-1]),
        (5, every[1:], every[:1]),
        (6, every, []),  # at the end
        (7, every, []),
        (2**63 - 1, every, []),
    ):
        assert places(await browse(api, f"?offsets=0:{offset}")) == newest, offset
        reply = await browse(api, f"?order=oldest&offsets=0:{offset}")
        assert places(reply) == oldest, offset
        assert (reply["queues"][0]["min_offset"], reply["queues"][0]["max_offset"]) == (2, 6)
        assert 2 <= reply["queues"][0]["start_offset"] <= 6
    assert places(await browse(api)) == every


async def test_a_time_includes_its_own_millisecond_in_both_orders(api: Api) -> None:
    await fill(api, [0, 1, 0, 1, 0])
    messages = (await browse(api, "?order=oldest"))["messages"]
    times = [each["store_timestamp_ms"] for each in messages]
    for at in {0, *times, times[0] - 1, times[-1] + 1, 2**63 // 1000 - 1}:
        later = [each for each in messages if each["store_timestamp_ms"] >= at]
        earlier = [each for each in messages if each["store_timestamp_ms"] <= at]
        assert (await browse(api, f"?order=oldest&timestamp_ms={at}"))["messages"] == later
        assert (await browse(api, f"?timestamp_ms={at}"))["messages"] == earlier[::-1]


async def test_a_trimmed_queue_has_no_messages_before_its_first(api: Api) -> None:
    await fill(api, [0] * 4)
    api.trim(0, 4)
    for order in ("newest", "oldest"):
        for query in ("", "&offsets=0:0", "&offsets=0:4", "&timestamp_ms=0"):
            reply = await browse(api, f"?order={order}{query}")
            assert (reply["messages"], reply["more"]) == ([], False)
    await fill(api, [0])
    assert places(await browse(api)) == [(0, 4)]


async def test_tags_and_filters_select_messages(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        tag, properties = "ab"[number % 2], {"n": str(number)}
        message = {"body": str(number), "tag": tag, "queue": number % 2, "properties": properties}
        await api.publish("orders", message)
    found = await browse(api, "?tag=b&max_messages=3")
    assert [each["body"] for each in found["messages"]] == ["11", "9", "7"]
    rest = await browse(api, f"?tag=b&offsets={next_offsets(found)}")
    assert [each["body"] for each in rest["messages"]] == ["5", "3", "1"]
    found = await browse(api, "?filter=n%20%3C%203&order=oldest")
    assert [each["body"] for each in found["messages"]] == ["0", "1", "2"]
    # A request examines a limited number of messages, and the next one continues there.
    monkeypatch.setattr(browsing, "FILTERED_CHUNK_MESSAGES", 2)
    monkeypatch.setattr(browsing, "MAX_EXAMINED", 4)
    bodies, query, requests = [], "", 0
    while True:
        reply = await browse(api, f"?filter=n%20%3C%203{query}")
        bodies += [each["body"] for each in reply["messages"]]
        requests += 1
        if not reply["more"]:
            break
        query = f"&offsets={next_offsets(reply)}"
    assert (bodies, requests > 2) == (["2", "1", "0"], True)


async def test_large_bodies_end_the_page(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.fill(1000, 8)
    monkeypatch.setattr(browsing, "CHUNK_BYTES", 2500)
    for order, expected in (("newest", [7, 6]), ("oldest", [0, 1])):
        found = await browse(api, f"?order={order}&max_bytes=2000")
        assert [each["offset"] for each in found["messages"]] == expected
        assert found["more"] is True
        one = await browse(api, f"?order={order}&max_bytes=1")
        assert [each["offset"] for each in one["messages"]] == expected[:1]
        every = [offset for _, offset in places(await browse(api, f"?order={order}"))]
        assert every == sorted(range(8), reverse=order == "newest")


async def test_the_memory_for_batches_is_limited(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(api, random.Random(3).choices((0, 1), k=30), tag="a")
    await fill(api, [0, 1] * 5, tag="b")
    expected = [int(each["body"]) for each in (await browse(api, "?tag=a"))["messages"]]
    assert expected == list(range(29, -1, -1))
    for limit in (1, 300, 1000):  # a batch of one message has some 200 bytes
        monkeypatch.setattr(browsing, "RETAINED_BYTES", limit)
        for order in ("newest", "oldest"):
            found, query = [], ""
            while True:
                reply = await browse(api, f"?tag=a&order={order}{query}")
                assert len(reply["messages"]) <= max(limit // 100, 1)
                found += [int(each["body"]) for each in reply["messages"]]
                if not reply["more"]:
                    break
                query = f"&offsets={next_offsets(reply)}"
            assert found == sorted(expected, reverse=order == "newest"), (limit, order)


async def test_damaged_messages_are_skipped_and_listed(api: Api) -> None:
    topic = api.store.table.get("orders")
    for number in range(4):
        block = encode_batch([b"%d" % number], queue_id=0)
        await api.store.publishing.publish(topic, [Batch.decode(block)])
    api.damage(0, 2)
    for order, expected in (("newest", [3, 1, 0]), ("oldest", [0, 1, 3])):
        reply = await browse(api, f"?order={order}")
        assert [offset for _, offset in places(reply)] == expected
        (lost,) = reply["skipped"]
        assert (lost["queue"], lost["start_offset"], lost["end_offset"]) == (0, 2, 3)


async def test_settled_messages_are_left_out_on_request(api: Api) -> None:
    await fill(api, [0] * 4)
    query = "?unsettled_for=billing"
    assert len(places(await browse(api, query))) == 4
    await api.store.offsets.store_offsets("billing", api.store.table.get("orders"), {0: 1})
    assert places(await browse(api, query)) == [(0, 3), (0, 2), (0, 1)]
    await api.send_json("PUT", "/v1/groups/billing", {"topics": {"orders": {}}})
    received = await api.send_json(
        "POST", "/v1/groups/billing/receive", {"member": "m", "max_messages": 2}
    )
    receipts = [each["receipt"] for each in received.json()["messages"]]
    await api.send_json("POST", "/v1/groups/billing/ack", {"receipts": receipts[1:]})
    assert places(await browse(api, query)) == [(0, 3), (0, 1)]


async def test_a_group_needs_a_grant(api: Api) -> None:
    header = let_in(api, "consume:=orders:=billing")
    assert (await api.get(f"{PATH}?unsettled_for=billing", **header)).status == 200
    assert (await api.get(f"{PATH}?unsettled_for=other", **header)).problem == "forbidden"


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("?order=up", "invalid-parameter"),
        ("?queue=2", "unknown-queue"),
        ("?offsets=2:0", "unknown-queue"),
        ("?offsets=0", "invalid-parameter"),
        ("?offsets=0:1&queue=0", "invalid-parameter"),
        ("?offsets=0:1&timestamp_ms=0", "invalid-parameter"),
        ("?max_messages=0", "invalid-parameter"),
        ("?max_messages=1001", "limit-exceeded"),
        ("?max_bytes=0", "invalid-parameter"),
        ("?filter=(", "invalid-filter"),
        ("?unsettled_for=a%2fb", "invalid-name"),
    ],
)
async def test_wrong_queries_are_refused(api: Api, query: str, problem: str) -> None:
    assert (await api.get(PATH + query)).problem == problem
