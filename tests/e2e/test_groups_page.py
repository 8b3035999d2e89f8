"""The lines of docs/groups.md run unchanged, in the page's order, against one broker."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.testing import RunningBroker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "groups.md"


def lines_of_the_page() -> str:
    return "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL))


@pytest.mark.skipif(
    shutil.which("jq") is None or shutil.which("curl") is None, reason="needs curl and jq"
)
def test_the_whole_cycle_in_curl(broker: RunningBroker, tmp_path: Path) -> None:
    script = lines_of_the_page()
    assert script.count("curl") >= 20
    # The result of each line, before the page uses it; an error response fails the test.
    script = script.replace("curl ", "curl -sS --fail-with-body -w '\\n' ")
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env={"H": broker.url, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    answers = [json.loads(line) for line in ran.stdout.splitlines() if line]
    settled = [each["results"] for each in answers if "results" in each and "durable" not in each]
    assert settled == [[{"status": "done"}]] * 7
    # The redelivered message keeps its place.
    (came_back,) = [each for each in answers if isinstance(each, list)]
    assert came_back == [["two coffees", 2, True], ["the bill", 2, True]]
    back, again = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("back", "again")
    )
    assert [each["offset"] for each in again["messages"]] == [1, 2]
    assert [each["offset"] for each in back["messages"]] == [1, 2]
    (dead,) = [each for each in answers if "min_offset" in each]
    (letter,) = dead["messages"]
    assert letter["body"] == "a joke"
    assert letter["properties"] == {
        "holdfast-dead-topic": "meals",
        "holdfast-dead-queue": "0",
        "holdfast-dead-offset": "3",
        "holdfast-dead-reason": "rejected",
        "holdfast-dead-attempts": "1",
        "holdfast-dead-group": "kitchen",
    }
    # After the seek all messages arrive again, and the reply has no receipts.
    last = [each for each in answers if "active" in each][-1]
    assert [each["body"] for each in last["messages"]] == [
        "a tea", "two coffees", "the bill", "a joke",
    ]  # fmt: skip
    assert {each["receipt"] for each in last["messages"]} == {None}
