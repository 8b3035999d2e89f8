"""holdfast topic, against a broker."""

import json

from tests.cli.conftest import Run, assert_refused


def test_create_makes_sure_of_a_topic(holdfast: Run) -> None:
    made = holdfast("topic", "create", "t", "--queues", "2", "--retention-bytes", "1MiB")
    assert made.exit_code == 0
    described = json.loads(made.stdout)
    assert (described["topic"], described["queue_count"]) == ("t", 2)
    assert described["config"]["retention_bytes"] == 1024 * 1024
    assert holdfast("topic", "create", "t", "--queues", "2").exit_code == 0
    assert_refused(holdfast("topic", "create", "t", "--queues", "3"), 5)
    assert_refused(holdfast("topic", "describe", "c"), 4, "'c'")


def test_change(holdfast: Run) -> None:
    holdfast("topic", "create", "t", "--queues", "1")
    changed = holdfast("topic", "change", "t", "--queues", "3", "--durability", "written")
    assert changed.exit_code == 0
    described = json.loads(changed.stdout)
    assert described["queue_count"] == 3
    assert described["config"]["durability"] == "written"
    assert holdfast("topic", "change", "t", "--queues", "2").exit_code == 2


def test_levels_of_priority(holdfast: Run) -> None:
    made = holdfast("topic", "create", "t", "--queues", "2", "--priority-levels", "3")
    described = json.loads(made.stdout)
    assert (described["queue_count"], described["config"]["priority_levels"]) == (6, 3)
    assert holdfast("topic", "create", "t", "--priority-levels", "2").exit_code == 5
    assert json.loads(holdfast("topic", "change", "t", "--queues", "3").stdout)["queue_count"] == 9
    for refused in (
        ("topic", "create", "u", "--priority-levels", "11"),
        ("topic", "change", "t", "--priority-levels", "3"),
    ):
        assert holdfast(*refused).exit_code == 2


def test_delete_wants_to_be_sure(holdfast: Run) -> None:
    holdfast("topic", "create", "t")
    refused = holdfast("topic", "delete", "t")
    assert refused.exit_code == 2
    assert holdfast("topic", "describe", "t").exit_code == 0
    assert holdfast("topic", "delete", "t", "--yes").exit_code == 0
    assert holdfast("topic", "describe", "t").exit_code == 4
