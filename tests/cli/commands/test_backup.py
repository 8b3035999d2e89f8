"""holdfast backup, restore and repair, as seen from a shell."""

import shutil
from pathlib import Path

import pytest

from holdfast.testing import RunningBroker
from tests.cli.conftest import Run, flip, lines
from tests.support.servers.plain_server import PlainHandler, served


def _publish(holdfast: Run, *bodies: str) -> None:
    text = "".join(f"{body}\n" for body in bodies).encode()
    assert holdfast("publish", "t", "--queue", "0", input=text).exit_code == 0


@pytest.fixture
def backed_up(holdfast: Run, holdfast_broker: RunningBroker, tmp_path: Path) -> Path:
    """Return a backup of a running broker with three messages."""
    _publish(holdfast, "a", "b", "c")
    target = tmp_path / "backup"
    done = holdfast("backup", "--data-dir", str(holdfast_broker.data_dir), str(target))
    assert done.exit_code == 0, done.stderr
    (summary,) = lines(done.stdout)
    assert summary["damage"] == []
    assert summary["files"] == 2
    assert 0 < summary["copied_bytes"] < 1_000_000
    return target


def test_a_running_brokers_backup_is_restored_and_served(
    holdfast: Run, holdfast_broker: RunningBroker, backed_up: Path, tmp_path: Path
) -> None:
    _publish(holdfast, "later")
    restored = tmp_path / "restored"
    done = holdfast("restore", str(backed_up), "--data-dir", str(restored))
    assert done.exit_code == 0, done.stderr
    (summary,) = lines(done.stdout)
    assert summary["is_sound"] is True
    assert summary["topics"] == 1
    holdfast_broker.stop()
    shutil.rmtree(holdfast_broker.data_dir)
    shutil.move(restored, holdfast_broker.data_dir)
    holdfast_broker.start()
    found = lines(holdfast("pull", "t", "--queue", "0", "--from", "earliest").stdout)
    assert [(row["offset"], row["body"]) for row in found] == [(0, "a"), (1, "b"), (2, "c")]


def test_offsets_that_consumers_may_have_seen_are_not_given_again(
    holdfast: Run, holdfast_broker: RunningBroker, backed_up: Path, tmp_path: Path
) -> None:
    _publish(holdfast, "seen at offset 3, and lost")
    restored = tmp_path / "restored"
    arguments = ("--data-dir", str(restored), "--reserve-offsets", "1000")
    done = holdfast("restore", str(backed_up), *arguments)
    assert done.exit_code == 0, done.stderr
    assert holdfast("check", str(restored)).exit_code == 0
    holdfast_broker.stop()
    shutil.rmtree(holdfast_broker.data_dir)
    shutil.move(restored, holdfast_broker.data_dir)
    holdfast_broker.start()
    _publish(holdfast, "new")
    # A consumer that had reached offset 4 continues and misses no new message.
    for start in ("0", "4"):
        found = lines(holdfast("pull", "t", "--queue", "0", "--from", start).stdout)
        assert (found[-1]["offset"], found[-1]["body"]) == (1003, "new")
    holdfast_broker.stop()
    assert holdfast("check", str(holdfast_broker.data_dir)).exit_code == 0


def test_a_backup_is_brought_up_to_date(
    holdfast: Run, holdfast_broker: RunningBroker, backed_up: Path
) -> None:
    _publish(holdfast, "later")
    source = ("--data-dir", str(holdfast_broker.data_dir))
    refused = holdfast("backup", *source, str(backed_up))
    assert refused.exit_code == 6
    assert "--incremental" in refused.stderr
    assert holdfast("backup", *source, str(backed_up), "--incremental").exit_code == 0
    checked = holdfast("check", str(backed_up))
    assert checked.exit_code == 0, checked.stdout
    summary = lines(checked.stdout)[-1]
    assert (summary["scope"], summary["is_sound"]) == ("backup", True)


def test_a_damaged_backup_is_found_and_refused(
    holdfast: Run, shared_broker: RunningBroker, tmp_path: Path
) -> None:
    _publish(holdfast, "to be damaged")
    backed_up = tmp_path / "backup"
    done = holdfast("backup", "--data-dir", str(shared_broker.data_dir), str(backed_up))
    assert done.exit_code == 0, done.stderr
    tail = max((backed_up / "commitlog").iterdir())
    flip(tail, b"to be damaged")
    checked = holdfast("check", str(backed_up))
    assert checked.exit_code == 1
    assert any(row.get("finding") == "backup-file" for row in lines(checked.stdout))
    done = holdfast("restore", str(backed_up), "--data-dir", str(tmp_path / "restored"))
    assert done.exit_code == 1
    assert "has changed" in done.stderr
    assert not (tmp_path / "restored").exists()


def test_nothing_is_restored_over_a_data_directory(
    holdfast: Run, shared_broker: RunningBroker, tmp_path: Path
) -> None:
    data_dir = str(shared_broker.data_dir)
    target = str(tmp_path / "backup")
    assert holdfast("backup", "--data-dir", data_dir, target).exit_code == 0
    done = holdfast("restore", target, "--data-dir", data_dir)
    assert done.exit_code == 6
    assert "is not empty" in done.stderr


