"""The connections: AMQP sessions and links with their credit, windows and unsettled messages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from holdfast.client import Client, Receiver
from tests.browser.conftest import Console, shown, violations
from tests.browser.test_groups import cells
from tests.browser.test_pages import WIDTHS

TABLE = "AMQP sessions and links"


@pytest.fixture
def receiver(console: Console) -> Iterator[Receiver]:
    """A link with a credit of 100, from which five messages were taken and none was settled."""
    console.ask("PUT", "/v1/topics/orders", {"queues": 1})
    console.ask("PUT", "/v1/groups/billing", {"topics": {"orders": {}}})
    with Client(console.broker.url) as client, client.session() as session:
        sender = session.sender("orders")
        receiver = session.receiver(group="billing", credit=100)
        for number in range(5):
            sender.send(str(number))
            next(receiver)
        yield receiver


def test_sessions_show_their_links_with_credit_and_window(
    console: Console, receiver: Receiver
) -> None:
    (session,) = console.ask("GET", "/v1/connections/sessions")["sessions"]
    page = console.open("#/connections")
    assert cells(page, TABLE, "Address") == [each["address"] for each in session["links"]]
    assert sorted(cells(page, TABLE, "The client")) == ["receives", "sends"]
    row = page.get_by_role("table", name=TABLE).get_by_role("row").filter(has_text="receives")
    credit = row.locator("td[data-title=Credit]")
    expect(credit).to_have_text("95")
    expect(row.locator("td[data-title='Unsettled out']")).to_have_text("5")
    window = f"{session['window_out']:,}"
    expect(row.locator("td[data-title='Window out']")).to_have_text(window)
    receiver.set_credit(70)  # the view follows by itself
    expect(credit).to_have_text("70")
    page.get_by_role("link", name="127.0.0.1").click()
    expect(page.get_by_role("heading", name=f"{TABLE} of 127.0.0.1")).to_be_visible()
    shown(page)
    assert len(cells(page, TABLE, "Address")) == 2
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    console.open("#/connections?client=10.0.0.7")
    expect(page.locator(".empty").last).to_have_text("10.0.0.7 has no session of AMQP.")
    page.get_by_role("link", name="Of all clients").click()
    expect(page.get_by_role("heading", name=TABLE, exact=True)).to_be_visible()


def test_the_view_with_sessions_is_accessible(console: Console, receiver: Receiver) -> None:
    assert violations(console.open("#/connections")) == []
