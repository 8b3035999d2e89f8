"""Groups that deliver only the newest message of each key (`last_value`), without I/O."""

from typing import Any

import pytest

from holdfast.groups.core.group import Group
from holdfast.groups.core.last_values import MIN_KEYS, KnownKeys
from holdfast.groups.core.receiving import receive
from holdfast.groups.core.requests import ReceiveRequest
from holdfast.groups.core.settling import Status, Verb
from holdfast.groups.cursor.cursor import Cursor, State
from tests.groups.queues import Message, Queues, Stage, browse_stage, park, served, settle

DONE, STALE = Status.DONE, Status.STALE


def new_stage(*keys: int, **config: Any) -> Stage:
    """Return a stage with one message of each of these keys; 0 means no key."""
    stage = Stage(last_value=True, **config)
    publish(stage, *keys)
    return stage


def publish(stage: Stage, *keys: int, **fields: Any) -> None:
    for key in keys:
        stage.publish(key=key, **fields)


def test_only_the_newest_message_of_each_key_is_delivered() -> None:  # Q24
    stage = new_stage(1, 2, 1, 0, 3, 0, 1, 2)
    assert stage.offsets() == [3, 4, 5, 6, 7]
    assert stage.cursor().superseded_count == 3
    assert stage.cursor().floor == 3


def test_without_the_setting_all_messages_are_delivered() -> None:
    stage = Stage()
    publish(stage, 1, 1, 1)
    assert stage.offsets() == [0, 1, 2]


def test_a_message_that_was_read_ahead_is_superseded_by_a_later_arrival() -> None:
    stage = new_stage(1, 2, 3)
    assert stage.offsets(max_messages=1) == [0]
    publish(stage, 2)
    assert stage.offsets(max_messages=1) == [2]
    assert stage.offsets() == [3]
    assert [offset for _, offset in browse_stage(stage, {}).messages] == []


def test_a_waiting_request_gets_the_newest_message() -> None:
    stage = new_stage()
    park(stage, "a")
    publish(stage, 1, 1, 2)
    assert served(stage) == [("a", [1, 2])]


@pytest.mark.parametrize("how", ["release", "nack", "delay", "leave", "lease"])
def test_a_leased_message_stays_leased_until_it_comes_back(how: str) -> None:  # Q24
    stage = new_stage(1, lease_ms=5_000, backoff_ms=())
    messages = stage.take("a")
    publish(stage, 1)
    assert stage.offsets("b") == [1]
    assert stage.cursor().state(0) is State.LEASED
    if how == "delay":
        assert settle(stage, Verb.NACK, messages, delay_ms=700) == [DONE]
    elif how == "leave":
        stage.group.leave("a", stage.now)
    elif how == "lease":
        stage.later(5_000)
    else:
        assert settle(stage, Verb(how), messages) == [DONE]
    assert stage.cursor().superseded_count == 1
    assert stage.cursor().floor == 1
    assert settle(stage, Verb.ACK, messages) == [STALE]


@pytest.mark.parametrize("verb", [Verb.ACK, Verb.REJECT])
def test_a_superseded_leased_message_can_be_settled(verb: Verb) -> None:
    stage = new_stage(1, has_dead_letters=True)
    messages = stage.take()
    publish(stage, 1)
    assert stage.offsets() == [1]
    assert settle(stage, verb, messages) == [DONE]
    letters = [letter.offset for letter in stage.group.outbox.take_dead_letters()]
    assert letters == ([0] if verb is Verb.REJECT else [])
    assert stage.cursor().superseded_count == 0


@pytest.mark.parametrize("delay_ms", [0, 700])
def test_a_returned_message_is_superseded_by_a_later_arrival(delay_ms: int) -> None:
    stage = new_stage(1, 2, backoff_ms=())
    settle(stage, Verb.NACK, stage.take(), delay_ms=delay_ms)
    publish(stage, 1)
    stage.later(700)
    assert stage.offsets() == [1, 2]
    assert stage.cursor().superseded_count == 1
    stage.commit()
    stage.restart()
    assert stage.cursor().state(0) is State.DONE


