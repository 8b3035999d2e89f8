"""holdfast group, against a broker."""

import json

import pytest

from holdfast.client import Client
from holdfast.testing import RunningBroker
from tests.cli.conftest import Run


@pytest.fixture
def group(holdfast: Run, holdfast_broker: RunningBroker) -> Run:
    """Store offset 1 of 3 in queue 0 of a topic for group g."""
    holdfast("topic", "create", "t", "--queues", "1")
    holdfast("publish", "t", input=b"a\nb\nc\n")
    with Client(holdfast_broker.url) as client:
        client.store_offsets("g", "t", {0: 1})
    return holdfast


def test_list_describe_and_offsets(group: Run) -> None:
    (listed,) = group("group", "list").stdout.splitlines()
    assert json.loads(listed)["group"] == "g"
    described = json.loads(group("group", "describe", "g").stdout)
    assert described["group"] == "g"
    (topic,) = described["topics"]
    assert topic["topic"] == "t"
    stored = json.loads(group("group", "offsets", "g", "t").stdout)
    assert stored["offsets"] == {"0": 1}
    assert stored["etag"]


def test_a_dry_run_changes_nothing(group: Run) -> None:
    shown = json.loads(group("group", "reset", "g", "t", "--to", "latest", "--dry-run").stdout)
    assert (shown["before"], shown["after"]) == ({"0": 1}, {"0": 3})
    assert json.loads(group("group", "offsets", "g", "t").stdout)["offsets"] == {"0": 1}


@pytest.mark.parametrize(("to", "after"), [("earliest", 0), ("latest", 3), ("-1h", 0), ("now", 3)])
def test_reset_moves_the_offsets(group: Run, to: str, after: int) -> None:
    moved = json.loads(group("group", "reset", "g", "t", "--to", to).stdout)
    assert (moved["before"], moved["after"]) == ({"0": 1}, {"0": after})
    assert json.loads(group("group", "offsets", "g", "t").stdout)["offsets"] == {"0": after}


def test_an_unknown_group_is_code_4(group: Run) -> None:
    assert group("group", "describe", "none").exit_code == 4
    assert group("group", "offsets", "none", "t").exit_code == 4
