"""Makes the pictures of docs/console.md: `python -m tests.browser.screenshots docs/images`."""

import json
import random
import sys
import tempfile
import threading
from pathlib import Path

import holdfast
from holdfast.running_broker import RunningBroker
from tests.browser.conftest import CHROMIUM, WRITABLE, shown

#: Name, view, width, height, colour scheme.
PICTURES = (
    ("console-messages", "#/topics/orders/messages", 1280, 760, "light"),
    ("console-group", "#/groups/billing", 1024, 760, "dark"),
    ("console-overview", "#/", 390, 760, "light"),
)


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


def main(folder: Path) -> None:
    """Start a broker and a browser, and write the pictures."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    chance, is_done = random.Random(3), threading.Event()
    with (
        tempfile.TemporaryDirectory() as data,
        RunningBroker(Path(data) / "data", WRITABLE, start_timeout_s=120) as broker,
        broker.client() as client,
        sync_playwright() as playwright,
    ):
        fill(client, chance)

        def publish() -> None:
            while not is_done.wait(chance.random() / 20):
                publish_one(client, chance)

        def consume() -> None:
            while not is_done.wait(0.2):
                messages = client.receive("billing", "worker-1", max_messages=9).messages
                client.ack("billing", [each.receipt for each in messages if each.receipt])

        work = [threading.Thread(target=each) for each in (publish, consume)]
        for each in work:
            each.start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, view, width, height, scheme in PICTURES:
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page.goto(f"{broker.url}/console/{view}")
            shown(page)
            page.wait_for_timeout(20_000)  # the charts show what the page has seen
            page.screenshot(path=folder / f"{name}.png")
        is_done.set()
        for each in work:
            each.join()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
