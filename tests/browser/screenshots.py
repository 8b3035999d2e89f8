"""Makes pictures of every view of the console.

`python -m tests.browser.screenshots docs/images` makes those of docs/console.md. `--all` makes
each view of a busy broker and of an empty one, at three sizes, light and dark.
"""

import argparse
import json
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

import holdfast
from holdfast.running_broker import RunningBroker
from tests.browser.conftest import CHROMIUM, WRITABLE, shown
from tests.browser.test_states import enter, make_token

SIZES = ((1280, 800), (1024, 768), (390, 844))
SEEN_MS = 9_000
"""How long a page of the docs stays open first: charts show what the page has seen."""


class Picture(NamedTuple):
    """One picture of docs/console.md. `{message}` in a view is the id of a message."""

    name: str
    view: str
    width: int
    height: int
    scheme: Literal["light", "dark"]
    button: str = ""
    """The button that opens a dialog, or nothing."""


PICTURES = (
    Picture("console-messages", "#/topics/orders/messages", 1280, 760, "light"),
    Picture("console-message", "#/topics/orders/messages/{message}", 1024, 760, "light"),
    Picture("console-live", "#/topics/orders/messages?live=1", 1024, 760, "dark"),
    Picture("console-groups", "#/groups", 1024, 760, "light"),
    Picture("console-group", "#/groups/billing", 1024, 760, "dark"),
    Picture("console-seek", "#/groups/billing", 1024, 760, "light", "Seek…"),
    Picture("console-letters", "#/groups/billing/letters", 1024, 760, "light"),
    Picture("console-overview", "#/", 390, 760, "light"),
    Picture("console-overview-wide", "#/", 1024, 760, "dark"),
    Picture("console-topics", "#/topics", 1024, 760, "light"),
    Picture("console-topic", "#/topics/orders", 1024, 760, "light"),
    Picture("console-find", "#/find?key=customer-7&topic=orders", 1024, 760, "light"),
    Picture("console-publish", "#/publish?topic=orders&again={message}", 1024, 760, "dark"),
    Picture("console-connections", "#/connections", 1024, 760, "light"),
)

ACCESS = Picture("console-access", "#/access", 1024, 760, "light")
"""Of a broker that asks for a token."""
EMPTY_VIEWS = ("#/", "#/topics", "#/groups", "#/find", "#/publish", "#/connections", "#/access")


def fill(client: holdfast.Client, chance: random.Random) -> None:
    """Make topics, messages, and a group with holders, delays and dead letters."""
    client.create_topic("orders", queues=3)
    client.create_topic("billing.dead", queues=1)
    for _ in range(300):
        publish_one(client, chance)
    client.create_group(
        "billing", ["orders"], dead_letter_topic="billing.dead", max_attempts=2, lease_ms=600_000
    )
    for member in ("worker-1", "worker-2", "worker-3"):
        messages = client.receive("billing", member, max_messages=20).messages
        receipts = [each.receipt for each in messages if each.receipt is not None]
        client.ack("billing", receipts[:12])
        client.reject("billing", receipts[12:13])
        client.nack("billing", receipts[13:15], delay_ms=600_000)


def publish_one(client: holdfast.Client, chance: random.Random) -> None:
    customer = f"customer-{chance.randrange(30)}"
    order = {
        "order": chance.randrange(10_000),
        "customer": customer,
        "amount": round(chance.random() * 400, 2),
        "items": [{"sku": f"SKU-{chance.randrange(100)}", "count": chance.randrange(1, 4)}],
    }
    tag = chance.choice(["new", "paid", "cancelled"])
    client.publish("orders", json.dumps(order).encode(), key=customer, tag=tag)


@contextmanager
def traffic(broker: RunningBroker, chance: random.Random) -> Iterator[None]:
    """Publish and consume in other threads, over HTTP and AMQP, until the block ends."""
    is_done = threading.Event()

    def publish() -> None:
        with broker.client() as client:
            while not is_done.wait(chance.random() / 20):
                publish_one(client, chance)

    def consume() -> None:
        with broker.client() as client:
            while not is_done.wait(0.2):
                messages = client.receive("billing", "worker-1", max_messages=9).messages
                client.ack("billing", [each.receipt for each in messages if each.receipt])

    def follow() -> None:
        with broker.client() as client, client.session() as session:
            receiver = session.receiver(topic="orders", credit=100)
            while not is_done.is_set():
                receiver.accept(next(receiver))

    work = [threading.Thread(target=each) for each in (publish, consume, follow)]
    for each in work:
        each.start()
    try:
        yield
    finally:
        is_done.set()
        for each in work:
            each.join()


def open_view(page: Page, broker: RunningBroker, view: str) -> None:
    with broker.client() as client:
        message = next(iter(client.pull("orders", queue=0, offset=20))) if "{" in view else None
    page.goto(f"{broker.url}/console/{view.format(message=message and message.message_id)}")
    shown(page)


def for_the_docs(browser: Browser, broker: RunningBroker, picture: Picture, folder: Path) -> None:
    page = browser.new_page(
        viewport={"width": picture.width, "height": picture.height}, color_scheme=picture.scheme
    )
    open_view(page, broker, picture.view)
    if picture is ACCESS:
        enter(page, make_token(broker, "all"))
    page.wait_for_timeout(SEEN_MS)
    if picture.button:
        page.get_by_role("button", name=picture.button).click()
        page.get_by_label("To", exact=True).select_option("earliest")
        page.get_by_role("table", name="Before and after").wait_for()
    page.screenshot(path=folder / f"{picture.name}.png")
    page.close()


def every_size(browser: Browser, broker: RunningBroker, name: str, view: str, folder: Path) -> None:
    for scheme in ("light", "dark"):
        for width, height in SIZES:
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            open_view(page, broker, view)
            page.wait_for_timeout(2_500)
            page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
            page.close()


def main() -> None:
    """Start brokers and a browser, and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="each view, size and scheme")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(3)
    with tempfile.TemporaryDirectory() as data, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with RunningBroker(Path(data) / "asks", ["--access-authentication", "true"]) as broker:
            make_token(broker, "publish:=orders")
            make_token(broker, "consume:=orders:=billing")
            for_the_docs(browser, broker, ACCESS, folder)
        with RunningBroker(Path(data) / "data", WRITABLE) as broker:
            if options.all:
                for view in EMPTY_VIEWS:
                    every_size(browser, broker, f"empty{view[1:].replace('/', '-')}", view, folder)
            with broker.client() as client:
                fill(client, chance)
            with traffic(broker, chance):
                for picture in PICTURES:
                    if options.all:
                        every_size(browser, broker, picture.name, picture.view, folder)
                    else:
                        for_the_docs(browser, broker, picture, folder)
        browser.close()


if __name__ == "__main__":
    main()
