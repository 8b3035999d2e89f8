"""Acks and other settlings: collected, sent, and reported if they came too late."""

import logging
from collections.abc import Mapping, Sequence

import pytest

from holdfast.client.consume.ack_batcher import AckBatcher, AckKind, PendingAck
from holdfast.client.consume.delivery import Settling
from holdfast.client.values import Status, Verb
from tests.support.servers.fake_group import until


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


# -- acknowledgements in a receive ---------------------------------------------------------------


class Carrying:
    """A batcher of acknowledgements that are due at two, and the requests of its own."""

    def __init__(self, *, is_promised: bool = True) -> None:
        self.sent: list[list[str]] = []
        self.confirmed: list[int] = []
        self.asked: list[bool] = []
        self.is_promised = is_promised
        self.batcher = AckBatcher(
            send=self._send,
            batch=2,
            interval_s=60.0,
            on_confirmed=self.confirmed.append,
            on_failed=lambda error: None,
            on_due=self._on_due,
        )

    async def _send(self, kind: AckKind, acks: Sequence[PendingAck]) -> Sequence[Status]:
        self.sent.append([each.receipt for each in acks])
        return ["done"] * len(acks)

    def _on_due(self, is_late: bool) -> bool:
        self.asked.append(is_late)
        return self.is_promised

    def add(self, *receipts: str, topic: str = "") -> list[Settling]:
        settlings = [Settling(None) for _ in receipts]
        for receipt, settling in zip(receipts, settlings, strict=True):
            self.batcher.add(AckKind("ack", topic=topic), PendingAck(receipt, settling, 0.0))
        return settlings


def receipts_of(carried: Mapping[AckKind, Sequence[PendingAck]]) -> list[list[str]]:
    return [[each.receipt for each in acks] for acks in carried.values()]


async def test_a_receive_carries_what_is_pending_and_brings_the_outcomes() -> None:
    carrying = Carrying()
    first, second = carrying.add("a", topic="t"), carrying.add("b", topic="u")
    assert (carrying.batcher.is_due, carrying.batcher.carriable) == (True, 2)
    carried = carrying.batcher.take_acks()
    assert receipts_of(carried) == [["a"], ["b"]]
    assert (carrying.batcher.is_due, carrying.batcher.carriable) == (False, 0)
    carrying.batcher.confirm_carried(carried, [["done"], ["stale"]])
    carrying.batcher.put_back()  # no effect
    assert [await each for each in first + second] == ["done", "stale"]
    await carrying.batcher.flush()
    assert (carrying.sent, carrying.confirmed, carrying.asked) == ([], [1, 1], [False])


async def test_due_acknowledgements_are_sent_if_no_receive_follows() -> None:
    # The promise was wrong: the broker holds the receive in flight.
    carrying = Carrying()
    carrying.add("a", "b")
    carrying.batcher.flush_soon()  # as an idle consumer does; the acknowledgements stay due
    await until(lambda: carrying.confirmed == [2])
    assert (carrying.sent, carrying.asked) == ([["a", "b"]], [False])


async def test_without_a_promise_due_acknowledgements_are_sent_at_once() -> None:
    carrying = Carrying(is_promised=False)
    carrying.add("a", "b")
    assert not carrying.batcher.is_due
    await until(lambda: carrying.confirmed == [2])
    assert carrying.sent == [["a", "b"]]


async def test_what_a_cancelled_receive_carried_is_sent() -> None:
    carrying = Carrying()
    carrying.add("a", "b")
    carrying.batcher.take_acks()
    carrying.add("c")
    carrying.batcher.put_back()
    assert receipts_of(carrying.batcher.take_acks()) == [["a", "b", "c"]]
    carrying.batcher.put_back()
    await until(lambda: carrying.confirmed == [3])
    assert carrying.sent == [["a", "b", "c"]]


async def test_a_caller_that_waits_gets_the_first_outcome_and_each_counts_once() -> None:
    carrying = Carrying()
    (settling, _) = carrying.add("a", "b")
    carried = carrying.batcher.take_acks()
    carrying.batcher.confirm_soon()
    assert carrying.batcher.carriable == 0
    assert carrying.batcher.take_acks() == {}
    await until(settling.done)
    assert (carrying.sent, carrying.confirmed) == ([["a", "b"]], [2])
    carrying.batcher.confirm_carried(carried, [["stale", "done"]])
    assert (await settling, carrying.confirmed) == ("done", [2])


async def test_a_receive_carries_at_most_256_receipts() -> None:
    carrying = Carrying()
    carrying.add(*map(str, range(300)))
    carried = carrying.batcher.take_acks()
    assert receipts_of(carried) == [[str(number) for number in range(256)]]
    carrying.batcher.confirm_carried(carried, [["done"] * 256])
    assert carrying.batcher.carriable == 44
    await carrying.batcher.flush()
    assert carrying.confirmed == [256, 44]
