"""The messages of a topic: seeking at every edge, pages, filters, live, one message."""

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from holdfast.running_broker import RunningBroker
from tests.browser.conftest import WRITABLE, Console, shown


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Return a broker with a trimmed topic: queue 0 has the offsets 4 to 9."""
    arguments = [*WRITABLE, "--commitlog-retention-interval-ms", "100"]
    folder = tmp_path_factory.mktemp("broker") / "data"
    with RunningBroker(folder, arguments, start_timeout_s=120) as broker:
        client = broker.client()
        client.create_topic("empty", queues=2)
        client.create_topic("trimmed", queues=1, retention_ms=500)
        for number in range(4):
            client.publish("trimmed", b"old %d" % number, queue=0)
        deadline = time.monotonic() + 60
        while client.describe_topic("trimmed").queues[0].min_offset < 4:
            assert time.monotonic() < deadline, "retention did not trim the topic"
            time.sleep(0.05)
        client.change_topic("trimmed", retention_ms=0)
        for number in range(4, 10):
            client.publish("trimmed", b"body %d" % number, queue=0)
        client.create_topic("orders", queues=2)
        for number in range(120):
            client.publish(
                "orders",
                b'{"n": %d, "list": [1, {"deep": null}]}' % number,
                queue=number % 2,
                key=f"customer-{number % 7}",
                tag=("new", "paid")[number % 3 == 0],
                properties={"n": str(number)},
            )
        client.publish("orders", bytes(range(256)), key="binary", queue=1)
        client.close()
        yield broker


def offsets(page: Page) -> list[str]:
    """Return the places in the table, when the view is complete."""
    table = shown(page).locator("data-table").first
    return table.locator("td[data-title=Place]").all_inner_texts()


def boxes(page: Page) -> str:
    return " ".join(page.locator(".box").all_inner_texts())


EVERY = ["9", "8", "7", "6", "5", "4"]


def test_an_offset_is_sought_at_every_edge(console: Console) -> None:
    for offset, newest, oldest, says in (
        (0, [], EVERY[::-1], "Offset 0 was deleted by retention"),
        (3, [], EVERY[::-1], "The first message that is kept has offset 4"),
        (4, ["4"], EVERY[::-1], ""),
        (7, ["7", "6", "5", "4"], ["7", "8", "9"], ""),
        (9, EVERY, ["9"], ""),
        (10, EVERY, [], "Offset 10 is not written yet"),
        (10**15, EVERY, [], "The last message has offset 9"),
    ):
        place = f"#/topics/trimmed/messages?queue=0&offset={offset}"
        for order, expected in (("", newest), ("&order=oldest", oldest)):
            page = console.open(place + order)
            assert offsets(page) == expected
            assert says in boxes(page)


def test_a_time_is_sought_at_every_edge(console: Console) -> None:
    reply = console.ask("GET", "/v1/topics/trimmed/messages/browse?order=oldest")
    times = [each["store_timestamp_ms"] for each in reply["messages"]]
    places = {str(each["offset"]): each["store_timestamp_ms"] for each in reply["messages"]}
    for at in (times[0] - 1000, times[0], times[2], times[-1], times[-1] + 1000):
        page = console.open(f"#/topics/trimmed/messages?time={at}")
        assert offsets(page) == [each for each in EVERY if places[each] <= at]
        page = console.open(f"#/topics/trimmed/messages?time={at}&order=oldest")
        assert offsets(page) == [each for each in EVERY[::-1] if places[each] >= at]


def test_the_ends_of_the_slider_are_the_first_and_the_last_message(console: Console) -> None:
    page = console.open("#/topics/trimmed/messages")
    slider = page.get_by_role("slider", name="Time")
    slider.focus()
    slider.press("Home")
    page.wait_for_url(re.compile("time="))
    assert "4" in offsets(page)
    first = page.url
    page.get_by_role("slider", name="Time").press("End")
    page.wait_for_url(lambda url: url != first)
    assert offsets(page) == EVERY


def test_an_empty_topic_has_no_slider_and_says_so(console: Console) -> None:
    for place in ("", "?order=oldest", "?queue=1&offset=0", "?queue=1&offset=5", "?time=0"):
        page = console.open(f"#/topics/empty/messages{place}")
        assert offsets(page) == []
        expect(page.locator(".empty").first).to_have_text("The topic has no messages.")
        assert page.get_by_role("slider").count() == 0


def test_pages_go_back_to_where_they_came_from(console: Console) -> None:
    page = console.open("#/topics/orders/messages")
    first = offsets(page)
    assert len(first) == 50
    page.get_by_role("button", name="Older ›").click()
    page.wait_for_url(re.compile("at="))
    second = offsets(page)
    before = page.url
    page.get_by_role("button", name="Older ›").click()
    page.wait_for_url(lambda url: url != before)
    third = offsets(page)
    assert len({*first, *second, *third}) == len(first + second + third) == 121
    expect(page.get_by_role("button", name="Older ›")).to_be_disabled()
    page.get_by_role("button", name="‹ Newer").click()
    expect(page.locator("td[data-title=Place]").first).to_have_text(second[0])
    assert offsets(page) == second
    page.get_by_role("button", name="‹ Newer").click()
    expect(page.locator("td[data-title=Place]").first).to_have_text(first[0])
    assert offsets(page) == first
    assert "at=" not in page.url


def test_keys_tags_and_filters_select_messages(console: Console) -> None:
    page = console.open("#/topics/orders/messages")
    page.get_by_label("Tags").fill("paid")
    page.get_by_label("Filter").fill("n > 100")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url(re.compile("tag=paid"))
    assert len(offsets(page)) == 6
    page = console.open("#/topics/orders/messages?key=customer-3")
    expect(page.locator("td[data-title=Key]").first).to_have_text("customer-3")
    assert len(offsets(page)) == 17
    page = console.open("#/topics/orders/messages?filter=(")
    expect(page.locator(".box.bad")).to_contain_text("invalid-filter")
    console.open("#/topics/orders/messages?key=unknown")
    expect(page.locator(".empty").first).to_have_text("No message has the key “unknown”.")


def test_messages_appear_live(console: Console) -> None:
    page = console.open("#/topics/orders/messages?live=1&tag=live")
    expect(page.locator(".live")).to_be_visible()
    live = page.locator("td[data-title=Body]")
    deadline = time.monotonic() + 60
    # The stream may begin a moment after the view is shown.
    while not live.count():
        assert time.monotonic() < deadline
        console.publish("orders", {"body": "<img src=x onerror=alert(1)>", "tag": "live"})
        console.publish("orders", {"body": "other"})
        page.wait_for_timeout(200)
    assert {*live.all_inner_texts()} == {"<img src=x onerror=alert(1)>"}


def test_a_message_shows_its_body_as_tree_text_and_bytes(console: Console) -> None:
    place = console.ask("GET", "/v1/topics/orders/queues/0/messages?offset=5&max_messages=1")
    (message,) = place["messages"]
    page = console.open(f"#/topics/orders/messages/{message['message_id']}")
    body = page.get_by_role("region", name="Body")
    expect(body.locator("summary").first).to_have_text("2 fields")
    expect(body).to_contain_text("n: 10")
    deep = body.locator("summary").filter(has_text="1: 1 field")
    deep.click()
    expect(body).to_contain_text("deep: null")
    page.get_by_role("button", name="Text", exact=True).click()
    expect(body).to_have_text(message["body"])
    page.get_by_role("button", name="Hex").click()
    expect(body).to_contain_text("00000000  7b 22 6e 22")
    page.get_by_role("button", name="Later ›").click()
    expect(page.locator("h1")).to_have_text("orders 0 : 6")
    page.get_by_role("button", name="‹ Earlier").click()
    expect(page.locator("h1")).to_have_text("orders 0 : 5")
    near = page.locator("data-table", has=page.get_by_role("table", name="Neighbours"))
    assert near.locator("td[data-title=Place]").all_inner_texts() == [*"8765432"]
    page = console.open("#/topics/orders/messages?key=binary")
    page.locator("td[data-title=Place] a").click()
    expect(page.get_by_role("button", name="Hex")).to_have_attribute("aria-pressed", "true")
    assert page.get_by_role("button", name="JSON").count() == 0
    expect(page.get_by_role("button", name="Later ›")).to_be_enabled()


def test_the_ends_of_a_queue_have_no_neighbours_beyond(console: Console) -> None:
    reply = console.ask("GET", "/v1/topics/orders/queues/0/messages?offset=0&max_messages=1")
    page = console.open(f"#/topics/orders/messages/{reply['messages'][0]['message_id']}")
    expect(page.get_by_role("button", name="‹ Earlier")).to_be_disabled()
    trimmed = console.ask("GET", "/v1/topics/trimmed/messages/browse?max_messages=1")["messages"]
    old = f"{trimmed[0]['message_id'][:-1]}1"
    page = console.open(f"#/topics/trimmed/messages/{old}")
    expect(page.locator(".box").first).to_contain_text("offset-trimmed")
    new = f"{trimmed[0]['message_id'][:-2]}FF"
    page = console.open(f"#/topics/trimmed/messages/{new}")
    expect(page.locator(".box").first).to_be_visible()


def test_the_way_of_a_message_through_the_groups(console: Console) -> None:
    console.ask("PUT", "/v1/groups/billing", {"topics": {"orders": {}}})
    receive = {"member": "anna", "max_messages": 1}
    (message,) = console.ask("POST", "/v1/groups/billing/receive", receive)["messages"]
    place = f"#/topics/orders/messages/{message['message_id']}"
    page = console.open(place)
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="billing"))
    expect(row).to_contain_text("leased with anna since")
    console.ask("POST", "/v1/groups/billing/ack", {"receipts": [message["receipt"]]})
    page.reload()
    expect(row).to_contain_text("settled done")
