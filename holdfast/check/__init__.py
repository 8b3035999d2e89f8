"""Verification of a data directory or a backup, without changes. `holdfast check` runs it. A repair
runs it before and after its steps, a restore runs it on the restored directory, and tests run it
after every crash."""

from holdfast.check.data_dir import check_data_dir
from holdfast.check.report import CheckReport, DamagedPlace, Finding, LostOffsets

__all__ = ["CheckReport", "DamagedPlace", "Finding", "LostOffsets", "check_data_dir"]
