"""Whole screens of the command line: on terminals of 80 and 200 columns, and through a pipe.

One broker answers. Values that vary between runs (times, rates, ids) are replaced before the
command prints them, so the layout is that of the compared values.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.cli.commands.broker_status import (
    BrokerFigures,
    BrokerStatus,
    GroupStatus,
    TopicStatus,
)
from holdfast.cli.commands.status import Snapshot, show_status, show_top
from holdfast.cli.output import figures
from holdfast.client import Client
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.cli.screen import SCREENS, Terminal, compare, shown_by

NOW_MS = 1_795_255_200_000

#: Fields of the broker's replies that vary between runs, and their replacements.
FIXED: dict[str, Any] = {
    "created_timestamp_ms": NOW_MS - 86_400_000,
    "newest_timestamp_ms": NOW_MS - 190_000,
    "lag_seconds": 3725.5,
    "rate": 12.34,
    "etag": '"5"',
}


def fixed(value: Any) -> Any:
    """Return a JSON value with the varying fields replaced."""
    if isinstance(value, list | tuple):
        return [fixed(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: FIXED[name] if name in FIXED and item not in (None, 0) else fixed(item)
        for name, item in value.items()
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with three topics, a group with leases, and a group that only stores offsets."""
    folder = tmp_path_factory.mktemp("screens")
    arguments = [*TEST_ARGUMENTS, "--groups-mirror-interval-ms", "100"]
    with RunningBroker(folder / "data", arguments) as running, running.client() as client:
        client.create_topic("orders", queues=2)
        client.create_topic("a-topic-with-a-long-name.of-the-kind-that-programs-make", queues=1)
        client.create_topic("scratch", queues=1)
        for number in range(5):
            client.publish("orders", b"order %d" % number, key="table-7", tag="paid", queue=0)
        client.publish("orders", b"\x1b[2Jhostile \xff", properties={"seats": "4"}, queue=1)
        client.create_group(
            "billing",
            {"orders": {"weight": 3, "filter": None},
             "a-topic-with-a-long-name.of-the-kind-that-programs-make": {}},
            dead_letter_topic="billing.dead",
        )  # fmt: skip
        client.receive("billing", "worker-1", 2)
        client.store_offsets("reports", "orders", {0: 2})
        yield running


