from dataclasses import fields

import pytest

from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.segments.segment import largest_batch
from holdfast.commitlog.setting import MIB, setting


@pytest.mark.parametrize("field", fields(CommitLogConfig), ids=lambda field: field.name)
def test_a_setting_is_described_and_within_its_own_bounds(field: object) -> None:
    metadata = field.metadata  # type: ignore[attr-defined]
    default = field.default  # type: ignore[attr-defined]
    assert len(metadata["doc"]) > 20
    assert default >= metadata["minimum"]
    assert metadata["maximum"] is None or default <= metadata["maximum"]


def test_the_defaults_fit_the_largest_request() -> None:
    config = CommitLogConfig()
    assert config.segment_bytes == 1024 * MIB
    assert config.flush_interval_ms == 100
    assert largest_batch(config.segment_bytes) >= 16 * MIB  # the largest request fits


def test_a_setting_has_its_metadata() -> None:
    made = setting(3, "How many.", minimum=1, maximum=5, choices=("3", "4"))
    assert made.default == 3
    said = {name: value for name, value in made.metadata.items() if value is not None}
    assert said.pop("bytes_each") == 1
    assert said == {"doc": "How many.", "minimum": 1, "maximum": 5, "choices": ("3", "4")}
