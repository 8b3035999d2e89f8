"""Tables between a page's markers."""

import pytest

from bench.report import profile_rows, replaced, table


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