@pytest.fixture
def screen(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> Callable[[tuple[str, ...], int | None], str]:
    """Return a function that returns a command's output at a width or through a pipe (None)."""
    for name in ("describe_topic", "topics", "describe_group", "groups"):
        real = getattr(Client, name)
        monkeypatch.setattr(
            Client, name, lambda self, *a, _real=real, **k: fixed(_real(self, *a, **k))
        )
    monkeypatch.setattr(figures, "now_ms", lambda: NOW_MS)
    monkeypatch.setattr("holdfast.cli.commands.status.read_status", lambda client: STATUS)
    monkeypatch.setattr(Client, "overview", lambda self: OVERVIEW)

    def run(arguments: tuple[str, ...], width: int | None) -> str:
        return shown_by(arguments, width, monkeypatch, HOLDFAST_URL=broker.url)

    return run


STATUS = BrokerStatus(
    url="http://127.0.0.1:8711",
    phase="ready",
    read_at=0.0,
    degraded=[],
    read_only=None,
    alarms={},
    figures=BrokerFigures(
        version="0.1.0",
        uptime_seconds=12_000.0,
        resident_bytes=120 << 20,
        connections=12,
        held_pulls=3,
        held_receives=1,
        in_flight=2,
        disk_free_bytes=80 << 30,
        log_bytes=1 << 30,
        log_segments=1,
        topic_count=12,
        group_count=3,
        topics=[
            TopicStatus(f"topic-{n}", 1000 << n, 1 << (2 * n + 10), 90.0 * n, 100 * n, 50 * n)
            for n in range(11, -1, -1)
        ],
        groups=[
            GroupStatus("billing", "topic-1", 12_502, 3725.5),
            GroupStatus("reports", "topic-1", 1, None),
            GroupStatus("done", "topic-2", 0, 0.0),
        ],
    ),
)

OVERVIEW: dict[str, Any] = {
    "disk": {
        "free_bytes": 80 << 30,
        "total_bytes": 100 << 30,
        "min_free_bytes": 1 << 30,
        "log_bytes": 1 << 30,
        "bytes_per_day": 2 << 30,
    },
    "groups": {
        "count": 2,
        "in_flight": 1200,
        "waiting": 1,
        "dead_letters": 4,
        "letters_not_kept": 1,
        "expired_leases": 5,
    },
    "messages_in_total": 5_000,
    "bytes_in_total": 5 << 20,
    "messages_out_total": 9_000,
    "bytes_out_total": 9 << 20,
    "held_pulls": 3,
    "connections": 12,
    "amqp_connections": 2,
    "event_loop_lag_seconds": 0.0021,
    "sync_p99_seconds": 0.0125,
}

#: The screens, by name. Commands that write come last, and no later screen shows their effect.
COMMANDS: dict[str, tuple[str, ...]] = {
    "bare": (),
    "topic": ("topic",),
    "group": ("group",),
    "status": ("status",),
    "topic-list": ("topic", "list"),
    "topic-list-names": ("topic", "list", "--names"),
    "topic-describe": ("topic", "describe", "orders"),
    "group-list": ("group", "list"),
    "group-describe": ("group", "describe", "billing"),
    "group-describe-wide": ("group", "describe", "billing", "--wide"),
    "group-describe-offsets": ("group", "describe", "reports"),
    "group-offsets": ("group", "offsets", "reports", "orders"),
    "group-reset": ("group", "reset", "reports", "orders", "--to", "latest", "--dry-run"),
    "pull": ("pull", "orders", "--queue", "1"),
    "pull-keyed": ("pull", "orders", "--queue", "0", "--max", "2"),
    "message-search": ("message", "search", "orders", "table-7", "--limit", "1"),
    "consume-look": ("consume", "orders", "--group", "billing", "--no-ack", "--max", "1"),
    "no-topic": ("topic", "describe", "none"),
    "conflict": ("topic", "create", "orders", "--queues", "3"),
    "usage": ("pull",),
    "publish": ("publish", "scratch", "--body", "one more"),
    "group-create": ("group", "create", "kitchen", "orders", "--mode", "keyed"),
    "group-seek": ("group", "seek", "kitchen", "--offset", "orders:0:3"),
}
#: Screens whose lines may exceed 80 columns: JSON, and errors, which the terminal wraps.
LONG = {"group-describe-wide", "no-topic", "conflict", "publish"}


# O1, O2, O3: tables could not be read at 80 columns, and no test compared a screen.
@pytest.mark.parametrize("width", [80, 200, None], ids=["80", "200", "pipe"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_is_unchanged(
    name: str, width: int | None, screen: Callable[[tuple[str, ...], int | None], str]
) -> None:
    shown = screen(COMMANDS[name], width)
    if width is not None and name not in LONG:
        assert max(map(len, shown.splitlines())) <= width
    compare(f"{name}.{width or 'pipe'}", shown)


def later(seconds: float, **figures: Any) -> BrokerStatus:
    """Return the status some seconds later."""
    assert STATUS.figures is not None
    topics = [
        replace(each, messages_in=each.messages_in + n * 20, bytes_in=each.bytes_in + n * 4000)
        for n, each in enumerate(STATUS.figures.topics)
    ]
    return replace(
        STATUS,
        read_at=STATUS.read_at + seconds,
        figures=replace(STATUS.figures, topics=topics, **figures),
    )


TROUBLED = replace(
    later(2.0, groups_at_limit=["billing"], certificate_expires_seconds=3 * 86_400.0),
    phase="draining",
    read_only="a sync failed",
    alarms={"disk": "the disk is full"},
    degraded=[{"reason": "bad-magic", "detail": "orders: a bad block"}],
)

BUSIER = {**OVERVIEW, "messages_in_total": 7_400, "bytes_out_total": 29 << 20}

VIEWS: dict[str, Callable[[], None]] = {
    "top": lambda: show_top(Snapshot(later(2.0), BUSIER), Snapshot(STATUS, OVERVIEW)),
    "top-first": lambda: show_top(Snapshot(STATUS, OVERVIEW), None),
    "top-not-well": lambda: show_top(Snapshot(TROUBLED, None), Snapshot(STATUS, OVERVIEW)),
    "top-without-figures": lambda: show_top(Snapshot(replace(STATUS, figures=None), None), None),
    "status-not-well": lambda: show_status(TROUBLED),
    "status-without-figures": lambda: show_status(replace(STATUS, figures=None)),
}


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_unchanged(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal(is_terminal=True)
    with monkeypatch.context() as here:
        here.setattr(sys, "stdout", out)
        here.setenv("COLUMNS", str(width))
        here.setenv("LINES", "40")
        here.setenv("TERM", "dumb")
        VIEWS[name]()
    shown = out.text()
    assert max(map(len, shown.splitlines())) <= width
    compare(f"{name}.{width}", shown)


def test_a_status_that_is_not_well_is_code_1(
    screen: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert screen(("status",), None).endswith("--- code 0\n")
    monkeypatch.setattr("holdfast.cli.commands.status.read_status", lambda client: TROUBLED)
    shown = screen(("status",), None)
    assert shown.endswith("--- code 1\n")
    assert json.loads(shown.splitlines()[0])["is_well"] is False


def test_top_is_one_snapshot_without_a_terminal(screen: Callable[..., str]) -> None:
    for arguments in (("top",), ("top", "--once")):
        (line, code) = screen(arguments, None).splitlines()
        assert json.loads(line)["figures"]["topic_count"] == 12
        assert json.loads(line)["overview"] == OVERVIEW
        assert code == "--- code 0"


def test_top_once_is_one_screen_with_the_rates_of_an_interval(
    screen: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = iter([STATUS, later(2.0)])
    overviews = iter([OVERVIEW, BUSIER])
    waits: list[float] = []
    monkeypatch.setattr("holdfast.cli.commands.status.read_status", lambda client: next(read))
    monkeypatch.setattr(Client, "overview", lambda self: next(overviews))
    monkeypatch.setattr("time.sleep", waits.append)
    shown = screen(("top", "--once", "--interval", "500ms"), 80)
    assert waits == [0.5]
    assert shown == (SCREENS / "top.80.txt").read_text("utf-8") + "--- code 0\n"


def test_top_shows_a_screen_per_interval_until_it_is_interrupted(
    screen: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", wait)
    shown = screen(("top", "--interval", "3s"), 80)
    assert waits == [3.0, 3.0, 3.0]
    assert shown.count("all is well") == 3
    assert shown.count("since the start: 5,000 messages in") == 3  # the fake clock stands still
    assert shown.endswith("--- code 130\n")


def test_the_configuration_shows_sizes_with_their_units(screen: Callable[..., str]) -> None:
    shown = screen(("config", "show"), 80)
    assert re.search(r"commitlog\.segment_bytes +1 GiB +default", shown)
    assert re.search(r"topics\.auto_create_topics +true +default", shown)
    assert '"value":1073741824' in screen(("config", "show"), None)


#: Commands that print; those that can print more than a pipe holds do so.
PRINTING: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("config", "reference"),
    ("status",),
    ("top",),
    ("topic", "list"),
    ("group", "describe", "billing", "--watch", "--interval", "100ms"),
    ("pull", "orders", "--follow"),
    ("consume", "orders", "--group", "pipe", "--no-ack"),
    ("publish", "scratch", "--body", "x"),
)


def test_a_reader_that_goes_away_ends_every_printing_command(broker: RunningBroker) -> None:
    """Each command prints no error and exits with 141, the code for a closed pipe."""
    with broker.client() as client:
        client.create_group("pipe", ["orders"])
    running = []
    for arguments in PRINTING:
        reading, writing = os.pipe()
        os.close(reading)
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "holdfast", *arguments],
                env={**os.environ, "HOLDFAST_URL": broker.url},
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.PIPE,
            )
        )
        os.close(writing)
    for arguments, process in zip(PRINTING, running, strict=True):
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (141, b""), arguments
