"""docs/behaviours.md and the tests that it names agree.

A test claims a row by naming its id in a comment: `# T12`. Ids: T members and clients, F fair
shares, L long polling, A credit, Q queues.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "behaviours.md"

#: The number of rows for each letter.
ROWS = {"T": 33, "F": 21, "L": 25, "A": 53, "Q": 28}
ALL = [f"{letter}{number}" for letter, last in ROWS.items() for number in range(1, last + 1)]
_ID = re.compile(r"\b[TFLAQ]\d{1,2}\b")
#: Only files that match are parsed.
_MAYBE_IN_A_COMMENT = re.compile(r"#.*\b[TFLAQ]\d")


def page() -> tuple[dict[str, str], list[str], list[str]]:
    """Return the test of each row that a test claims, the measured rows, and the rows not built."""
    held: dict[str, str] = {}
    measured: list[str] = []
    missing: list[str] = []
    section = ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        ids = _ID.findall(cells[0]) if line.startswith("| ") else []
        if section == "Not built":
            missing += ids
        elif section == "Measured":
            measured += ids
        elif ids:
            (row,) = ids
            assert row not in held, f"{row} stands twice on the page"
            assert len(cells) == 3, line
            held[row] = cells[2].strip("`")
    return held, measured, missing


def named_by_tests() -> dict[str, set[str]]:
    """Return, for each row, the tests whose comments name that row."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text("utf-8")
        if not _MAYBE_IN_A_COMMENT.search(source):
            continue
        comments = [
            (token.start[0], row)
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
            for row in _ID.findall(token.string)
            if row in ALL
        ]
        if not comments:
            continue
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name[:5] == "test_"
            ):
                for line, row in comments:
                    if node.lineno <= line <= (node.end_lineno or node.lineno):
                        found[row].add(f"{path.relative_to(ROOT)}::{node.name}")
    return dict(found)


def test_every_row_is_held_measured_or_listed_as_not_built() -> None:
    held, measured, missing = page()
    assert sorted([*held, *measured, *missing]) == sorted(ALL)


def test_the_test_of_a_row_names_it() -> None:
    held, _, _ = page()
    named = named_by_tests()
    assert {row: test for row, test in held.items() if test not in named.get(row, ())} == {}
    assert named.keys() <= held.keys(), "tests name rows that are not held on the page"
