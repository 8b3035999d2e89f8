"""What pages repeat from each other is the same everywhere: measured tables, and lists of pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: The measured table of docs/performance.md, found by its header row.
HEADER = "| | durability | Holdfast | Redis Streams | RabbitMQ quorum | Kafka |"


def table(page: Path) -> list[str]:
    """Return the rows of the measured table of a page, without the header."""
    _, found, rest = page.read_text("utf-8").partition(f"{HEADER}\n")
    assert found, f"{page.name} has no table"
    return rest.partition("\n\n")[0].splitlines()


def test_the_table_for_choosing_is_the_measured_one() -> None:
    assert table(DOCS / "which-broker.md") == table(DOCS / "performance.md")


def test_the_table_of_the_readme_has_measured_rows() -> None:
    measured = table(DOCS / "performance.md")
    shown = table(ROOT / "README.md")
    # A row that refers to the row above it names what it is.
    assert len(shown) >= 5
    assert [row for row in shown if row not in measured] == []


def test_the_readme_begins_with_the_demo_and_the_tests() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert re.findall(r"^    (\w+ \w+)", text, re.MULTILINE)[:2] == ["make demo", "make test"]
    assert len(text.splitlines()) <= 60


def linked(page: Path) -> set[Path]:
    """Return the files of the repository that a page links to."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    places = re.findall(r"\]\(([^()\s#:]+)(?:#[^()\s]*)?\)", text)
    return {(page.parent / place).resolve() for place in places}


def test_the_index_lists_every_page() -> None:
    pages = {path for path in DOCS.glob("*.md") if path.name != "index.md"}
    assert sorted(path.name for path in pages - linked(DOCS / "index.md")) == []


PAGES = [
    *ROOT.glob("*.md"),
    *(path for path in DOCS.rglob("*.md")),
    *(ROOT / "examples").glob("*.md"),
]


def test_links_lead_to_files() -> None:
    broken = {
        str(page.relative_to(ROOT)): missing
        for page in PAGES
        if (missing := sorted(str(path) for path in linked(page) if not path.exists()))
    }
    assert broken == {}
