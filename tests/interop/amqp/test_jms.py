"""What JMS programs do, with qpid-jms: each scenario is one method of java/JmsScenarios.java."""

import re
from collections.abc import Callable

import pytest

from tests.interop.amqp.builds import HERE
from tests.interop.amqp.clients import Client

SCENARIOS = re.findall(r'Map\.entry\("([^"]+)"', (HERE / "java" / "JmsScenarios.java").read_text())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_jms(client: Callable[[str], Client], address: str, scenario: str) -> None:
    client("qpid-jms").run("scenario", scenario=scenario, address=address)
