"""Limits of connections: in total and per client."""

import pytest

from holdfast.http_api.wire.connection_registry import ConnectionLimits


@pytest.mark.parametrize(("before", "refusal"), [(1, None), (2, "too-many-connections")])
def test_so_many_connections_are_let_in(before: int, refusal: str | None) -> None:
    admission = ConnectionLimits(2, 9)
    for number in range(before):
        assert admission.enter(f"client-{number}") is None
    assert admission.enter("one-more") == refusal


@pytest.mark.parametrize(("before", "refusal"), [(1, None), (2, "too-many-client-connections")])
def test_so_many_of_one_client_are_let_in(before: int, refusal: str | None) -> None:
    admission = ConnectionLimits(9, 2)
    for _ in range(before):
        assert admission.enter("one") is None
    assert admission.enter("one") == refusal
    assert admission.enter("another") is None


def test_who_leaves_makes_room_and_is_forgotten() -> None:
    admission = ConnectionLimits(2, 1)
    assert admission.enter("one") is None
    assert admission.enter("one") == "too-many-client-connections"
    admission.leave("one")
    assert (admission.count, admission.by_client) == (0, {})
    assert admission.enter("one") is None
