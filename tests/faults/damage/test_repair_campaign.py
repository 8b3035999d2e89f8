"""Random damage: the check names every loss, and after the repair all other messages are served.
TEST_REPAIRS sets the number of damaged directories (default 15), TEST_SEED the first seed."""

import asyncio
import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from holdfast.check import check_data_dir
from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.consumequeue.errors import UnknownGroup
from holdfast.repair import NotRepairable, repair_data_dir
from tests.support.storage.stored import MIB, open_storage, small_config
from tests.support.storage.three_segments import Messages, fill, read_all

pytestmark = [pytest.mark.fault, pytest.mark.timeout(3600)]

REPAIRS = int(os.environ.get("TEST_REPAIRS", "15"))
SEED = int(os.environ.get("TEST_SEED", "1"))


def _files(data_dir: Path) -> list[Path]:
    """Return the files that may be damaged; each of the log's files is listed twice."""
    log = sorted((data_dir / "commitlog").iterdir())
    others = [data_dir / "VERSION", *data_dir.glob("*/data.mdb")]
    return [*log, *log, *others]


def _flip(path: Path, rng: random.Random) -> None:
    size = path.stat().st_size
    image = path.read_bytes()
    # Prefer the written part: most of a young segment is zeros.
    end = len(image.rstrip(b"\0")) or size
    at = rng.choice((rng.randrange(end), rng.randrange(size)))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([image[at] ^ 1 << rng.randrange(8)]))


def _scribble(path: Path, rng: random.Random) -> None:
    size = path.stat().st_size
    length = min(size, rng.choice((8, 100, 4096, 50_000)))
    with path.open("r+b") as file:
        file.seek(rng.randrange(size - length + 1))
        file.write(rng.choice((bytes(length), rng.randbytes(length))))


def _truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.choice((0, rng.randrange(path.stat().st_size))))


def _remove(path: Path, rng: random.Random) -> None:
    if path.name != "VERSION":
        path.unlink()


def _add(path: Path, rng: random.Random) -> None:
    name = f"{rng.randrange(4 * MIB) // 8 * 8:020d}"
    if not (path.parent / name).exists() and path.parent.name == "commitlog":
        (path.parent / name).write_bytes(rng.randbytes(rng.choice((0, 100, 10_000))))


_FAULTS = {_flip: 12, _scribble: 5, _truncate: 3, _remove: 2, _add: 1}


def _spoil(data_dir: Path, rng: random.Random) -> list[str]:
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = rng.choice([path for path in _files(data_dir) if path.exists()])
        if path.stat().st_size == 0:
            continue
        (fault,) = rng.choices(list(_FAULTS), list(_FAULTS.values()))
        fault(path, rng)
        done.append(f"{fault.__name__} {path.relative_to(data_dir)}")
    return done


async def _topics(data_dir: Path) -> list[str]:
    async with open_storage(small_config(data_dir)) as storage:
        return [topic.name for topic in storage.store.table.all()]


def _repaired(data_dir: Path, truth: Messages) -> str:
    """Check, repair, serve, compare; return the outcome."""
    try:
        before = check_data_dir(data_dir)
        done = repair_data_dir(data_dir, accept_loss=True)
    except UnknownFormatVersion:
        return "taken for a newer one"
    except NotRepairable as error:
        return f"not repairable: {error.where.partition('/')[0]}"
    assert done.is_sound, [str(each) for each in (done.after or done.before).findings]
    assert check_data_dir(data_dir).is_sound
    lost = {
        (each.queue, offset)
        for each, _ in done.loss.lost
        for offset in range(each.start_offset, each.end_offset)
    }
    if done.loss.topics_may_be_missing:
        # The state is damaged, and so is the log that holds a copy of it.
        assert not before.is_sound
        if asyncio.run(_topics(data_dir)) != ["t"]:
            return "the topic was lost"
    try:
        messages, skipped, degraded = asyncio.run(read_all(data_dir))
    except UnknownGroup:
        assert done.loss.topics_may_be_missing
        return "stored offsets were lost"
    assert degraded == []
    passed = {
        (queue, offset)
        for queue, ranges in skipped.items()
        for start, end in ranges
        for offset in range(start, end)
    }
    kinds = {finding.kind for finding in before.findings}
    outcome = "messages were lost" if lost else "nothing was lost"
    if kinds & {"torn-tail", "segment-behind-hole"} and kinds & {"index-damaged", "index-missing"}:
        # The index was the proof that the end of the log had been durable, and it is lost.
        ends = {queue: 0 for queue, _ in truth}
        for queue, offset in messages.keys() | passed:
            ends[queue] = max(ends[queue], offset + 1)
        truth = {place: body for place, body in truth.items() if place[1] < ends[place[0]]}
        outcome = "an end without proof was cut"
    assert messages.keys() | passed == truth.keys()
    assert all(truth[place] == body for place, body in messages.items())
    assert truth.keys() - messages.keys() == passed == lost
    assert not lost or not before.is_sound
    return outcome


def test_whatever_is_damaged_is_made_sound_and_costs_what_was_said(tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    asyncio.run(fill(sound))
    truth, _, _ = asyncio.run(read_all(sound))
    outcomes: Counter[str] = Counter()
    for seed in range(SEED, SEED + REPAIRS):
        data_dir = tmp_path / "data"
        shutil.copytree(sound, data_dir)
        done = _spoil(data_dir, random.Random(seed))
        try:
            outcomes[_repaired(data_dir, truth)] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}: {', '.join(done)}")
            raise
        shutil.rmtree(data_dir)
    print(f"seeds {SEED} to {SEED + REPAIRS - 1}: {dict(outcomes)}")
    assert outcomes["messages were lost"]
