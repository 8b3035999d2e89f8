"""holdfast publish, against a broker."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def lines_of(holdfast: Run, *arguments: str) -> list[bytes]:
    pulled = holdfast("pull", *arguments, "--format", "%b\\n")
    assert pulled.exit_code == 0, pulled.stderr
    return pulled.stdout_bytes.split(b"\n")[:-1]


def test_a_pipe_becomes_messages_byte_for_byte(holdfast: Run) -> None:
    content = b"one\ntwo\r\n\n\x00\xff\nlast without a line break"
    done = holdfast("publish", "t", "--queue", "0", input=content)
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["messages"] == 5
    assert summary["bytes"] == len(content) - 4
    assert summary["durable"] is True
    assert summary["seconds"] >= 0
    assert lines_of(holdfast, "t", "--queue", "0") == content.split(b"\n")


def test_the_summary_tells_the_durability(holdfast: Run) -> None:
    done = holdfast("publish", "t", "--durability", "written", input=b"x\n")
    assert json.loads(done.stdout)["durable"] is False


def test_nothing_is_published_from_nothing(holdfast: Run) -> None:
    holdfast("topic", "create", "t")
    summary = json.loads(holdfast("publish", "t", input=b"").stdout)
    assert (summary["messages"], summary["durable"]) == (0, None)


def test_keys_keep_their_order_and_tags_are_set(holdfast: Run, tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    rows = [f"10.0.0.{n % 7} - {n} {200 + n % 3}" for n in range(500)]
    file.write_text("\n".join(rows) + "\n")
    done = holdfast(
        "publish", "t", str(file), "--key-regex", r"^\S+", "--tag-regex", r" (\d{3})$",
        "--batch-bytes", "1KiB",
    )  # fmt: skip
    assert json.loads(done.stdout)["messages"] == 500
    pulled = holdfast("pull", "t", "--format", "%q %k %t %b\\n").stdout.splitlines()
    by_key: dict[str, list[str]] = {}
    queues: dict[str, set[str]] = {}
    for line in pulled:
        queue, key, tag, body = line.split(" ", 3)
        assert body.startswith(key)
        assert body.endswith(tag)
        by_key.setdefault(key, []).append(body)
        queues.setdefault(key, set()).add(queue)
    assert all(len(found) == 1 for found in queues.values())
    for key, bodies in by_key.items():
        assert bodies == [row for row in rows if row.startswith(f"{key} ")]


def test_a_line_that_cannot_be_a_message_is_named(holdfast: Run, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"good\nb\xffd\n")
    done = holdfast("publish", "t", str(file), "--key-regex", ".+")
    assert done.exit_code == 1
    assert f"{file}, line 2: its key is not UTF-8" in done.stderr
    assert lines_of(holdfast, "t") == [b"good"]


def test_priority_and_time_to_live(holdfast: Run) -> None:
    holdfast("topic", "create", "t", "--queues", "1", "--priority-levels", "2")
    done = holdfast("publish", "t", "--priority", "9", "--ttl", "90s", input=b"urgent\n")
    assert done.exit_code == 0, done.stderr
    holdfast("publish", "t", input=b"not so\n")
    assert lines_of(holdfast, "t", "--queue", "1") == [b"urgent"]
    assert lines_of(holdfast, "t", "--queue", "0") == [b"not so"]
    for refused in (("--priority", "10"), ("--ttl", "soon"), ("--priority", "9", "--queue", "0")):
        assert holdfast("publish", "t", *refused, input=b"x\n").exit_code == 2


@pytest.mark.parametrize(("size", "exit_code"), [("0", 2), ("1", 0), ("-1", 2)])
def test_a_batch_has_at_least_a_byte(holdfast: Run, size: str, exit_code: int) -> None:
    done = holdfast("publish", "t", "--batch-bytes", size, input=b"x\n")
    assert done.exit_code == exit_code, done.stderr


def test_a_queue_that_is_not_there_is_refused(holdfast: Run) -> None:
    holdfast("topic", "create", "t", "--queues", "2")
    done = holdfast("publish", "t", "--queue", "2", input=b"x\n")
    assert done.exit_code == 4
    assert done.stderr.count("\n") == 1
