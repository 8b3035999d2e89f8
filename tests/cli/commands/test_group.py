"""holdfast group and holdfast consume, against a broker."""

import json
import time
from collections.abc import Iterator

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.cli.conftest import Run, assert_refused, commands_against, lines


@pytest.fixture
def orders(holdfast: Run) -> Run:
    """Publish 0 to 9 to a topic of one queue, tagged even or odd."""
    holdfast("topic", "create", "orders", "--queues", "1")
    holdfast("topic", "create", "refunds", "--queues", "1")
    bodies = b"".join(b"%d %s\n" % (n, b"odd" if n % 2 else b"even") for n in range(10))
    holdfast("publish", "orders", "--tag-regex", "[a-z]+", input=bodies)
    return holdfast


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A topic and a group without dead letters; no test here changes them."""
    with RunningBroker(tmp_path_factory.mktemp("refusing") / "data", TEST_ARGUMENTS) as broker:
        holdfast = commands_against(broker.url)
        holdfast("topic", "create", "orders", "--queues", "1")
        holdfast("group", "create", "g", "orders")
        yield holdfast


def consumed_offsets(run: Run, *arguments: str) -> list[int]:
    consumed = run("consume", *arguments, "--format", "%o\\n")
    assert consumed.exit_code == 0, consumed.stderr
    return [int(line) for line in consumed.stdout.split()]


def test_a_group_is_made_and_changed(orders: Run) -> None:
    made = orders(
        *("group", "create", "g", "orders=8", "refunds", "--filter", "orders=even,odd"),
        *("--mode", "keyed", "--engine", "dwrr", "--cost", "bytes", "--lease-ms", "5000"),
        *("--max-attempts", "3", "--backoff-ms", "10,20", "--dead-letter-topic", "dead"),
        *("--start", "latest", "--max-in-flight", "7"),
    )
    config = json.loads(made.stdout)["config"]
    expected = {
        "topics": {
            "orders": {"weight": 8, "filter": "even,odd"},
            "refunds": {"weight": 1, "filter": None},
        },
        "fairness": {"engine": "dwrr", "cost": "bytes"},
        "mode": "keyed",
        "start": "latest",
        "lease_ms": 5000,
        "max_in_flight": 7,
        "max_attempts": 3,
        "backoff_ms": [10, 20],
        "dead_letter_topic": "dead",
    }
    assert {name: config[name] for name in expected} == expected
    none = ("--dead-letter-topic", "")
    changed = json.loads(orders("group", "create", "g", *none, "--replace").stdout)
    assert changed["config"]["dead_letter_topic"] is None
    assert changed["config"]["topics"] == expected["topics"]
    (listed,) = lines(orders("group", "list").stdout)
    assert listed["mode"] == "keyed"


# O4: `group create g b` replaced the topics of an existing group, with status 0.
def test_a_group_with_other_settings_is_not_changed(orders: Run) -> None:
    made = orders("group", "create", "g", "orders=2", "--lease-ms", "5s")
    assert orders("group", "create", "g", "orders=2", "--lease-ms", "5000").exit_code == 0
    assert orders("group", "create", "g").exit_code == 0
    refused = {
        ("refunds",): "the topics orders=2, not refunds",
        ("orders",): "the topics orders=2, not orders",
        ("orders=2", "--filter", "orders=odd"): "not orders=2 (odd)",
        ("orders=2", "--lease-ms", "6s"): "--lease-ms 5000, not 6000",
        ("--mode", "keyed"): "--mode competing, not keyed",
        ("--engine", "dwrr"): "--engine sfq, not dwrr",
        ("--last-value",): "--last-value False, not True",
        ("--dead-letter-topic", "dead"): "--dead-letter-topic none, not dead",
    }
    for arguments, difference in refused.items():
        done = orders("group", "create", "g", *arguments)
        assert_refused(done, 5, difference)
        assert "add --replace to change it" in done.stderr
    described = json.loads(orders("group", "describe", "g").stdout)
    assert described["config"] == json.loads(made.stdout)["config"]
    replaced = orders("group", "create", "g", "refunds", "--replace")
    assert list(json.loads(replaced.stdout)["config"]["topics"]) == ["refunds"]
    replaced = orders("group", "create", "g", "--last-value", "--replace")
    assert json.loads(replaced.stdout)["config"]["last_value"] is True
    replaced = orders("group", "create", "g", "--all-values", "--replace")
    assert json.loads(replaced.stdout)["config"]["last_value"] is False


def test_a_group_that_only_stores_offsets_gets_leases(
    orders: Run, shared_broker: RunningBroker
) -> None:
    with shared_broker.client() as client:
        client.store_offsets("g", "orders", {0: 7})
    assert orders("group", "create", "g", "orders").exit_code == 0
    assert consumed_offsets(orders, "orders", "--group", "g") == [7, 8, 9]


def test_printed_messages_are_acknowledged(orders: Run) -> None:
    assert consumed_offsets(orders, "orders", "--group", "g", "--max", "3") == [0, 1, 2]
    assert consumed_offsets(orders, "orders", "--group", "g") == list(range(3, 10))
    assert consumed_offsets(orders, "orders", "--group", "g") == []
    described = json.loads(orders("group", "describe", "g").stdout)
    assert (described["lag_messages"], described["in_flight"]) == (0, 0)


def test_no_ack_leases_nothing(orders: Run) -> None:
    orders("group", "create", "g", "orders")
    assert consumed_offsets(orders, "orders", "--group", "g", "--no-ack") == list(range(10))
    assert consumed_offsets(orders, "orders", "--group", "g", "--no-ack", "--max", "2") == [0, 1]
    assert consumed_offsets(orders, "orders", "--group", "g", "--filter", "odd") == [1, 3, 5, 7, 9]
    assert consumed_offsets(orders, "orders", "--group", "g") == [0, 2, 4, 6, 8]


def test_json_lines_have_the_receipt(orders: Run) -> None:
    (found,) = lines(orders("consume", "orders", "--group", "g", "--max", "1", "--json").stdout)
    assert (found["offset"], found["tag"], found["attempt"]) == (0, "even", 1)
    assert found["redelivered"] is False
    assert found["receipt"]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (["--to", "earliest"], list(range(10))),
        (["--to", "latest"], []),
        (["--to", "-1h"], list(range(10))),
        (["--offset", "orders:0:7"], [7, 8, 9]),
    ],
)
def test_a_group_starts_again_from_anywhere(
    orders: Run, place: list[str], expected: list[int]
) -> None:
    consumed_offsets(orders, "orders", "--group", "g", "--max", "5")
    sought = orders("group", "seek", "g", *place)
    assert sought.exit_code == 0, sought.stderr
    first = expected[0] if expected else 10
    assert json.loads(sought.stdout)["offsets"]["orders"] == {"0": first}
    assert consumed_offsets(orders, "orders", "--group", "g") == expected


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["group", "seek", "g"], 2),
        (["group", "seek", "g", "--to", "7"], 2),
        (["group", "seek", "g", "--to", "latest", "--offset", "t:0:1"], 2),
        (["group", "seek", "g", "--offset", "t:x:1"], 2),
        (["group", "describe", "none"], 4),
        (["group", "offsets", "none", "orders"], 4),
        (["group", "seek", "none", "--to", "latest"], 4),
        (["group", "create", "g", "orders=x"], 2),
        (["group", "create", "g", "orders", "--filter", "refunds=a"], 2),
        (["group", "create", "g", "orders", "--filter", "orders"], 2),
        (["group", "create", "g", "orders", "--backoff-ms", "soon"], 2),
        (["group", "create", "new", "no/name"], 2),
        (["group", "redrive", "g"], 1),
        (["group", "redrive", "none"], 4),
        (["group", "delete", "g"], 2),
        (["group", "delete", "none", "--yes"], 4),
        (["consume", "nowhere", "--group", "g"], 4),
        (["consume", "orders"], 2),
        (["consume", "orders", "--group", "g", "--no-ack", "--follow"], 2),
        (["consume", "orders", "--group", "none", "--no-ack"], 4),
    ],
)
def test_failures_of_groups_are_one_line(refusing: Run, arguments: list[str], code: int) -> None:
    assert_refused(refusing(*arguments), code)


def test_a_group_is_deleted(orders: Run) -> None:
    orders("group", "create", "g", "orders")
    assert orders("group", "delete", "g", "--yes").exit_code == 0
    assert orders("group", "describe", "g").exit_code == 4


def test_watching_shows_it_again_and_again(orders: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    orders("group", "create", "g", "orders")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    watched = orders("group", "describe", "g", "--watch", "--interval", "0.5")
    assert watched.exit_code == 130
    assert [each["group"] for each in lines(watched.stdout)] == ["g"] * 3
    assert slept == [0.5] * 3


# -- groups that only store offsets


@pytest.fixture
def group(holdfast: Run, shared_broker: RunningBroker) -> Run:
    """Store offset 1 of 3 in queue 0 of a topic for group g."""
    holdfast("topic", "create", "t", "--queues", "1")
    holdfast("publish", "t", input=b"a\nb\nc\n")
    with shared_broker.client() as client:
        client.store_offsets("g", "t", {0: 1})
    return holdfast


def test_a_dry_run_changes_nothing(group: Run) -> None:
    shown = json.loads(group("group", "reset", "g", "t", "--to", "latest", "--dry-run").stdout)
    assert (shown["before"], shown["after"]) == ({"0": 1}, {"0": 3})
    assert json.loads(group("group", "offsets", "g", "t").stdout)["offsets"] == {"0": 1}


@pytest.mark.parametrize(("to", "after"), [("earliest", 0), ("latest", 3), ("-1h", 0), ("now", 3)])
def test_reset_moves_the_offsets(group: Run, to: str, after: int) -> None:
    moved = json.loads(group("group", "reset", "g", "t", "--to", to).stdout)
    assert (moved["before"], moved["after"]) == ({"0": 1}, {"0": after})
    assert json.loads(group("group", "offsets", "g", "t").stdout)["offsets"] == {"0": after}
