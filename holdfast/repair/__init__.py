"""Repair of a damaged data directory. A repair drops damaged bytes of the log only if the operator
accepts the loss, and it keeps a copy of these bytes."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.check import CheckReport, check_data_dir
from holdfast.commitlog.disk.data_dir import hold_lock, require_data_dir
from holdfast.commitlog.disk.owned_files import refuse_planted
from holdfast.commitlog.segments.commit_log import open_read_only
from holdfast.repair.apply import Repair
from holdfast.repair.plan import (
    DROP_INDEX,
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
    """The findings, the loss, and the result of a repair."""

    before: CheckReport
    loss: Loss
    after: CheckReport | None
    """The findings after the repair. This is None if the repair stopped because it would lose
    messages and `accept_loss` was not given."""
    copies: Path | None
    """The folder with copies of the overwritten data, or None if nothing was overwritten."""
    is_begun: bool = False
    """Whether the repair stopped after the steps without loss, because it found only then that
    further steps would lose messages."""

    @property
    def is_sound(self) -> bool:
        """Whether the directory is sound now."""
        return (self.after or self.before).is_sound


def repair_data_dir(
    path: Path, *, accept_loss: bool, progress: Progress = lambda done, total: None
) -> RepairReport:
    """Repair a data directory that no broker has open.

    If the repair would lose messages and `accept_loss` is False, nothing is changed. Exception: if
    the loss is found only after the steps without loss, the repair stops after these steps. Without
    a loss, all damage is repaired. A repair may be interrupted and run again. Raise DataDirInUse,
    NotADataDir, UnknownFormatVersion, NotRepairable or UnsafeFile; OSError and lmdb.Error
    propagate.
    """
    path = path.resolve()
    require_data_dir(path)
    refuse_planted(path)
    with hold_lock(path, os.O_RDWR | os.O_CREAT, "stop that one first"):
        before = check_data_dir(path, is_locked=True, progress=progress)
        loss = loss_of(before)
        steps = lossless_steps(before)
        if not loss.is_nothing and not accept_loss:
            return RepairReport(before, loss, None, None)
        repair = Repair(path)
        # Drop the index last: it may be the only record of a queue's end.
        early = [step for step in steps if step != DROP_INDEX]
        repair.do(early, loss)
        found = before
        if early:
            # A repaired header may make more blocks readable, or fewer.
            found = check_data_dir(path, is_locked=True, progress=progress)
            lossless_steps(found)
            loss = loss_of(found)
        # An interrupted repair may have accepted the loss of blocks that are still damaged.
        needed = not loss.is_nothing or bool(found.places) or _has_notes_of_damage(found)
        if needed:
            if not loss.is_nothing and not accept_loss:
                return RepairReport(
                    before, loss, None, repair.existing_copies, is_begun=bool(early)
                )
            losing = steps_of_loss(found, _segment_ends(path))
            repair.keep_copies(found, loss, losing)
            repair.do(losing, loss)
        if DROP_INDEX in steps:
            repair.do([DROP_INDEX], loss)
        after = found
        if steps or needed:
            after = check_data_dir(path, is_locked=True, progress=progress)
        return RepairReport(before, loss, after, repair.existing_copies)


def _has_notes_of_damage(report: CheckReport) -> bool:
    """Return whether the state is damaged, or records damage that no longer exists."""
    kinds = {finding.kind for finding in report.findings}
    return bool(kinds & {"known-damage", "state-record", "state-damaged"})


def _segment_ends(path: Path) -> dict[str, int]:
    with open_read_only(path / "commitlog") as log:
        return {segment.path.name: segment.end_offset for segment in log.segments}
