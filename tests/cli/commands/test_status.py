"""holdfast status and top, against a broker."""

import json

from holdfast.cli.commands.broker_status import parse_figures
from holdfast.cli.output.overview_view import overview_lines
from holdfast.testing import RunningBroker
from tests.cli.conftest import Run


# O3: the commands status and top did not exist.
def test_the_status_is_that_of_the_broker(holdfast: Run, shared_broker: RunningBroker) -> None:
    with shared_broker.client() as client:
        client.create_topic("orders", queues=1)
        for _ in range(3):
            client.publish("orders", b"x")
        client.store_offsets("reports", "orders", {0: 1})
        client.create_group("billing", ["orders"])
    for command in ("status", "top"):
        done = holdfast(command)
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["is_well"], found["phase"], found["alarms"]) == (True, "ready", {})
        figures = found["figures"]
        (topic,) = figures["topics"]
        assert (topic["topic"], topic["messages"], topic["messages_in"]) == ("orders", 3, 3)
        # The new group "billing" may already have stored offsets, and so a lag.
        (group,) = [each for each in figures["groups"] if each["group"] != "billing"]
        assert (group["group"], group["topic"], group["lag_messages"]) == ("reports", "orders", 2)
        assert group["lag_seconds"] >= 0
        assert figures["group_count"] == 2
        assert figures["disk_free_bytes"] > 0
        assert figures["resident_bytes"] > 10_000_000
        assert figures["certificate_expires_seconds"] is None
    overview = json.loads(holdfast("top", "--once").stdout)["overview"]
    assert (overview["topics"], overview["disk"]["free_bytes"] > 0) == (1, True)
    assert overview["groups"]["count"] == 1
    assert overview_lines(overview, None, 0.0)[0].startswith("since the start: ")


def test_figures_of_no_metrics_are_zero() -> None:
    empty = parse_figures("", 0.0)
    assert (empty.version, empty.topic_count, empty.topics, empty.groups) == ("", 0, [], [])


def test_the_groups_of_a_broker_that_counts_only_those_with_leases_are_those_with_lag() -> None:
    lags = 'holdfast_group_lag_messages{group="a",topic="t"} 1\n'
    lags += 'holdfast_group_lag_messages{group="b",topic="t"} 1\n'
    assert parse_figures(f"holdfast_groups 1\n{lags}", 0.0).group_count == 2
    counted = "holdfast_groups 1\nholdfast_groups_without_leases 4\n"
    assert parse_figures(counted + lags, 0.0).group_count == 5
