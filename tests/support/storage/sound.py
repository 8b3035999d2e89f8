"""Asserts that `holdfast check` finds nothing wrong with a data directory."""

from pathlib import Path

from holdfast.check import check_data_dir


def assert_sound(data_dir: Path, *, live: bool = False) -> None:
    report = check_data_dir(data_dir, live=live)
    assert report.is_sound, report.findings