def test_a_later_message_supersedes_whatever_happens_to_it() -> None:
    stage = Stage(last_value=True, filter="x")
    publish(stage, 1, 2, 3, tag="x")
    publish(stage, 1, tag="y")  # the group's filter does not match it
    publish(stage, 2, tag="x", expires_at_ms=stage.now)
    assert stage.offsets() == [2]
    assert stage.cursor().floor == 2
    settle(stage, Verb.ACK, stage.take(max_messages=0))
    assert stage.cursor().superseded_count == 2


def test_a_members_filter_decides_only_who_gets_the_newest_message() -> None:
    stage = new_stage()
    publish(stage, 1, tag="x")
    publish(stage, 1, tag="y")
    assert stage.offsets("a", filter="x") == []
    assert stage.offsets("b", filter="y") == [1]


def test_a_seek_back_replays_only_the_newest_messages() -> None:  # Q24
    stage = new_stage(1, 2, 1)
    settle(stage, Verb.ACK, stage.take())
    stage.group.seek((1, 0), 0)
    publish(stage, 3)
    assert stage.offsets() == [1, 2, 3]
    stage.group.seek((1, 0), 2)
    assert stage.offsets() == [2, 3]


def test_a_restart_finds_the_superseded_messages_again() -> None:  # Q24
    stage = new_stage(1, 2)
    assert stage.offsets(max_messages=1) == [0]
    stage.commit()
    stage.restart()  # as after a power loss: both may be leased
    assert stage.cursor().state(0) is State.GRACE
    publish(stage, 1, 2, 3)
    assert stage.offsets() == [2, 3, 4]
    assert stage.cursor().state(0) is State.GRACE, "a member may still have it"
    stage.later(60_000)
    assert stage.offsets() == [2, 3, 4]
    assert (stage.cursor().floor, stage.cursor().superseded_count) == (2, 2)


def test_the_setting_can_be_changed() -> None:
    stage = Stage()
    publish(stage, 1, 1, 2, 2)
    config = stage.group.config
    assert stage.offsets(max_messages=1) == [0]
    stage.configure(new_stage().group.config)
    assert stage.offsets() == [1, 3]
    stage.configure(config)
    publish(stage, 3, 3)
    assert stage.offsets() == [4, 5]


def test_a_new_filter_offers_no_superseded_message_and_counts_none_again() -> None:
    stage = Stage(last_value=True, filter="x")
    publish(stage, 4, tag="x")
    publish(stage, 1, 1, 2, tag="x")
    publish(stage, 1, tag="y")
    assert stage.offsets(max_messages=1) == [0]
    assert stage.cursor().superseded_count == 2
    stage.set_filter("y")
    publish(stage, 1, tag="y")
    assert stage.offsets() == [5]
    assert stage.cursor().superseded_count == 3
    stage.set_filter(None)
    assert stage.offsets() == []


def test_a_trim_forgets_keys_of_removed_messages() -> None:
    stage = new_stage(1, 2, 3)
    assert stage.offsets(max_messages=1) == [0]
    stage.group.note_log_start((1, 0), 2, stage.now)
    publish(stage, 3, 1)
    assert stage.offsets() == [3, 4]


def test_levels_are_queues_with_newest_messages_of_their_own() -> None:  # Q24
    stage = Stage(last_value=True, queues=2, levels=2)
    stage.publish(2, (1, 0), key=1)
    stage.publish(2, (1, 1), key=1)
    found = [(message.queue[1], message.offset) for message in stage.take()]
    assert found == [(1, 1), (0, 1)]


def test_queues_that_take_turns_deliver_no_message_that_was_superseded_meanwhile() -> None:
    stage = Stage(last_value=True, queues=2)
    for queue in ((1, 0), (1, 1)):
        for key in (1, 2, 3):
            stage.publish(queue=queue, key=key)
    first = [(message.queue[1], message.offset) for message in stage.take(max_messages=2)]
    assert first == [(0, 0), (1, 0)]
    stage.publish(queue=(1, 1), key=2)
    found = [(message.queue[1], message.offset) for message in stage.take()]
    assert sorted(found) == [(0, 1), (0, 2), (1, 2), (1, 3)]


