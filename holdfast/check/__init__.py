"""Verifying a data directory or a backup, changing nothing. What `holdfast check` runs, what a
repair and a restore begin and end with, and tests after every crash."""

from holdfast.check.data_dir import check_data_dir
from holdfast.check.report import CheckReport, DamagedPlace, Finding, LostOffsets

__all__ = ["CheckReport", "DamagedPlace", "Finding", "LostOffsets", "check_data_dir"]
