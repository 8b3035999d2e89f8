"""The overview of a broker as text: rates, absent values, a restart between two snapshots."""

from typing import Any

from holdfast.cli.output.overview_view import overview_lines

DISK = {
    "free_bytes": 30 << 30,
    "total_bytes": 100 << 30,
    "min_free_bytes": 10 << 30,
    "log_bytes": 5 << 30,
    "bytes_per_day": 0,
}
GROUPS = {
    "count": 1,
    "in_flight": 2,
    "waiting": 0,
    "dead_letters": 3,
    "letters_not_kept": 0,
    "expired_leases": 4,
}


def overview(**changed: Any) -> dict[str, Any]:
    return {
        "disk": DISK,
        "groups": GROUPS,
        "messages_in_total": 1_000,
        "bytes_in_total": 1 << 20,
        "messages_out_total": 4_000,
        "bytes_out_total": 4 << 20,
        "held_pulls": 1,
        "connections": 2,
        "amqp_connections": 0,
        "event_loop_lag_seconds": 0.25,
        "sync_p99_seconds": None,
        **changed,
    }


def test_without_an_earlier_overview_the_totals_are_shown() -> None:
    assert overview_lines(overview(), None, 0.0) == [
        "since the start: 1,000 messages in (1.0 MiB), 4,000 out (4.0 MiB)",
        "held: 1 pull and 0 receives; connections: 2 of HTTP, 0 of AMQP",
        "1 group with leases: 2 in flight; so far 4 expired, 3 dead",
        "event loop late by 250ms; p99 of syncs unknown",
        "disk: 30.0 GiB of 100 GiB free; log 5.0 GiB",
    ]


def test_rates_are_per_second() -> None:
    now = overview(messages_in_total=1_500, bytes_in_total=2 << 20, messages_out_total=4_010)
    line = overview_lines(now, overview(), 4.0)[0]
    assert line == "in: 125 messages/s, 256 KiB/s; out: 2 messages/s, 0 B/s"


def test_rates_are_zero_after_a_restart_of_the_broker() -> None:
    line = overview_lines(overview(), overview(messages_in_total=9_000), 2.0)[0]
    assert line.startswith("in: 0 messages/s, ")


def test_letters_that_were_dropped_are_shown() -> None:
    dropped = overview(groups={**GROUPS, "letters_not_kept": 7})
    assert overview_lines(dropped, None, 0.0)[2].endswith("3 dead, 7 dropped")


def test_a_disk_that_fills_has_a_time() -> None:
    filling = overview(disk={**DISK, "bytes_per_day": 8 << 30})
    assert overview_lines(filling, None, 0.0)[4].endswith(", +8.0 GiB/day: alarm in 2d12h")


def test_a_disk_that_fills_in_years_has_no_number_of_days() -> None:
    slow = overview(disk={**DISK, "bytes_per_day": 1 << 10})
    assert overview_lines(slow, None, 0.0)[4].endswith(", +1.0 KiB/day: alarm in more than a year")


def test_a_disk_below_its_minimum_has_no_time_left() -> None:
    full = overview(disk={**DISK, "free_bytes": 1 << 30, "bytes_per_day": 8 << 30})
    assert overview_lines(full, None, 0.0)[4].endswith("alarm in 0ms")
