import pytest

from holdfast.client.consume.delivery import DeliveredMessage, Settling
from holdfast.client.consume.redelivered_keys import RedeliveredKeys
from holdfast.client.errors import ClientClosed


def message(
    offset: int, key: str | None = "a", *, topic: str = "t", queue: int = 0
) -> DeliveredMessage:
    return DeliveredMessage(
        topic=topic,
        queue=queue,
        offset=offset,
        message_id="",
        body=b"",
        key=key,
        tag=None,
        properties={},
        born_timestamp_ms=0,
        store_timestamp_ms=0,
    )


def redelivered(*messages: DeliveredMessage) -> tuple[RedeliveredKeys, list[Settling]]:
    """Return a table of redelivered messages, and their settlings, which are still unanswered."""
    table, settlings = RedeliveredKeys(), [Settling(None) for _ in messages]
    for each, settling in zip(messages, settlings, strict=True):
        table.record(each.as_received(), settling)
    return table, settlings


def test_nothing_is_doubtful_where_nothing_came_back() -> None:
    assert RedeliveredKeys().find_uncertain([message(0), message(1)]) == [False, False]


def test_what_follows_in_the_key_is_doubtful_and_nothing_else() -> None:
    table, _ = redelivered(message(5))
    others = [message(6, "b"), message(6, None), message(6, topic="u"), message(6, queue=1)]
    assert table.find_uncertain([message(6), *others, message(9)]) == [True, *[False] * 4, True]


def test_a_reply_that_has_what_came_back_is_from_after_it() -> None:
    table, _ = redelivered(message(7), message(5))
    assert table.find_uncertain([message(6), message(7)]) == [True, True]
    assert table.find_uncertain([message(5), message(6)]) == [False, False]
    assert table.find_uncertain([message(4), message(6)]) == [False, False]


def test_a_message_without_a_key_is_followed_by_none() -> None:
    table, _ = redelivered(message(5, None))
    assert table.find_uncertain([message(6, None)]) == [False]


def test_what_the_broker_has_answered_is_forgotten() -> None:
    table, (first, last) = redelivered(message(5), message(7))
    first.settled("done")
    table.forget_answered()
    assert table.find_uncertain([message(8)]) == [True]  # the last settling is not answered yet
    last.settled("done")
    assert table.find_uncertain([message(8)]) == [True]  # the reply may be older than the answer
    table.forget_answered()
    assert table.find_uncertain([message(8)]) == [False]


async def test_who_waits_for_the_broker_to_know_is_told_why_it_never_will() -> None:
    table, (settling,) = redelivered(message(5))
    settling.failed(ClientClosed())
    await table.wait_confirmed(message(6, "b").as_received())
    with pytest.raises(ClientClosed):
        await table.wait_confirmed(message(6).as_received())
