"""Tables between a page's markers."""

import pytest

from bench.report import PAGES, missed_beside_peers, missed_of_ours, profile_rows, replaced, table
from bench.rows import TIMES, Row


def test_what_stands_between_the_markers_is_replaced_and_nothing_else() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    once = replaced(page, "a", ["new", "lines"])
    assert once == "before\n<!-- a -->\nnew\nlines\n<!-- end of a -->\nafter\n"
    assert replaced(once, "a", ["new", "lines"]) == once


@pytest.mark.parametrize("page", ["", "<!-- a -->\n", "<!-- end of a -->\n<!-- a -->\n"])
def test_a_page_without_the_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="no place for a"):
        replaced(page, "a", [])


def test_a_table_has_a_rule_below_its_head() -> None:
    assert table(("x", "y"), [("1", "2")]) == ["| x | y |", "|---|---|", "| 1 | 2 |"]


def test_a_profile_shows_both_sides_and_sums_up_what_is_small() -> None:
    before = {
        "all": {"all": 100.0, "the kernel": 1.0},
        "thread": {"thread MainThread": 100.0},
        "area": {"http_api/app.py": 90.0, "aiohttp": 7.0, "numpy": 2.0, "yarl": 1.0},
    }
    after = {
        "all": {"all": 20.0, "the kernel": 1.0},
        "thread": {"thread MainThread": 20.0},
        "area": {"http_api/app.py": 19.0, "numpy": 1.0},
    }
    assert list(profile_rows(before, after)) == [
        ("all", "100", "20"),
        ("the kernel", "1.00", "1.00"),
        ("thread MainThread", "100", "20"),
        ("`http_api/app.py`", "90", "19"),
        ("aiohttp", "7.00", "0.00"),
        ("all else", "3.00", "1.00"),
    ]


def test_a_profile_that_was_taken_once_leaves_the_other_column_empty() -> None:
    only = {"all": {"all": 2.0}, "thread": {}, "area": {"aiohttp": 2.0}}
    assert list(profile_rows(only, {})) == [
        ("all", "2.00", ""),
        ("aiohttp", "2.00", ""),
        ("all else", "0.00", ""),
    ]


def test_what_misses_a_bar_is_listed() -> None:
    rows = [
        Row("W10", "beside the floor", "written", TIMES, [2.5], at_most=2),
        Row("W7", "read", "written", TIMES, [0.9], at_least=0.8),
        Row("W6", "idle", "fsync", "%", [0.1]),
    ]
    assert list(missed_of_ours(rows)) == [("W10", "beside the floor", "2.50 x", "<= 2 MISSED")]


def test_what_misses_a_bar_beside_a_peer_is_listed() -> None:
    def row(system: str, ratio: float, bar: float | None) -> dict[str, object]:
        return {
            "label": "W2",
            "workload": "batches-1k",
            "case": "publish",
            "system": system,
            "unit": "messages/s",
            "median": 10.0,
            "values": [10.0],
            "body_bytes": 1024,
            "server_us": [1.0],
            "client_us": [1.0],
            "ours_beside": ratio,
            "bar": bar,
        }

    told = {
        "rows": [row("kafka", 0.9, 1.2), row("redis-streams", 5.0, 4.0), row("nats", 0.1, None)]
    }
    assert list(missed_beside_peers(told)) == [
        ("W2", "batches-1k, publish, beside kafka", "0.90 x", ">= 1.2 x MISSED")
    ]


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("ours", "ours"),
        ("peers", "peers"),
        ("peers", "peers' settings"),
        ("bars", "missed"),
        ("paths", "profiles"),
    ],
)
def test_every_table_has_its_place(page: str, name: str) -> None:
    text = (PAGES / f"{page}.md").read_text()
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    lines = text.partition(start)[2].partition(end)[0].splitlines()
    assert replaced(text, name, lines) == text


# E: performance.md was a third of all the words of the pages.
def test_the_page_that_readers_open_first_is_short() -> None:
    assert len((PAGES.parent / "performance.md").read_text().split()) < 1200
