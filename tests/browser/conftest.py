"""A real Chromium that looks at the console of real brokers. What is missing here, is skipped."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from holdfast.running_broker import RunningBroker

pytest.importorskip("playwright", reason="no Playwright here (pip install 'holdfast[browser]')")

from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(__file__).parents[2] / ".interop/npm/node_modules/axe-core/axe.min.js"
#: A busy machine may be slow; a condition that never becomes true is the only failure.
PATIENCE_MS = 20_000
WRITABLE = ["--console-writable", "true"]
expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here (apt-get install chromium)")
    with sync_playwright() as playwright:
        # As root, Chromium has no sandbox.
        flags = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@dataclass
class Console:
    """One broker, and a page that shows its console."""

    broker: RunningBroker
    page: Page
    errors: list[str] = field(default_factory=list)
    """What the page logged as errors: also what the content security policy forbade."""
    is_error_expected: Callable[[str], bool] = lambda text: False

    def open(self, place: str = "#/") -> Page:
        """Show a view, and return the page when the view is there."""
        self.page.goto(f"{self.broker.url}/console/{place}")
        return shown(self.page)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.broker.url + path, data, {"Content-Type": "application/json"})
        request.method = method
        with urlopen(request, timeout=30) as reply:
            return json.load(reply)

    def publish(self, topic: str, *messages: dict[str, Any]) -> list[Any]:
        reply = self.ask("POST", f"/v1/topics/{topic}/messages", {"messages": list(messages)})
        return list(reply["results"])


def shown(page: Page) -> Page:
    """Return the page when it shows the view of its address."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    is_shown = "document.getElementById('main')?.dataset.place === location.hash"
    while not page.evaluate(is_shown):
        assert time.monotonic() < deadline, f"the view does not appear: {page.url}"
        page.wait_for_timeout(20)
    return page


@pytest.fixture
def console(chromium: Browser, broker: RunningBroker) -> Iterator[Console]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    console = Console(broker, page)
    page.on("pageerror", lambda error: console.errors.append(str(error)))
    page.on(
        "console",
        lambda message: console.errors.append(message.text) if message.type == "error" else None,
    )
    yield console
    context.close()
    # Chromium logs every reply with an error status; the views show these.
    left = [text for text in console.errors if not re.search(r"status of (4|5)\d\d", text)]
    assert [text for text in left if not console.is_error_expected(text)] == []


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("broker") / "data"
    with RunningBroker(folder, WRITABLE, start_timeout_s=120) as broker:
        yield broker


def violations(page: Page) -> list[str]:
    """Return what axe-core finds wrong with the accessibility of a page."""
    if not AXE.exists():
        pytest.skip("no axe-core here (.ci/install-fault-tools)")
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]}"
        for each in found
        for node in each["nodes"]
    ]
