"""What JMS programs do, with qpid-jms: each scenario is one method of java/JmsScenarios.java."""

from collections.abc import Callable

import pytest

from tests.interop.amqp.clients import Client

SCENARIOS = [
    *("queue", "competing consumers", "topic", "no local", "browser", "selectors"),
    *("one message each", "invalid selector", "priorities", "delivery count", "recover"),
    *("client acknowledge", "time to live", "message listener", "anonymous producer"),
    *("client id in use", "temporary queue", "temporary topic", "request and reply"),
    *("transacted session", "durable subscription", "shared subscription", "shared durable"),
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_jms(client: Callable[[str], Client], address: str, scenario: str) -> None:
    client("qpid-jms").run("scenario", scenario=scenario, address=address)
