import pytest

from holdfast.commitlog.errors import DiskFull, DiskLow, LogError, LogOverloaded
from holdfast.consumequeue.publishing import PublishAdmission

LIMIT = 1000


@pytest.mark.parametrize(("size", "is_refused"), [(599, False), (600, False), (601, True)])
def test_so_many_bytes_are_let_in_at_once(size: int, is_refused: bool) -> None:
    admission = PublishAdmission(LIMIT, {})
    admission.enter(400)
    if is_refused:
        with pytest.raises(LogOverloaded) as raised:
            admission.enter(size)
        assert raised.value.limit_name == "max_in_flight_bytes"
        assert admission.in_flight_bytes == 400
        admission.in_flight_bytes -= 400
    admission.enter(size)


def test_one_that_is_alone_is_let_in_whatever_its_size() -> None:
    admission = PublishAdmission(LIMIT, {})
    admission.enter(10 * LIMIT)
    with pytest.raises(LogOverloaded):
        admission.enter(1)


def test_an_alarm_keeps_everything_out_until_it_is_over() -> None:
    raised: LogError | None = DiskLow("/d", 1, 2)
    admission = PublishAdmission(LIMIT, {"memory": lambda: None, "disk": lambda: raised})
    with pytest.raises(DiskLow):
        admission.enter(1)
    assert admission.in_flight_bytes == 0
    raised = None
    admission.enter(1)


def test_an_alarm_keeps_nothing_of_the_publishes_that_it_refused() -> None:
    error = DiskFull(1)
    admission = PublishAdmission(LIMIT, {"disk": lambda: error})
    for _ in range(3):
        with pytest.raises(DiskFull) as refused:
            admission.enter(1)
        assert str(refused.value) == str(error)
    assert error.__traceback__ is None
