"""All views: accessibility, keyboard, widths, links, and code that returns what the view shows."""

import json
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from holdfast.running_broker import RunningBroker
from tests.browser.conftest import WRITABLE, Console, shown, violations

WIDTHS = (1280, 1024, 390)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("broker") / "data"
    with RunningBroker(folder, WRITABLE, start_timeout_s=120) as broker, broker.client() as client:
        client.create_topic("orders", queues=2)
        client.create_topic("x" * 127, queues=1)
        for number in range(60):
            body = json.dumps({"order": number, "text": "long " * 40}).encode()
            client.publish("orders", body, key="k" * 200, tag="new", properties={"a": "b" * 500})
        client.create_group("billing", ["orders"], dead_letter_topic="dead", max_attempts=1)
        leased = client.receive("billing", "anna", max_messages=9)
        client.reject("billing", [each.receipt for each in leased.messages[:3] if each.receipt])
        next(iter(client.pull("dead", queue=0, offset=0, wait_ms=20_000)))
        yield broker


def views(console: Console) -> list[str]:
    reply = console.ask("GET", "/v1/topics/orders/messages/browse?max_messages=1")
    message = reply["messages"][0]["message_id"]
    return [
        "#/",
        "#/topics",
        "#/topics/orders",
        "#/topics/orders/messages",
        "#/topics/orders/messages?live=1",
        f"#/topics/orders/messages/{message}",
        "#/groups",
        "#/groups/billing",
        "#/groups/billing/letters",
        "#/find?q=o",
        f"#/publish?topic=orders&again={message}",
        "#/connections",
        "#/access",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible_in_both_schemes(console: Console, scheme: str) -> None:
    console.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    found = {}
    for view in views(console):
        page = console.open(view)
        page.locator(".as-code summary").first.click()
        if problems := violations(page):
            found[view] = problems
    assert found == {}


def test_no_view_is_wider_than_the_window(console: Console) -> None:
    too_wide = []
    for width in WIDTHS:
        console.page.set_viewport_size({"width": width, "height": 800})
        for view in views(console):
            page = console.open(view)
            excess = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if excess > 0:
                too_wide.append((width, view, excess))
    assert too_wide == []


def test_the_name_of_the_view_is_visible_on_a_narrow_screen(console: Console) -> None:
    console.page.set_viewport_size({"width": 390, "height": 800})
    for view in ("#/access", "#/", "#/connections"):
        page = console.open(view)
        expect(page.locator("#nav a[aria-current]")).to_be_in_viewport(ratio=0.9)


def test_every_view_opens_from_its_link_in_a_new_tab(console: Console, chromium: Browser) -> None:
    page = console.open("#/topics/orders/messages")
    page.get_by_role("button", name="Older ›").click()
    expect(page.get_by_role("button", name="‹ Newer")).to_be_enabled()
    first = shown(page).locator("td[data-title=Place]").first.inner_text()
    with chromium.new_context() as context:
        other = context.new_page()
        other.goto(page.url)
        assert shown(other).locator("td[data-title=Place]").first.inner_text() == first


def test_the_keyboard_reaches_the_views_and_the_search(console: Console) -> None:
    page = console.open("#/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.locator("h1")).to_have_text("Topics")
    shown(page)
    page.keyboard.press("/")
    field = page.get_by_role("searchbox")
    expect(field).to_be_focused()
    page.keyboard.type("ORD")
    page.keyboard.press("Enter")
    expect(page.locator("td[data-title=Topic]")).to_have_text(["orders"])
    shown(page)
    link = page.get_by_role("link", name="orders")
    link.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("orders")
    page.get_by_role("button", name="Delete…").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_code_of_a_view_returns_what_it_shows(console: Console) -> None:
    page = console.open("#/topics/orders/messages?queue=1&order=oldest&tag=new")
    page.locator(".as-code summary").click()
    code = page.locator(".as-code pre")
    places = page.locator("td[data-title=Place]").all_inner_texts()
    reply = json.loads(
        subprocess.run(
            ["bash", "-c", code.inner_text()], capture_output=True, check=True, timeout=60
        ).stdout
    )
    assert [str(each["offset"]) for each in reply["messages"]] == places
    page.get_by_role("button", name="Python").click()
    shown_by_python = subprocess.run(
        ["python3", "-c", code.inner_text()], capture_output=True, check=True, timeout=60
    ).stdout.decode()
    assert all(f"'offset': {place}," in shown_by_python for place in places)
    page.get_by_role("button", name="Spark").click()
    expect(code).to_contain_text('.option("topic", "orders")')
    expect(code).to_contain_text('.option("tag", "new")')


def test_long_lists_come_in_pages_and_are_searched(console: Console) -> None:
    with console.broker.client() as client:
        for number in range(55):
            client.create_topic(f"many.{number:03}", queues=1)
            client.store_offsets(f"reader.{number:03}", "orders", {0: 0})
    page = console.open("#/topics")
    assert page.locator("td[data-title=Topic]").count() == 50
    page.get_by_role("button", name="Next ›").click()
    expect(page.get_by_role("button", name="First")).to_be_enabled()
    expect(page.get_by_role("button", name="Next ›")).to_be_disabled()
    page = console.open("#/groups?contains=READER.05")
    names = page.locator("td[data-title=Group]").all_inner_texts()
    assert names == [f"reader.05{number}" for number in range(5)]
    page = console.open("#/topics/orders")
    readers = page.get_by_role("table", name="Readers").locator("tbody tr")
    expect(readers).to_have_count(25)
    page.get_by_role("button", name="Next ›").click()
    expect(page.get_by_role("table", name="Readers")).to_contain_text("reader.030")
    page = console.open("#/find?q=many.05")
    expect(page.locator("td[data-title=Topic]")).to_have_count(5)


def test_a_message_is_published_and_published_again(console: Console) -> None:
    page = console.open("#/publish?topic=orders")
    page.get_by_label("Key", exact=True).fill("by hand")
    page.get_by_label("Properties").fill("a=1=2\nb=")
    page.get_by_label("Body", exact=True).last.fill('{"hello": "wörld"}')
    page.get_by_role("button", name="Publish", exact=True).click()
    box = page.locator(".box.good")
    expect(box).to_contain_text("Stored.")
    box.get_by_role("link").click()
    expect(page.locator("h1")).to_contain_text("orders")
    assert shown(page).locator("td[data-title=Property]").all_inner_texts() == ["a", "b"]
    page.get_by_role("link", name="Publish again").click()
    expect(page.get_by_label("Key", exact=True)).to_have_value("by hand")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".box.good")).to_contain_text("Stored.")
    found = console.ask("GET", "/v1/topics/orders/messages/search?key=by%20hand")["messages"]
    assert [each["body"] for each in found] == ['{"hello": "wörld"}'] * 2
    assert found[0]["properties"] == {"a": "1=2", "b": ""}


def test_topics_are_created_changed_and_deleted(console: Console) -> None:
    page = console.open("#/topics")
    page.get_by_role("button", name="New topic…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("made")
    dialog.get_by_label("Queues").fill("3")
    dialog.get_by_label("Keep for hours").fill("48")
    dialog.get_by_role("button", name="Create").click()
    expect(page.locator("h1")).to_have_text("made")
    expect(page.locator(".heading")).to_contain_text("3 queues; messages are kept for 2 d.")
    shown(page)
    page.get_by_role("button", name="Change…").click()
    dialog.get_by_label("Queues").fill("2")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog.get_by_role("alert")).to_contain_text("invalid-topic-change")
    dialog.get_by_label("Queues").fill("4")
    dialog.get_by_role("button", name="Change").click()
    expect(page.locator(".heading")).to_contain_text("4 queues")
    shown(page)
    page.get_by_role("button", name="Delete…").click()
    dialog.get_by_role("textbox").fill("made")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("Topics")
    expect(page.locator("td[data-title=Topic]").filter(has_text="made")).to_have_count(0)
