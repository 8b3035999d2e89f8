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
    for command in ("status", "top"):
        done = holdfast(command)
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["is_well"], found["phase"], found["alarms"]) == (True, "ready", {})
        figures = found["figures"]
        (topic,) = figures["topics"]
        assert (topic["topic"], topic["messages"], topic["messages_in"]) == ("orders", 3, 3)
        (group,) = figures["groups"]
        assert (group["group"], group["topic"], group["lag_messages"]) == ("reports", "orders", 2)
        assert group["lag_seconds"] >= 0
        assert figures["disk_free_bytes"] > 0
        assert figures["resident_bytes"] > 10_000_000
        assert figures["certificate_expires_seconds"] is None
    overview = json.loads(holdfast("top", "--once").stdout)["overview"]
    assert (overview["topics"], overview["disk"]["free_bytes"] > 0) == (1, True)
    assert overview_lines(overview, None, 0.0)[0].startswith("since the start: ")


def test_figures_of_no_metrics_are_zero() -> None:
    empty = parse_figures("", 0.0)
    assert (empty.version, empty.topic_count, empty.topics, empty.groups) == ("", 0, [], [])
