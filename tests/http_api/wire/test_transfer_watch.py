"""A minimum rate, measured between two checks."""

import pytest

from holdfast.http_api.wire.transfer_watch import MinTransferRate


@pytest.mark.parametrize(("moved", "too_slow"), [(999, True), (1000, False), (1001, False)])
def test_a_transfer_must_reach_the_minimum_rate(moved: int, too_slow: bool) -> None:
    assert MinTransferRate(100, now=5.0).is_too_slow(15.0, moved) is too_slow


def test_each_check_counts_from_the_last_one() -> None:
    rate = MinTransferRate(100, now=0.0, moved=50)
    assert not rate.is_too_slow(1.0, 100_000)
    assert rate.is_too_slow(2.0, 100_099)
    assert not rate.is_too_slow(3.0, 100_199)


def test_without_a_minimum_rate_no_transfer_is_too_slow() -> None:
    assert not MinTransferRate(0, now=0.0).is_too_slow(1000.0, 0)
