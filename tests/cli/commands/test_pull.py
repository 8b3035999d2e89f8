"""holdfast pull, against a broker."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.cli.conftest import Run, assert_refused, commands_against, lines


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Publish 0 to 9 to queue 0 of two, tagged even or odd; no test here changes the topic."""
    folder = tmp_path_factory.mktemp("numbers") / "data"
    with RunningBroker(folder, TEST_ARGUMENTS) as broker:
        holdfast = commands_against(broker.url)
        holdfast("topic", "create", "t", "--queues", "2")
        bodies = b"".join(b"%d %s\n" % (n, b"odd" if n % 2 else b"even") for n in range(10))
        holdfast("publish", "t", "--queue", "0", "--tag-regex", "[a-z]+", input=bodies)
        yield holdfast


def offsets(numbers: Run, *arguments: str) -> list[int]:
    pulled = numbers("pull", "t", *arguments, "--format", "%o\\n")
    assert pulled.exit_code == 0, pulled.stderr
    return [int(line) for line in pulled.stdout.split()]


def test_all_is_read_once(numbers: Run) -> None:
    assert offsets(numbers) == list(range(10))


def test_json_lines_when_the_output_is_no_terminal(numbers: Run) -> None:
    first, _ = lines(numbers("pull", "t", "--max", "2").stdout)
    assert (first["topic"], first["queue"], first["offset"], first["tag"]) == ("t", 0, 0, "even")
    assert first["body"] == "0 even"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--queue", "0", "--from", "7"], [7, 8, 9]),
        (["--queue", "0", "--from", "3", "--until", "5"], [3, 4]),
        (["--queue", "0", "--from", "3", "--max", "1"], [3]),
        (["--queue", "0", "--from", "10"], []),
        (["--queue", "1"], []),
        (["--from", "latest"], []),
        (["--from", "-1h"], list(range(10))),
        (["--from", "-1h", "--until", "-30m"], []),
        (["--until", "latest"], list(range(10))),
        (["--max", "0"], []),
        (["--tag", "odd"], [1, 3, 5, 7, 9]),
        (["--tag", "odd,even", "--max", "3"], [0, 1, 2]),
        (["--filter", "TAGS = 'even'", "--queue", "0", "--from", "5"], [6, 8]),
    ],
)
def test_ranges_and_filters(numbers: Run, arguments: list[str], expected: list[int]) -> None:
    assert offsets(numbers, *arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["t", "--queue", "0", "--from", "11"], 4),
        (["t", "--queue", "2"], 4),
        (["none"], 4),
        (["t", "--filter", "TAGS ="], 2),
    ],
)
def test_failures_of_pull_are_one_line(numbers: Run, arguments: list[str], code: int) -> None:
    assert_refused(numbers("pull", *arguments), code)


def test_follow_prints_what_arrives(numbers: Run) -> None:
    assert offsets(numbers, "--follow", "--max", "10") == list(range(10))


def test_damage_ends_a_pull_unless_skip_corrupt_is_given(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as broker:
        holdfast = commands_against(broker.url)
        holdfast("topic", "create", "t", "--queues", "1")
        for body in (b"one", b"the second", b"three"):
            holdfast("publish", "t", input=body + b"\n")
        broker.stop()
        segment = tmp_path / "data" / "commitlog" / ("0" * 20)
        image = bytearray(segment.read_bytes())
        image[image.index(b"the second")] ^= 1
        segment.write_bytes(image)
        broker.start()
        pulled = holdfast("pull", "t", "--format", "%b\\n")
        assert (pulled.exit_code, pulled.stdout) == (1, "one\n")
        assert "continue from 2" in pulled.stderr
        pulled = holdfast("pull", "t", "--format", "%b\\n", "--skip-corrupt")
        assert (pulled.exit_code, pulled.stdout) == (0, "one\nthree\n")


def test_a_broker_that_is_away_is_reported_on_standard_error(tmp_path: Path) -> None:
    # C2: `pull --follow` reported nothing while the broker was away
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as broker:
        commands_against(broker.url)("publish", "t", input=b"one\n")
        followed = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "pull", "t", "--follow", "--max", "2"],
            env={**os.environ, "HOLDFAST_URL": broker.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert followed.stdout is not None and followed.stderr is not None
        assert json.loads(followed.stdout.readline())["body"] == "one"
        broker.kill()
        assert followed.stderr.readline().startswith(b"holdfast: trying again: ")
        broker.restart()
        commands_against(broker.url)("publish", "t", input=b"two\n")
        assert json.loads(followed.stdout.readline())["body"] == "two"
        assert followed.wait(30) == 0
        followed.stdout.close()
        followed.stderr.close()
