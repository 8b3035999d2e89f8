"""Log lines with a limit, and the number of omitted lines."""

from holdfast.commitlog.log_limit import LogLimit


def test_lines_above_the_limit_are_suppressed_and_counted() -> None:
    limit = LogLimit(2, 10.0)
    assert [limit.admit(0.0), limit.admit(1.0), limit.admit(2.0), limit.admit(9.9)] == [
        0,
        0,
        None,
        None,
    ]
    assert [limit.admit(10.0), limit.admit(10.0), limit.admit(10.0)] == [2, 0, None]
    assert limit.admit(100.0) == 1
