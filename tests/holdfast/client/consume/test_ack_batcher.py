"""Acks and other settlings: collected, sent, and reported if they came too late."""

import logging
from collections.abc import Sequence

import pytest

from holdfast.client.consume.ack_batcher import AckBatcher, AckKind, PendingAck
from holdfast.client.consume.delivery import Settling
from holdfast.client.values import Status, Verb


async def settle(verb: Verb, *statuses: Status) -> list[Status]:
    """Settle one delivery per status, and return the status that each one received."""

    async def send(kind: AckKind, acks: Sequence[PendingAck]) -> Sequence[Status]:
        return statuses

    failures: list[Exception] = []
    confirmed: list[int] = []
    batcher = AckBatcher(
        send=send,
        batch=10,
        interval_s=60.0,
        on_confirmed=confirmed.append,
        on_failed=failures.append,
    )
    settlings = [Settling(None) for _ in statuses]
    for number, settling in enumerate(settlings):
        batcher.add(AckKind(verb), PendingAck(f"r{number}", settling, 0.0))
    await batcher.flush()
    assert (failures, confirmed) == ([], [len(statuses)])
    return [await each for each in settlings]


async def test_a_late_acknowledgement_is_stale_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.client"):
        assert await settle("ack", "done", "stale", "stale") == ["done", "stale", "stale"]
    (logged,) = caplog.messages
    assert logged.startswith("ack came too late for 2 of the messages: their leases had ended")


async def test_a_timely_acknowledgement_and_a_late_extension_are_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller that extends a lease gets the result and sees that the lease has ended."""
    with caplog.at_level(logging.WARNING, "holdfast.client"):
        await settle("ack", "done")
        await settle("extend", "stale")
    assert caplog.messages == []