class _Counting(Queues):
    """Queues that count how many keys were read."""

    key_count = 0

    def keys(self, queue: tuple[int, int], start: int, end: int) -> list[bytes] | None:
        found = super().keys(queue, start, end)
        self.key_count += len(found or ())
        return found


def group_over(
    known_keys: KnownKeys, keys: list[int], queues: Queues | None = None
) -> tuple[Group, Queues]:
    """Return a group whose keys in memory are limited, on a queue with messages of these keys."""
    queues = queues or _Counting()
    config = new_stage().group.config
    group = Group(1, config, queues, known_keys=known_keys)
    group.add_topic(1)
    queues.messages[1, 0] = [Message(key=key) for key in keys]
    group.add_queue((1, 0), Cursor(boot=1, end=len(keys)))
    return group, queues


def drained(group: Group, now_ms: int = 1_000) -> list[int]:
    """Receive and settle everything; return the offsets in their order."""
    found = []
    while messages := receive(group, ReceiveRequest("a", 10, settled=True), now_ms).messages:
        found += [message.offset for message in messages]
    return found


@pytest.mark.parametrize("most", [1, 100, 10_000])
def test_with_more_keys_than_may_be_kept_still_only_the_newest_are_delivered(most: int) -> None:
    count = 1_000
    keys = [1 + (7 * at) % count for at in range(2 * count)] + [1 + at for at in range(0, count, 3)]
    newest = {key: at for at, key in enumerate(keys)}
    known_keys = KnownKeys(most)
    group, queues = group_over(known_keys, keys)
    assert drained(group) == sorted(newest.values())
    assert known_keys.count <= 2 * MIN_KEYS, "keys of settled messages are dropped"
    passes = 1 + count // max(most, MIN_KEYS)
    assert isinstance(queues, _Counting)
    assert queues.key_count <= 2 * passes * len(keys)
    group.remove_topic(1)
    assert known_keys.count == 0


def test_a_group_at_the_limit_judges_new_arrivals_too() -> None:
    known_keys = KnownKeys(0)
    group, queues = group_over(known_keys, [1 + at for at in range(3 * MIN_KEYS)])
    first = receive(group, ReceiveRequest("a", 2), 1_000)
    assert [message.offset for message in first.messages] == [0, 1]
    last = 3 * MIN_KEYS
    queues.messages[1, 0] += [Message(key=3), Message(key=last), Message(key=last + 1)]
    group.note_end((1, 0), last + 3)
    assert drained(group) == [*range(3, last - 1), last, last + 1, last + 2]


def test_many_superseded_messages_of_one_key_are_dropped_together() -> None:
    keys = [1] * 20_000 + [2]
    group, queues = group_over(KnownKeys(), keys)
    assert drained(group) == [19_999, 20_000]
    assert isinstance(queues, _Counting)
    assert queues.key_count == len(keys), "each key is read once"
    assert sum(end - start for _, start, end in queues.reads) <= 10, "they are not read as heads"


def test_long_keys_are_distinguished_by_their_ends() -> None:
    class _LongKeys(_Counting):
        def keys(self, queue: tuple[int, int], start: int, end: int) -> list[bytes] | None:
            found = super().keys(queue, start, end)
            return found and [b"k" * 1_000 + each for each in found]

    group, _ = group_over(KnownKeys(), [1, 2, 1, 3], _LongKeys())
    assert drained(group) == [1, 2, 3]


def test_a_read_from_the_disk_continues_where_it_stopped() -> None:
    group, queues = group_over(KnownKeys(), [1] * 50 + [2])
    queues.step = 10
    queues.cold_from[1, 0] = 20
    reply = receive(group, ReceiveRequest("a", 5), 1_000)
    assert (reply.messages, reply.needs) == ([], ((1, 0), 20))
    queues.cold_from.clear()
    reply = receive(group, ReceiveRequest("a", 5), 1_000)
    assert [message.offset for message in reply.messages] == [49, 50]
    assert isinstance(queues, _Counting)
    assert queues.key_count == 51
