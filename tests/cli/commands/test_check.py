"""holdfast check and holdfast dump, on the directory of a killed broker."""

import shutil
from pathlib import Path

import pytest

from holdfast.testing import RunningBroker
from tests.cli.conftest import Run, assert_refused, commands_against, flip, lines


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that stored three messages and was killed. Tests copy it."""
    folder = tmp_path_factory.mktemp("killed") / "data"
    with RunningBroker(folder, ("--commitlog-segment-bytes", "1MiB")) as broker:
        holdfast = commands_against(broker.url)
        assert holdfast("publish", "t", "--queue", "0", input=b"a\nb\nc\n").exit_code == 0
        broker.kill()
    return folder


@pytest.fixture
def left_behind(killed: Path, tmp_path: Path) -> Path:
    """Return a copy of the killed broker's directory, for one test."""
    return shutil.copytree(killed, tmp_path / "data")


def segment_of(data_dir: Path) -> Path:
    return min((data_dir / "commitlog").iterdir())


def test_a_sound_directory_is_code_0(holdfast: Run, left_behind: Path) -> None:
    done = holdfast("check", str(left_behind))
    assert done.exit_code == 0, done.stdout
    *findings, summary = lines(done.stdout)
    assert all(finding["kind"] == "note" for finding in findings)
    assert (summary["kind"], summary["is_sound"]) == ("summary", True)
    assert summary["messages"] >= 3


def test_damage_is_code_1_and_changes_nothing(
    holdfast: Run, holdfast_broker: RunningBroker
) -> None:
    data_dir = holdfast_broker.data_dir
    holdfast("publish", "t", "--queue", "0", input=b"a\nb\nc\n")
    # A later block proves that the first one was synced, so it cannot be a torn tail.
    holdfast("publish", "t", "--queue", "0", input=b"d\n")
    holdfast("publish", "t", "--queue", "0", input=b"e\n")
    holdfast_broker.kill()
    flip(segment_of(data_dir), b"abc")
    before = segment_of(data_dir).read_bytes()
    done = holdfast("check", str(data_dir))
    assert done.exit_code == 1
    *findings, summary = lines(done.stdout)
    assert any(finding["kind"] == "damage" for finding in findings)
    assert summary["is_sound"] is False
    assert segment_of(data_dir).read_bytes() == before


def test_a_directory_in_use_is_refused(holdfast: Run, shared_broker: RunningBroker) -> None:
    done = holdfast("check", str(shared_broker.data_dir))
    assert done.exit_code == 6
    assert "is in use by another broker" in done.stderr
    assert "--live" in done.stderr
    assert "--data-dir" not in done.stderr


def test_beside_a_running_broker_the_log_is_checked(
    holdfast: Run, holdfast_broker: RunningBroker
) -> None:
    assert holdfast("publish", "t", "--queue", "0", input=b"a\nb\nc\n").exit_code == 0
    done = holdfast("check", str(holdfast_broker.data_dir), "--live")
    assert done.exit_code == 0, done.stdout
    *_, summary = lines(done.stdout)
    assert (summary["scope"], summary["topics"]) == ("log", 1)
    assert summary["messages"] >= 3
    holdfast("publish", "t", "--queue", "0", input=b"d\n")
    flip(segment_of(holdfast_broker.data_dir), b"abc")
    done = holdfast("check", str(holdfast_broker.data_dir), "--live")
    assert done.exit_code == 1
    found = next(row for row in lines(done.stdout) if row.get("finding") == "payload-crc")
    assert found["lost"] == [
        {"topic": "t", "topic_id": 1, "queue": 0, "start_offset": 0, "end_offset": 3}
    ]


def test_a_directory_that_cannot_be_checked_has_another_code_than_damage(
    holdfast: Run, left_behind: Path
) -> None:
    shutil.rmtree(left_behind / "commitlog")
    (left_behind / "commitlog").write_text("no folder")
    assert_refused(holdfast("check", str(left_behind)), 6, "the directory cannot be checked")


def test_another_folder_is_refused(holdfast: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = holdfast("check", str(tmp_path / "mine"))
    assert_refused(done, 6, "use the folder that is the broker's --data-dir")
    assert list((tmp_path / "mine").iterdir()) == []


def test_dump_prints_blocks_and_messages(holdfast: Run, left_behind: Path) -> None:
    done = holdfast("dump", str(segment_of(left_behind)), "--messages")
    assert done.exit_code == 0, done.stderr
    rows = lines(done.stdout)
    assert rows[-1]["kind"] == "unwritten"
    # The records of the broker's own topic precede them.
    messages = [row for row in rows if row["kind"] == "message"]
    assert [message.get("body") for message in messages[-3:]] == ["a", "b", "c"]


def test_dump_says_what_is_damaged(holdfast: Run, left_behind: Path) -> None:
    flip(segment_of(left_behind), b"abc")
    done = holdfast("dump", str(segment_of(left_behind)))
    assert done.exit_code == 1
    assert any(row["kind"] == "damage" for row in lines(done.stdout))
    assert "1 damaged" in done.stderr


def test_dump_of_something_else_is_one_line(holdfast: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    assert_refused(holdfast("dump", str(tmp_path / "x")), 1)
