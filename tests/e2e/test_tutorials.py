"""Each tutorial runs as written, with a broker of its own, and prints what the page shows.

A `text` block behind an example is the whole output of that example. The tutorial for Spark is
tested by tests/spark/test_docs.py.
"""

import re
from pathlib import Path

import pytest

from holdfast.testing import RunningBroker
from tests.support.tree.page_session import ROOT, Session, shown_outputs

FOLDER = ROOT / "docs" / "tutorials"
TUTORIALS = sorted(path.stem for path in FOLDER.glob("[a-z]*.md"))


@pytest.mark.parametrize("name", [name for name in TUTORIALS if name != "spark"])
def test_a_tutorial_prints_what_it_shows(
    name: str, holdfast_broker: RunningBroker, tmp_path: Path
) -> None:
    page = f"docs/tutorials/{name}.md"
    session = Session(holdfast_broker, tmp_path)
    session.run(page)
    assert not session.failures, "\n\n".join(session.failures)
    shown = shown_outputs(page)
    assert len(shown) >= 2
    for block, output in shown.items():
        assert session.printed[block] == output, block.place


def test_every_tutorial_is_listed() -> None:
    listed = re.findall(r"^\| \[.+?\]\(([a-z-]+)\.md\)", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(listed) == TUTORIALS
    assert len(TUTORIALS) >= 5
