"""Whole screens of the commands that check or change a data directory."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.cli.screen import compare, shown_by

#: Replacements for varying output, in addition to those of all screens.
WORDS = (
    (r"holdfast_\w{12}\.[\w-]{43}", "holdfast_0123456789ab.SECRET"),
    (r"\b[0-9a-f]{12}\b", "0123456789ab"),
    (r"\d{8}T\d{6}-\d{6}", "20261121T100000-000000"),
    (r"\d{4}-\d\d-\d\d", "2026-11-21"),
    (r"(?<![T:+])\b\d\d:\d\d\b(?!:)", "10:00"),
    (r"T\d\d:\d\d:\d\d(?=\+)", "T10:00:00"),
    # The amount that the broker wrote for its own records.
    (r"\d+ blocks \([\d.]+ KiB\)", "8 blocks (1.8 KiB)"),
    (r'"(blocks|bytes|copied_bytes|restored_bytes|end_offset)":\d{4,}', r'"\g<1>":1000'),
    (r'"blocks":\d+', '"blocks":8'),
    (r"[\d.]+ KiB copied", "37.8 KiB copied"),
    (r"the log up to \d+", "the log up to 5968"),
    (r'(?<="index_entries":)[1-9]\d*', "8"),
    (r"[1-9]\d* index entries", "8 index entries"),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of a topic with five messages, and a group."""
    data_dir = tmp_path_factory.mktemp("screens") / "data"
    with RunningBroker(data_dir, TEST_ARGUMENTS) as broker, broker.client() as client:
        client.create_topic("orders", queues=2)
        for number in range(5):
            client.publish("orders", b"order %d" % number, queue=0)
        client.create_group("billing", ["orders"])
    return data_dir


@pytest.fixture
def here(tmp_path: Path, sound: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory. It has two copies of the data directory: `data`, and `bad` with one
    damaged message."""
    for name in ("data", "bad"):
        shutil.copytree(sound, tmp_path / name)
    segment = next((tmp_path / "bad" / "commitlog").iterdir())
    whole = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(whole.index(b"order 2"))
        file.write(b"O")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.fixture
def screen(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int | None], str]:
    """Return a function that returns a command's output at a width or through a pipe (None)."""

    def run(command: str, width: int | None) -> str:
        text = shown_by(command.split(), width, monkeypatch).replace(str(here), "/srv")
        for found, put in WORDS:
            text = re.sub(found, put, text)
        return text

    return run


#: The screens, by name: commands in order; the screen is that of the last one.
COMMANDS: dict[str, tuple[str, ...]] = {
    "check": ("check data",),
    "check-damaged": ("check bad",),
    "check-repaired": ("repair bad --accept-loss", "check bad"),
    "check-backup": ("backup copy --data-dir data", "check copy"),
    "backup": ("backup copy --data-dir data",),
    "restore": ("backup copy --data-dir data", "restore copy --data-dir new"),
    "restore-not-empty": ("backup copy --data-dir data", "restore copy --data-dir bad"),
    "repair": ("repair bad",),
    "repair-accept-loss": ("repair bad --accept-loss",),
    "repair-sound": ("repair data",),
    "token-create": (
        "token create --data-dir data --name shop --allow publish:orders --expires-in 30d",
    ),
    "token-list": (
        "token create --data-dir data --name shop --allow publish:orders --expires-in 30d",
        "token create --data-dir data --allow consume:=orders:=billing --certificate till-7",
        "token list --data-dir data",
    ),
    "token-revoke-none": ("token revoke --data-dir data abcdefabcdef",),
}
#: The terminal wraps sentences, so they may be longer than 80 columns.
SENTENCES = ("damage:", "note:", "holdfast:", "nothing was", "backed up", "sound:", "DAMAGED:")


@pytest.mark.parametrize("width", [80, 200, None], ids=["80", "200", "pipe"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_is_unchanged(
    name: str, width: int | None, screen: Callable[[str, int | None], str]
) -> None:
    shown = [screen(command, width) for command in COMMANDS[name]][-1]
    if width is not None:
        for line in shown.splitlines():
            assert len(line) <= width or line.strip().startswith((*SENTENCES, "fix:")), line
    compare(f"{name}.{width or 'pipe'}", shown)
