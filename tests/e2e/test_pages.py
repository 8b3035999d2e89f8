"""Every command and all Python of README.md, of docs/index.md and of the pages that it lists, in
one session in this order, except SKIPPED and the examples with Java in tests/spark/test_docs.py."""

import os
import re
import shutil
from pathlib import Path

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.tree.page_session import ROOT, SKIPPED, Session

README = "README.md"
INDEX = "docs/index.md"

#: Pages with tests of their own (tests/e2e/test_tutorials.py and tests/spark/test_docs.py), and a
#: comparison with other brokers, which it installs.
SKIPPED_PAGES = {"docs/spark.md", "docs/first-minutes.md"}
SKIPPED_FOLDER = "docs/tutorials/"


def pages() -> list[str]:
    """Return README, the index and the pages that it lists, in its order, without the tutorials."""
    listed = re.findall(r"^\| \[.+?\]\((\S+?\.md)\)", (ROOT / INDEX).read_text(), re.MULTILINE)
    found = [os.path.normpath(f"docs/{each}") for each in listed]
    return [README, INDEX, *(page for page in found if not page.startswith(SKIPPED_FOLDER))]


def _log_line(number: int) -> str:
    status = (200, 200, 404, 500)[number % 4]
    at = "22/Nov/2026:20:44:47 +0000"
    return f'10.0.{number % 3}.{number % 97} - - [{at}] "GET /{number} HTTP/1.1" {status} 9\n'


# E: pages contradicted each other on a topic's queues, a group's kind, and what was deleted before.
@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("jq") is None or shutil.which("curl") is None, reason="needs curl and jq"
)
def test_all_pages_run_in_one_session(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    with RunningBroker(stopped, TEST_ARGUMENTS) as broker, broker.client() as client:
        client.publish("orders", b"x")
    (tmp_path / "access.log").write_text("".join(map(_log_line, range(10_000))))
    (tmp_path / "photo.jpg").write_bytes(bytes(range(256)))
    (tmp_path / "mnt").mkdir()
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as broker:
        session = Session(broker, tmp_path)
        for page in pages():
            if page not in SKIPPED_PAGES:
                session.run(page)
    assert not session.failures, "\n\n".join(session.failures)
    assert session.skipped == SKIPPED.keys(), "a row of SKIPPED fits nothing"
    assert session.ran > 100
