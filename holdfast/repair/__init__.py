"""Making a damaged data directory sound. The only thing that ever drops bytes of a log, and only
when it is told to; even then a copy of them is kept."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.check import CheckReport, check_data_dir
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.data_dir import DataDirInUse, require_data_dir
from holdfast.commitlog.read_only import ReadOnlyDisk
from holdfast.repair.apply import Repair
from holdfast.repair.plan import (
    DropIndex,
    Loss,
    NotRepairable,
    loss_of,
    lossless_steps,
    steps_of_loss,
)

__all__ = ["Loss", "NotRepairable", "RepairReport", "repair_data_dir"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was found, what is let go of, and what was done."""

    before: CheckReport
    loss: Loss
    after: CheckReport | None
    """What a check finds now; None when nothing was done, for want of `accept_loss`."""
    copies: Path | None
    """Where copies of what was overwritten are."""

    @property
    def is_sound(self) -> bool:
        """Whether the directory is sound now."""
        return (self.after or self.before).is_sound


def repair_data_dir(
    path: Path,
    *,
    accept_loss: bool,
    progress: Progress = lambda done, total: None,
) -> RepairReport:
    """Make a data directory sound that no broker has open.

    What costs no message is mended at once. If making it sound costs messages, nothing at all is
    changed unless `accept_loss`. Raises DataDirInUse, NotADataDir, UnknownFormatVersion,
    NotRepairable; OSError and lmdb.Error pass through. May be cut short and run again.
    """
    require_data_dir(path)
    with _locked(path):
        before = check_data_dir(path, is_locked=True, progress=progress)
        loss = loss_of(before)
        steps = lossless_steps(before)
        if not loss.is_nothing and not accept_loss:
            return RepairReport(before, loss, None, None)
        repair = Repair(path)
        # The index goes last: it may be the only one that knows how far a queue went.
        early = [step for step in steps if step != DropIndex()]
        repair.do(early, loss)
        found = before
        if early:
            # A header that was mended may let more be seen, or less.
            found = check_data_dir(path, is_locked=True, progress=progress)
            lossless_steps(found)
            loss = loss_of(found)
        # A repair that was cut short may have let go of what is still damaged.
        needed = not loss.is_nothing or bool(found.places) or _has_notes_of_damage(found)
        if needed:
            if not loss.is_nothing and not accept_loss:
                return RepairReport(before, loss, None, None)
            losing = steps_of_loss(found, _segment_ends(path))
            repair.keep_copies(found, loss, losing)
            repair.do(losing, loss)
        if DropIndex() in steps:
            repair.do([DropIndex()], loss)
        after = found
        if steps or needed:
            after = check_data_dir(path, is_locked=True, progress=progress)
        copies = repair.copies if repair.copies.exists() else None
        return RepairReport(before, loss, after, copies)


def _has_notes_of_damage(report: CheckReport) -> bool:
    """Return whether the state is damaged, or remembers damage that is not there any more."""
    kinds = {finding.kind for finding in report.findings}
    return bool(kinds & {"known-damage", "state-record", "state-damaged"})


def _segment_ends(path: Path) -> dict[str, int]:
    log = CommitLog(path / "commitlog", CommitLogConfig(), ReadOnlyDisk(), now_us=lambda: 0)
    try:
        log.open()
        return {segment.path.name: segment.end_offset for segment in log.segments}
    finally:
        log.close()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise _BrokerRuns(path, holder) from error
        yield
    finally:
        os.close(descriptor)


class _BrokerRuns(DataDirInUse):
    """A repair changes files under a broker's feet."""

    def __str__(self) -> str:
        return (
            f"{self.path} is in use by another broker (process {self.holder or 'unknown'}); "
            "stop that one first"
        )