def test_a_backup_in_a_store_is_brought_up_to_date_and_restored(
    holdfast: Run, holdfast_broker: RunningBroker, tmp_path: Path
) -> None:
    pytest.importorskip("obstore")
    url = f"file://{tmp_path}/store"
    source = ("--data-dir", str(holdfast_broker.data_dir))
    for number, body in enumerate(("a", "b", "c"), start=1):
        _publish(holdfast, body)
        done = holdfast("backup", *source, url, "--keep", "2")
        assert done.exit_code == 0, done.stderr
        (summary,) = lines(done.stdout)
        assert (summary["backup"], summary["files"], summary["notes"]) == (number, 2, [])
    restored = tmp_path / "restored"
    gone = holdfast("restore", url, "--data-dir", str(restored), "--backup", "1")
    assert gone.exit_code == 1
    assert "it has no backup 1; it has 2, 3" in gone.stderr
    for options, messages in ((("--backup", "2"), 2), ((), 3)):
        done = holdfast("restore", url, "--data-dir", str(restored), *options)
        assert done.exit_code == 0, done.stderr
        (summary,) = lines(done.stdout)
        assert (summary["is_sound"], summary["messages"]) == (True, messages)
        assert holdfast("check", str(restored)).exit_code == 0
        again = holdfast("restore", url, "--data-dir", str(restored))
        assert again.exit_code == 6
        assert "is not empty" in again.stderr
        shutil.rmtree(restored)
    (tail, *_) = sorted((tmp_path / "store" / "commitlog").iterdir(), reverse=True)
    tail.unlink()
    done = holdfast("restore", url, "--data-dir", str(restored))
    assert done.exit_code == 1
    assert f"commitlog/{tail.name} is missing" in done.stderr
    assert not restored.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("backup", "ftp://host/x"), 2, "the scheme 'ftp' is not known"),
        (("backup", "s3:///x"), 2, "it names no bucket"),
        (("backup", "folder", "--keep", "2"), 2, "--keep needs a URL"),
        (("backup", "file://DATA/store"), 6, "inside the data directory"),
        (("restore", "file://DATA/none"), 1, "there is no such folder"),
        (("restore", "file://DATA"), 1, "there is no object manifests/"),
        (("restore", "DATA", "--backup", "2"), 2, "--backup needs a URL"),
    ],
)
def test_a_wrong_store_is_refused_in_one_line(
    holdfast: Run,
    shared_broker: RunningBroker,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    pytest.importorskip("obstore")
    data_dir = str(shared_broker.data_dir)
    command, *rest = (each.replace("DATA", data_dir) for each in arguments)
    folder = data_dir if command == "backup" else str(tmp_path / "new")
    done = holdfast(command, "--data-dir", folder, *rest)
    assert done.exit_code == code
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("status", "problem", "code"),
    [(403, "AccessDenied", 6), (401, "Unauthorized", 6), (404, "NoSuchBucket", 1)],
)
def test_what_a_store_refuses_ends_in_one_line(
    holdfast: Run,
    shared_broker: RunningBroker,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    problem: str,
    code: int,
) -> None:
    pytest.importorskip("obstore")

    class Refusing(PlainHandler):
        def respond(self) -> None:
            self.body()
            answer = f"<Error>\n<Code>{problem}</Code>\n</Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with served(Refusing) as endpoint:
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "do-not-show",
        }.items():
            monkeypatch.setenv(name, value)
        done = holdfast("backup", "--data-dir", str(shared_broker.data_dir), "s3://backups/x")
    assert done.exit_code == code
    assert problem in done.stderr
    assert "s3://backups/x" in done.stderr
    assert "do-not-show" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_repair_says_what_it_costs_and_does_it_only_when_told_to(
    holdfast: Run, holdfast_broker: RunningBroker
) -> None:
    data_dir = holdfast_broker.data_dir
    _publish(holdfast, "a", "b", "c")
    _publish(holdfast, "d")
    _publish(holdfast, "e")
    refused = holdfast("repair", str(data_dir))
    assert refused.exit_code == 6
    assert "stop that one first" in refused.stderr
    holdfast_broker.kill()
    flip(min((data_dir / "commitlog").iterdir()), b"abc")

    done = holdfast("repair", str(data_dir))
    assert done.exit_code == 1
    loss, summary = lines(done.stdout)
    assert loss == {
        "kind": "loss",
        "reason": "payload-crc",
        "topic": "t",
        "topic_id": 1,
        "queue": 0,
        "start_offset": 0,
        "end_offset": 3,
    }
    assert (summary["done"], summary["messages"]) == (False, 3)
    done = holdfast("repair", str(data_dir), "--accept-loss")
    assert done.exit_code == 0, done.stdout
    summary = lines(done.stdout)[-1]
    assert (summary["is_sound"], summary["done"]) == (True, True)
    assert Path(summary["copies"]).is_dir()
    assert holdfast("check", str(data_dir)).exit_code == 0
    holdfast_broker.start()
    found = lines(holdfast("pull", "t", "--queue", "0", "--from", "0").stdout)
    assert [(row["offset"], row["body"]) for row in found] == [(3, "d"), (4, "e")]
