import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from holdfast.client.consume.delivery import (
    DeliveredMessage,
    Delivery,
    DeliveryOwner,
    Lease,
    Settling,
)
from holdfast.client.consume.leases import LeaseRenewer, RedeliveredKeys
from holdfast.client.errors import ClientClosed
from holdfast.client.values import Status
from tests.support.event_loop.loop_clock import LoopClock
from tests.support.servers.fake_group import delivered_message as message


def redelivered(*messages: DeliveredMessage) -> tuple[RedeliveredKeys, list[Settling]]:
    """Return a table of redelivered messages, and their settlings, which are still unanswered."""
    table, settlings = RedeliveredKeys(), [Settling(None) for _ in messages]
    for each, settling in zip(messages, settlings, strict=True):
        table.record(each.as_received(), settling)
    return table, settlings


def test_no_message_is_uncertain_without_a_redelivered_key() -> None:
    assert RedeliveredKeys().find_uncertain([message(0), message(1)]) == [False, False]


def test_only_later_messages_of_the_key_are_uncertain() -> None:
    table, _ = redelivered(message(5))
    others = [message(6, "b"), message(6, None), message(6, topic="u"), message(6, queue=1)]
    assert table.find_uncertain([message(6), *others, message(9)]) == [True, *[False] * 4, True]


def test_a_reply_with_the_redelivered_message_is_newer_than_its_release() -> None:
    table, _ = redelivered(message(7), message(5))
    assert table.find_uncertain([message(6), message(7)]) == [True, True]
    assert table.find_uncertain([message(5), message(6)]) == [False, False]
    assert table.find_uncertain([message(4), message(6)]) == [False, False]


def test_a_message_without_a_key_makes_no_message_uncertain() -> None:
    table, _ = redelivered(message(5, None))
    assert table.find_uncertain([message(6, None)]) == [False]


def test_an_answered_nack_is_forgotten() -> None:
    table, (first, last) = redelivered(message(5), message(7))
    first.settled("done")
    table.forget_answered()
    assert table.find_uncertain([message(8)]) == [True]  # the last settling is not answered yet
    last.settled("done")
    assert table.find_uncertain([message(8)]) == [True]  # the reply may be older than the answer
    table.forget_answered()
    assert table.find_uncertain([message(8)]) == [False]


async def test_waiting_for_a_failed_nack_raises_its_error() -> None:
    table, (settling,) = redelivered(message(5))
    settling.failed(ClientClosed())
    await table.wait_confirmed(message(6, "b").as_received())
    with pytest.raises(ClientClosed):
        await table.wait_confirmed(message(6).as_received())


async def test_leases_that_are_due_soon_are_extended_together() -> None:
    clock, requests = LoopClock(), asyncio.Queue[list[str]]()

    async def extend(receipts: Sequence[str]) -> list[Status]:
        requests.put_nowait(list(receipts))
        return ["done"] * len(receipts)

    renewer = LeaseRenewer(extend, lambda delivery: None, lease_s=8.0)
    now_s = asyncio.get_running_loop().time()
    for index, extend_at_s in enumerate([4.0, 4.9, 5.0, 5.1]):
        lease = Lease(cast(DeliveryOwner, None), now_s + extend_at_s)
        renewer.add(Delivery(b"", message(index), 0, str(index), 1, False, lease))
    task = asyncio.ensure_future(renewer.run())
    await asyncio.sleep(0)
    assert requests.empty()
    await clock.advance(4.0)
    assert await requests.get() == ["0", "1", "2"]
    await asyncio.sleep(0)
    await clock.advance(1.1)
    assert await requests.get() == ["3"]
    task.cancel()
