"""holdfast publish, against a broker."""

import json
from pathlib import Path

import pytest

from holdfast.testing import RunningBroker
from tests.cli.conftest import Run, assert_refused, lines


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


def test_a_mandatory_message_that_no_group_gets_is_refused(holdfast: Run) -> None:
    refused = holdfast("publish", "t", "--body", "x", "--mandatory")
    assert (refused.exit_code, "no group would get it" in refused.stderr) == (2, True)
    assert holdfast("group", "create", "g", "t").exit_code == 0
    assert holdfast("publish", "t", "--body", "x", "--mandatory").exit_code == 0


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
    assert_refused(holdfast("publish", "t", "--queue", "2", input=b"x\n"), 4)


# O2: no option set the body, the key, the tag or a property of a single message.
def test_one_message_from_the_command_line(holdfast: Run) -> None:
    done = holdfast(
        "publish", "t", "--body", "hello", "--message-key", "k", "--tag", "red",
        "--property", "size=3", "--property", "note=a=b",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["messages"], summary["bytes"], summary["offset"]) == (1, 5, 0)
    (found,) = lines(holdfast("pull", "t").stdout)
    assert (found["body"], found["key"], found["tag"]) == ("hello", "k", "red")
    assert found["properties"] == {"size": "3", "note": "a=b"}
    assert (found["queue"], found["message_id"]) == (summary["queue"], summary["message_id"])


def test_a_body_may_be_empty_or_of_several_lines(holdfast: Run) -> None:
    for body in ("", "one\ntwo"):
        assert holdfast("publish", "t", "--queue", "0", "--body", body).exit_code == 0
    pulled = holdfast("pull", "t", "--format", "%b|").stdout
    assert pulled == "|one\ntwo|"


def test_a_key_a_tag_and_properties_for_every_line(holdfast: Run) -> None:
    arguments = ("--message-key", "k", "--tag", "red", "--property", "a=1")
    assert holdfast("publish", "t", *arguments, input=b"x\ny\n").exit_code == 0
    pulled = holdfast("pull", "t", "--format", "%k %t %p %b\\n").stdout.splitlines()
    assert pulled == ['k red {"a":"1"} x', 'k red {"a":"1"} y']


# O2: `holdfast publish T hello` reads hello as a file, and its error did not name the right option.
def test_a_text_in_place_of_a_file_is_told_how(holdfast: Run) -> None:
    done = holdfast("publish", "t", "hello")
    assert_refused(done, 2, "no file 'hello'")
    assert "'holdfast publish t --body TEXT'" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("f", "--body", "x"),
        ("--json", "--body", "x"),
        ("--message-key", "k", "--key-regex", "."),
        ("--tag", "a", "--tag-regex", "."),
        ("--json", "--property", "a=1"),
        ("--property", "novalue"),
        ("--property", "=x"),
    ],
)
def test_contradictory_options_are_refused(holdfast: Run, arguments: tuple[str, ...]) -> None:
    assert holdfast("publish", "t", *arguments, input=b"x\n").exit_code == 2


# O2: the output of pull could not be published again without changes.
def test_publish_accepts_the_output_of_pull_byte_for_byte(
    holdfast: Run, shared_broker: RunningBroker
) -> None:
    bodies = [b"", b"plain", b"\x00\xff\xfe not text", "Gr\u00fc\u00dfe \U0001f600\u2028".encode()]
    bodies += [b'{"body": "nested"}', b"two\nlines\r", bytes(range(256)) * 40]
    with shared_broker.client() as client:
        client.create_topic("from", queues=1)
        client.create_topic("to", queues=1)
        for number, body in enumerate(bodies):
            client.publish(
                "from",
                body,
                key=("k\u00e9y\n", None)[number % 2],
                tag=("t-1", None)[number // 2 % 2],
                properties={"a": "1", "b\u00e9": "\t\u0001"} if number % 3 else None,
            )
        pulled = holdfast("pull", "from")
        assert "body_base64" in pulled.stdout
        done = holdfast("publish", "to", "--json", input=pulled.stdout_bytes)
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["messages"] == len(bodies)

        def stored(topic: str) -> list[tuple[object, ...]]:
            return [
                (bytes(each.body), each.key, each.tag, dict(each.properties))
                for each in client.pull(topic, queue=0, offset=0, follow=False)
            ]

        assert stored("to") == stored("from")
        assert [body for body, *_ in stored("to")] == bodies


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"no json", "line 2: it is not a message"),
        (b'{"key": "k"}', "line 2: it needs either body"),
        (b'{"body": "x", "body_base64": "eA=="}', "line 2: it needs either body"),
        (b'{"body": "x", "tagg": "y"}', "line 2: it is not a message as 'pull' prints it"),
        (b'{"body_base64": "?"}', "line 2: it is not a message"),
        (b'{"body": "\xff"}', "line 2: it is not a message"),
        (b"[1]", "line 2: it is not a message"),
    ],
)
def test_a_line_that_is_not_a_message_is_named(holdfast: Run, line: bytes, said: str) -> None:
    done = holdfast("publish", "t", "--json", input=b'{"body": "good"}\n' + line + b"\n")
    assert done.exit_code == 1
    assert said in done.stderr
    assert lines_of(holdfast, "t") == [b"good"]
