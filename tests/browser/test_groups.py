"""Groups: lag and holders, groups that stand still, seek with a preview, dead letters."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from holdfast.running_broker import RunningBroker
from tests.browser.conftest import WRITABLE, Console, shown


@pytest.fixture
def broker(tmp_path: Any) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path / "data", WRITABLE, start_timeout_s=120) as broker:
        yield broker


@pytest.fixture
def billing(console: Console) -> Console:
    """Return a console whose broker has a group with a holder, dead letters and a delay."""
    console.ask("PUT", "/v1/topics/orders", {"queues": 1})
    console.ask("PUT", "/v1/topics/dead", {"queues": 1})
    console.publish("orders", *({"body": f"order {number}"} for number in range(20)))
    settings = {"topics": {"orders": {}}, "dead_letter_topic": "dead", "max_attempts": 1}
    console.ask("PUT", "/v1/groups/billing", settings)
    messages = receive(console, 8)
    settle(console, "ack", messages[:2])
    settle(console, "reject", messages[2:5])
    settle(console, "nack", messages[5:6])
    for offset in range(4):  # the broker appends the letters shortly after its answers
        console.ask("GET", f"/v1/topics/dead/queues/0/messages?offset={offset}&wait_ms=20000")
    return console


def receive(console: Console, count: int) -> list[Any]:
    body = {"member": "anna", "max_messages": count, "lease_ms": 600_000}
    return list(console.ask("POST", "/v1/groups/billing/receive", body)["messages"])


def settle(console: Console, verb: str, messages: list[Any]) -> None:
    receipts = [each["receipt"] for each in messages]
    console.ask("POST", f"/v1/groups/billing/{verb}", {"receipts": receipts})


def cells(page: Page, table: str, column: str) -> list[str]:
    found = page.get_by_role("table", name=table).locator(f"td[data-title='{column}']")
    return found.all_inner_texts()


def test_a_group_shows_its_lag_and_who_holds_what(billing: Console) -> None:
    page = billing.open("#/groups")
    expect(page.get_by_role("row").filter(has_text="billing")).to_contain_text("competing")
    assert (cells(page, "Groups", "Behind"), cells(page, "Groups", "Dead")) == (["14"], ["4"])
    page.get_by_role("link", name="billing").click()
    expect(page.locator("h1")).to_have_text("billing")
    shown(page)
    assert cells(page, "Topics and queues", "In flight") == ["2"]
    assert cells(page, "Topics and queues", "Done below") == ["6"]
    assert cells(page, "Members", "Member") == ["anna"]
    assert cells(page, "Leased messages", "Message") == ["orders 0 : 6", "orders 0 : 7"]
    assert cells(page, "Leased messages", "Member") == ["anna", "anna"]
    # The view follows by itself.
    settle(billing, "ack", [])
    billing.ask("POST", "/v1/groups/billing/leave", {"member": "anna"})
    expect(page.locator(".empty").filter(has_text="No member holds a message.")).to_be_visible()


def test_a_group_that_stands_still_stands_out(billing: Console) -> None:
    billing.ask("POST", "/v1/groups/billing/leave", {"member": "anna"})

    def aged(route: Any) -> None:
        reply = route.fetch()
        group = reply.json()
        group["lag_seconds"] = 4000.0
        route.fulfill(response=reply, json=group)

    billing.page.route(re.compile("/v1/groups/billing$"), aged)
    page = billing.open("#/groups/billing")
    box = page.locator(".box.bad")
    expect(box).to_contain_text("It stands still: it has no members")
    expect(box).to_contain_text("the oldest for 1 h 6 min")
    page = billing.open("#/groups")
    expect(page.locator("tr.bad")).to_contain_text("It stands still")


@pytest.mark.parametrize(
    ("to", "means"),
    [("earliest", "6 again"), ("latest", "14 skipped"), ("offset", "6 skipped")],
)
def test_a_seek_shows_before_and_after_first(billing: Console, to: str, means: str) -> None:
    page = billing.open("#/groups/billing")
    page.get_by_role("button", name="Seek…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).select_option(to)
    if to == "offset":
        expect(dialog).to_contain_text("Choose where to.")
        dialog.get_by_label("Offset").fill("12")
    table = dialog.get_by_role("table", name="Before and after")
    expect(table.locator("td[data-title=Means]")).to_have_text(means)
    after = {"earliest": "0", "latest": "20", "offset": "12"}[to]
    expect(table.locator("td[data-title=Before]")).to_have_text("6")
    expect(table.locator("td[data-title=After]")).to_have_text(after)
    floor = "/v1/groups/billing/topics/orders/offsets"
    assert billing.ask("GET", floor)["offsets"] == {"0": 6}  # nothing was done yet
    dialog.get_by_role("button", name="Seek").click()
    expect(dialog).to_have_count(0)
    assert billing.ask("GET", floor)["offsets"] == {"0": int(after)}


# The preview counted only from the first message that is not done, although a seek also delivers
# again what is done above it.
@pytest.mark.parametrize(
    ("offset", "means"),
    [(0, "5 again"), (1, "up to 1 skipped, up to 5 again"), (8, "3 skipped"), (20, "15 skipped")],
)
def test_a_seek_counts_what_is_done_above_the_first_open_message(
    console: Console, offset: int, means: str
) -> None:
    console.ask("PUT", "/v1/topics/orders", {"queues": 1})
    console.publish("orders", *({"body": f"order {number}"} for number in range(20)))
    console.ask("PUT", "/v1/groups/billing", {"topics": {"orders": {}}})
    settle(console, "ack", receive(console, 8)[3:])
    page = console.open("#/groups/billing")
    page.get_by_role("button", name="Seek…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).select_option("offset")
    dialog.get_by_label("Offset").fill(str(offset))
    cell = dialog.get_by_role("table", name="Before and after").locator("td[data-title=Means]")
    expect(cell).to_have_text(means)


def test_a_seek_to_a_time_and_of_a_group_that_stores_offsets(billing: Console) -> None:
    billing.ask("PUT", "/v1/groups/reports/topics/orders/offsets", {"offsets": {"0": 3}})
    page = billing.open("#/groups/reports")
    expect(page.locator(".heading")).to_contain_text("Stores the offsets")
    page.get_by_role("button", name="Seek…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).select_option("time")
    dialog.get_by_label("Time").fill("2001-01-01T00:00:00")
    expect(dialog.locator("td[data-title=Means]")).to_have_text("3 again")
    dialog.get_by_role("button", name="Seek").click()
    expect(dialog).to_have_count(0)
    offsets = billing.ask("GET", "/v1/groups/reports/topics/orders/offsets")["offsets"]
    assert offsets == {"0": 0}


def test_dead_letters_say_why_and_from_where_and_are_redriven(billing: Console) -> None:
    page = billing.open("#/groups/billing/letters")
    assert cells(page, "Dead letters", "Why") == ["max-attempts", *["rejected"] * 3]
    assert cells(page, "Dead letters", "From")[-1] == "orders 0 : 2"
    assert cells(page, "Dead letters", "Attempts") == ["1"] * 4
    # One letter
    page.get_by_role("checkbox", name="Choose letter 1").check()
    page.get_by_role("button", name="Redrive chosen…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 letter would be redriven: 1 to orders.")
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.locator(".notice").first).to_have_text("1 letter redriven.")
    expect(page.get_by_role("table", name="Dead letters").locator("tbody tr")).to_have_count(3)
    # All others
    page.get_by_role("button", name="Redrive all…").click()
    expect(dialog).to_contain_text("3 letters would be redriven")
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.locator(".empty").first).to_contain_text("No dead letters here")
    queue = billing.ask("GET", "/v1/topics/orders")["queues"][0]
    assert queue["max_offset"] == 24


def test_letters_are_discarded_after_a_dry_run(billing: Console) -> None:
    page = billing.open("#/groups/billing/letters")
    page.get_by_role("checkbox", name="Choose letter 0").check()
    page.get_by_role("button", name="Discard chosen…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 letter would be discarded.")
    dialog.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("table", name="Dead letters").locator("tbody tr")).to_have_count(3)
    page.get_by_role("button", name="Discard all…").click()
    dialog.get_by_role("button", name="Discard").click()
    expect(page.locator(".empty").first).to_contain_text("No dead letters here")
    assert billing.ask("GET", "/v1/topics/orders")["queues"][0]["max_offset"] == 20


def test_a_dry_run_changes_nothing_and_cancel_leaves_the_letters(billing: Console) -> None:
    page = billing.open("#/groups/billing/letters")
    page.get_by_role("button", name="Redrive all…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("4 letters would be redriven: 4 to orders.")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert billing.ask("GET", "/v1/topics/orders")["queues"][0]["max_offset"] == 20
    page.get_by_role("button", name="Redrive chosen…").click()
    expect(page.locator(".notice.bad")).to_have_text("Choose letters first.")


def test_a_group_is_deleted_after_its_name_was_typed(billing: Console) -> None:
    page = billing.open("#/groups/billing")
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    confirm = dialog.get_by_role("button", name="Delete")
    dialog.get_by_role("textbox").fill("billin")
    expect(confirm).to_be_disabled()
    dialog.get_by_role("textbox").fill("billing")
    confirm.click()
    page.wait_for_url(re.compile("#/groups$"))
    expect(page.locator(".empty").first).to_contain_text("There are no groups")


def test_a_group_with_last_value_shows_what_is_superseded(console: Console) -> None:
    console.ask("PUT", "/v1/topics/prices", {"queues": 1})
    keyed = [{"body": str(number), "key": "tea"} for number in range(3)]
    (first, *_) = console.publish("prices", *keyed)
    console.ask("PUT", "/v1/groups/board", {"topics": {"prices": {}}, "last_value": True})
    console.ask("POST", "/v1/groups/board/receive", {"member": "anna", "max_messages": 9})
    page = console.open("#/groups")
    assert cells(page, "Groups", "Kind") == ["competing, last value"]
    console.open("#/groups/board")
    expect(page.locator("#main")).to_contain_text("only the newest message is delivered")
    assert cells(page, "Topics and queues", "Superseded") == ["2"]
    expect(page.locator("dl").first).to_contain_text(re.compile(r"Superseded\s*2"))
    console.open(f"#/topics/prices/messages/{first['message_id']}")
    expect(page.get_by_role("table", name="States in the groups")).to_contain_text(
        "superseded by a later message with its key"
    )
    # A group without the setting shows no such column.
    console.ask("PUT", "/v1/groups/plain", {"topics": {"prices": {}}})
    console.open("#/groups/plain")
    assert cells(page, "Topics and queues", "Queue") == ["0"]
    assert cells(page, "Topics and queues", "Superseded") == []
