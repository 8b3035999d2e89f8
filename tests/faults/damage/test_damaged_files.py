"""A start on truncated, missing, misplaced or superfluous files reports the damage or is
refused."""

import asyncio
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.damage.damage_worker import DamageWorker
from tests.support.damage.damaged_directory import make_directory

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

_MIB = 1024 * 1024

Edit = Callable[[Path], object]
"""Damages the file at a path."""


def _truncated(size: int) -> Edit:
    return lambda path: os.truncate(path, size)


def _resized(by: int) -> Edit:
    return lambda path: os.truncate(path, path.stat().st_size + by)


_longer = _resized(4096)


def _halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _missing(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _a_directory(path: Path) -> None:
    if path.exists():
        _missing(path)
    path.mkdir()


def _a_file(path: Path) -> None:
    if path.exists():
        _missing(path)
    path.write_bytes(b"not what is expected here")


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _another(name: str) -> Edit:
    """Return an edit that copies the file to another name next to it."""
    return lambda path: shutil.copyfile(path, path.with_name(name))


_SEGMENTS = {
    f"{name} segment": f"commitlog/{index * _MIB:020d}"
    for name, index in {"first": 0, "middle": 1, "active": 3, "prepared": 4}.items()
}
_LMDB = ("consumequeue", "state")

RIGHT, DECLARED, REFUSED = "right", "declared", "refused"


def _cases() -> Iterator[tuple[str, str, Edit, set[str]]]:
    """Yield the name of the case, the file, the damage, and the allowed outcomes."""
    for name, path in _SEGMENTS.items():
        # Only the index knows what the active segment lost.
        declared = {RIGHT, DECLARED} if name == "prepared segment" else {DECLARED}
        for what, edit in {
            "halved": _halved,
            "of a header": _truncated(4096),
            "of 100 bytes": _truncated(100),
            "empty": _truncated(0),
            "zeros": _zeros,
            "missing": _missing,
        }.items():
            yield f"{name} {what}", path, edit, declared
        yield f"{name} longer", path, _longer, {RIGHT, DECLARED}
        yield f"{name} a directory", path, _a_directory, {DECLARED, REFUSED}
    first = _SEGMENTS["first segment"]
    yield "sealed segment without its last page", first, _resized(-4096), {RIGHT, DECLARED}
    yield "segments missing", "commitlog", _missing, {DECLARED}
    yield "segments a file", "commitlog", _a_file, {REFUSED}
    yield "segment twice, overlapping", first, _another(f"{_MIB // 2:020d}"), {DECLARED}
    yield "segment twice, far away", first, _another(f"{100 * _MIB:020d}"), {DECLARED}
    yield "segment unfinished", first, _another(f"{9 * _MIB:020d}.new"), {RIGHT}
    yield "file in the log's folder", "commitlog/notes.txt", _a_file, {RIGHT}
    yield "folder in the log's folder", "commitlog/lost+found", _a_directory, {RIGHT}
    for folder in _LMDB:
        data = f"{folder}/data.mdb"
        for what, edit in {
            "halved": _halved,
            "of a page": _truncated(4096),
            "of 100 bytes": _truncated(100),
            "empty": _truncated(0),
            "zeros": _zeros,
            "missing": _missing,
            "without its last byte": _resized(-1),
        }.items():
            yield f"{data} {what}", data, edit, {RIGHT, DECLARED}
        yield f"{data} longer", data, _longer, {RIGHT, DECLARED}
        yield f"{data} a directory", data, _a_directory, {RIGHT, DECLARED, REFUSED}
        yield f"{folder} missing", folder, _missing, {RIGHT, DECLARED}
        yield f"{folder} a file", folder, _a_file, {RIGHT, DECLARED, REFUSED}
        yield f"file in {folder}", f"{folder}/notes.txt", _a_file, {RIGHT}
        for what, edit in {"empty": _truncated(0), "missing": _missing, "zeros": _zeros}.items():
            yield f"{folder}/lock.mdb {what}", f"{folder}/lock.mdb", edit, {RIGHT}
    yield "VERSION empty", "VERSION", _truncated(0), {REFUSED}
    yield "VERSION missing", "VERSION", _missing, {REFUSED}
    yield "VERSION a directory", "VERSION", _a_directory, {REFUSED}
    yield "VERSION not text", "VERSION", lambda path: path.write_bytes(b"\xff\0"), {REFUSED}
    for what, edit in {
        "empty": _truncated(0),
        "missing": _missing,
        "longer": _longer,
    }.items():
        yield f"lock {what}", "lock", edit, {RIGHT}
        yield f"reserve {what}", "reserve", edit, {RIGHT}
    yield "lock a directory", "lock", _a_directory, {REFUSED}
    yield "reserve a directory", "reserve", _a_directory, {RIGHT, REFUSED}
    yield "file of nobody's", "notes.txt", _a_file, {RIGHT}


CASES = {name: (path, edit, outcomes) for name, path, edit, outcomes in _cases()}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of four segments and a prepared one; its expected content is in `truth`."""
    directory = tmp_path_factory.mktemp("pristine")
    truth = asyncio.run(make_directory(directory / "data"))
    (directory / "truth").write_bytes(pickle.dumps(truth))
    assert [*truth.log] == [f"{index * _MIB:020d}" for index in range(5)]
    return directory


@pytest.fixture(scope="module")
def worker(pristine: Path) -> Iterator[DamageWorker]:
    """A process that opens damaged directories, and may die from them."""
    with DamageWorker(pristine / "truth") as worker:
        yield worker


@pytest.mark.parametrize("case", CASES)
def test_a_start_on_damaged_files_ends_in_order_or_in_a_refusal(
    case: str, pristine: Path, worker: DamageWorker, tmp_path: Path
) -> None:
    path, edit, outcomes = CASES[case]
    data_dir = tmp_path / "data"
    shutil.copytree(pristine / "data", data_dir)
    edit(data_dir / path)
    outcome = worker.examine(data_dir)
    print(f"{case}: {outcome}")
    assert outcome.split(":")[0] in outcomes, outcome
