"""The console of brokers that are empty, stopped, degraded, recovering, or ask for a token."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from holdfast.client.errors import Forbidden, Unauthenticated
from holdfast.running_broker import RunningBroker
from tests.browser.conftest import Console, shown

VIEWS = ["#/", "#/topics", "#/groups", "#/find", "#/publish", "#/access"]


@pytest.fixture
def arguments() -> list[str]:
    return []


@pytest.fixture
def broker(tmp_path: Path, arguments: list[str]) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path / "data", arguments, start_timeout_s=120) as broker:
        yield broker


def test_an_empty_broker_is_well_and_says_what_to_do_first(console: Console) -> None:
    page = console.open("#/")
    expect(page.locator(".box.good")).to_contain_text("All is well.")
    expect(page.locator("#top .state")).to_have_text("all is well")
    console.open("#/topics")
    expect(page.locator(".empty").first).to_have_text("There are no topics yet.")
    console.open("#/groups")
    expect(page.locator(".empty").first).to_contain_text("There are no groups.")
    console.open("#/topics/nothing")
    expect(page.locator(".box")).to_contain_text("There is no topic 'nothing'")
    console.open("#/nothing")
    expect(page.locator(".box")).to_contain_text("The console has no view /nothing.")


def test_without_authentication_the_console_is_read_only(console: Console) -> None:
    console.ask("PUT", "/v1/topics/orders", {"queues": 1})
    page = console.open("#/topics")
    create = page.get_by_role("button", name="New topic…")
    expect(create).to_be_disabled()
    expect(create).to_have_attribute("title", re.compile("read-only"))
    console.open("#/topics/orders")
    expect(page.get_by_role("button", name="Delete…")).to_be_disabled()
    console.open("#/publish?topic=orders")
    expect(page.get_by_role("button", name="Publish", exact=True)).to_be_disabled()
    console.open("#/access")
    expect(page.locator(".box")).to_contain_text("The console is read-only")


def test_a_stopped_broker_leaves_the_view_and_comes_back(console: Console) -> None:
    console.is_error_expected = lambda text: "net::ERR" in text
    page = console.open("#/topics")
    console.broker.stop()
    expect(page.locator("#stale")).to_contain_text("Not refreshed since")
    expect(page.locator("#top .state")).to_have_text("unreachable")
    console.page.evaluate("location.hash = '#/groups'")
    expect(page.locator(".box.bad")).to_contain_text("The broker does not answer.")
    console.broker.start()
    expect(page.locator("#top .state")).to_have_text("all is well")
    console.open("#/topics")
    expect(page.locator("#stale")).to_have_count(0)


def test_damage_is_listed_with_its_remedy(console: Console, tmp_path: Path) -> None:
    console.ask("PUT", "/v1/topics/orders", {"queues": 1})
    for body in ("whole", "DAMAGED-BODY", "whole again"):
        console.publish("orders", {"body": body})
    console.broker.stop()
    (segment,) = [
        path
        for path in (tmp_path / "data" / "commitlog").iterdir()
        if path.is_file() and b"DAMAGED-BODY" in path.read_bytes()
    ]
    content = bytearray(segment.read_bytes())
    content[content.index(b"DAMAGED-BODY")] ^= 1
    segment.write_bytes(content)
    console.broker.start()
    page = console.open("#/topics/orders/messages")
    expect(page.locator(".box.warn")).to_contain_text("offsets 1 to 1 cannot be read")
    bodies = page.locator("td[data-title=Body]").all_inner_texts()
    assert bodies == ["whole again", "whole"]
    console.open("#/")
    degraded = page.locator(".box.warn", has_text="Degraded")  # a busy machine may warn too
    expect(degraded).to_contain_text("holdfast repair --accept-loss")
    expect(page.locator("#top .state")).to_have_text("degraded")


ALARMS = {
    "phase": "ready",
    "degraded": [{"reason": "no-segment", "detail": "publishing waits for a segment"}],
    "read_only": None,
    "alarms": {"disk": "60 MiB are left of the disk"},
}
RECOVERING = {
    "type": "/problems/recovering",
    "title": "recovering",
    "status": 503,
    "detail": "the broker is recovering; wait until it is ready",
    "phase": "recovering",
    "degraded": [],
    "read_only": None,
    "alarms": {},
    "progress": {"step": "log", "done_bytes": 1 << 20, "total_bytes": 4 << 20},
}


def fulfil(page: Page, path: str, status: int, body: Any) -> None:
    def answer(route: Route) -> None:
        route.fulfill(status=status, json=body)

    page.route(f"**{path}", answer)


def test_alarms_have_their_remedies(console: Console) -> None:
    fulfil(console.page, "/readyz", 200, ALARMS)
    page = console.open("#/")
    box = page.locator(".box.bad")
    expect(box).to_contain_text("Publishing is stopped: the disk alarm.")
    expect(box).to_contain_text("60 MiB are left of the disk")
    expect(box).to_contain_text("lower the retention of a topic")
    degraded = page.locator(".box.warn", has_text="Degraded")  # a busy machine may warn too
    expect(degraded).to_contain_text("no-segment")
    expect(page.locator("#top .state")).to_have_text("publishing stopped")
    page.unroute("**/readyz")
    fulfil(page, "/readyz", 200, {**ALARMS, "alarms": {}, "read_only": "a sync failed"})
    expect(page.locator(".box.bad")).to_contain_text("Nothing can be published until a restart.")


def test_a_broker_that_recovers_shows_its_progress(console: Console) -> None:
    fulfil(console.page, "/readyz", 503, RECOVERING)
    page = console.open("#/")
    expect(page.locator(".box.warn")).to_contain_text("1 MiB of 4 MiB")
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.unroute("**/readyz")
    expect(page.locator(".box.good")).to_contain_text("All is well.")


# -- tokens --------------------------------------------------------------------------------------


def make_token(broker: RunningBroker, *grants: str) -> str:
    """Return a new token that the running broker knows already."""
    allow = [word for grant in grants for word in ("--allow", grant)]
    command = [sys.executable, "-m", "holdfast", "token", "create"]
    made = subprocess.run(
        [*command, "--data-dir", str(broker.data_dir), "--name", "test", *allow],
        capture_output=True,
        text=True,
        check=True,
    )
    token = str(json.loads(made.stdout)["token"])
    deadline = time.monotonic() + 20
    while True:
        try:
            with broker.client(token=token) as client:
                client.topics()
            return token
        except Forbidden:
            return token
        except Unauthenticated:
            assert time.monotonic() < deadline, "the broker does not load the token"
            time.sleep(0.05)


def enter(page: Page, token: str) -> None:
    page.locator("#top button").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Token", exact=True).fill(token)
    dialog.get_by_role("button", name="Use").click()
    expect(dialog).to_have_count(0)


@pytest.mark.parametrize("arguments", [["--access-authentication", "true"]])
def test_without_a_token_every_view_asks_for_one(console: Console) -> None:
    for view in ("#/", "#/topics", "#/groups", "#/access", "#/topics/x/messages"):
        page = console.open(view)
        expect(page.locator(".box.info").first).to_contain_text("This broker asks for a token.")
    enter(page, "holdfast_000000000000." + "A" * 43)
    expect(page.locator("#top button").first).to_have_text("Token refused")
    enter(page, make_token(console.broker, "all"))
    expect(page.locator("#top button").first).to_contain_text("token:")
    page = console.open("#/access")
    expect(page.get_by_role("table", name="Tokens").locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("table", name="Audit log")).to_contain_text("token.create")
    page = console.open("#/topics")
    expect(page.get_by_role("button", name="New topic…")).to_be_enabled()
    # The token stays in the tab and nowhere else.
    assert page.evaluate("[localStorage.length, document.cookie, location.href]")[:2] == [0, ""]
    assert "holdfast_" not in page.url


@pytest.mark.parametrize("arguments", [["--access-authentication", "true"]])
def test_a_narrow_token_shows_only_what_it_grants(console: Console) -> None:
    broker = console.broker
    page = console.open("#/")
    with broker.client(token=make_token(broker, "all")) as client:
        for topic in ("orders", "secret"):
            client.create_topic(topic, queues=1)
            client.publish(topic, b"body")
        client.create_group("billing", ["orders", "secret"])
    enter(page, make_token(broker, "consume:=orders:=billing"))
    console.open("#/")
    expect(page.locator(".box.info")).to_contain_text("This needs operate")
    console.open("#/topics")
    expect(page.locator("td[data-title=Topic]")).to_have_text(["orders"])
    console.open("#/topics/secret/messages")
    expect(page.locator(".box.info")).to_contain_text("The token does not grant this view.")
    console.open("#/topics/orders/messages")
    expect(page.locator("td[data-title=Body]")).to_have_text(["body"])
    console.open("#/groups/billing")
    table = page.get_by_role("table", name="Topics and queues")
    expect(table.locator("td[data-title=Topic]")).to_have_text(["orders"])
    console.open("#/access")
    expect(page.locator("td[data-title=Grant]")).to_have_text(["consume:=orders:=billing"])
    expect(page.locator("#main")).to_contain_text("shown to tokens that grant everything")
    page.locator(".as-code summary").click()
    code = page.locator(".as-code pre")
    expect(code).to_contain_text("Bearer $HOLDFAST_TOKEN")
    assert "holdfast_" not in page.content()


def test_every_view_opens_on_an_empty_broker(console: Console) -> None:
    for view in VIEWS:
        page = console.open(view)
        assert page.locator(".box.bad").count() == 0, view
        shown(page)
