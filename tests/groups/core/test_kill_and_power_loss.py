"""A kill after a power loss, and a power loss after a kill.

The state after the first event must still hold after the second.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.groups.config import GroupConfig
from holdfast.groups.core.group_topic import DeadLetter, QueueLane
from holdfast.groups.core.last_values import KnownKeys
from holdfast.groups.core.receipts import Receipt, ReceiptState, receipt_state
from holdfast.groups.cursor.cursor import Cursor, End, State
from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.leases import NO_DEADLINE, Lease
from holdfast.groups.storage.open import OpenedGroups
from tests.groups.queues import Queues
from tests.groups.storage.test_open import (
    BOOT,
    KEY,
    LEASE_MS,
    NOW_MS,
    OTHER_BOOT,
    Directory,
    deliver,
    kill,
    save,
)

THIRD_BOOT = bytes(range(3, 19))


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """Return a directory whose group had received 0 to 9 when the power failed."""
    directory = Directory(tmp_path / "state")
    opened = directory.open()
    cursor = opened.cursors[KEY]
    cursor.seen_below = 0  # as in a new group: nothing was delivered before
    deliver(cursor, *range(10))
    save(opened, cursor)
    kill(opened)
    return directory


def _lanes_with_notes(opened: OpenedGroups) -> None:
    """Record a change, and kill the broker before it is committed."""
    opened.page.note(KEY, opened.cursors[KEY])
    opened.page.write()
    kill(opened)


def _receipt(cursor: Cursor, lease: Lease) -> Receipt:
    return Receipt(
        *KEY, lease.head.offset, lease.number, cursor.epoch, lease.deadline_ms, lease.attempt, "m"
    )


def _lease(cursor: Cursor, offset: int) -> Lease:
    lease = cursor.leases.get(offset)
    assert lease is not None
    return lease


def test_a_message_stays_redelivered_if_a_kill_undoes_a_settlement(
    directory: Directory,
) -> None:
    opened = directory.open(OTHER_BOOT)
    cursor = opened.cursors[KEY]
    cursor.end_grace()
    save(opened, cursor)
    for offset in range(cursor.end):
        cursor.finish(offset, End.ACKED)
    _lanes_with_notes(opened)
    cursor = directory.cursor(OTHER_BOOT)
    assert cursor.floor == 0
    assert cursor.is_redelivery(9)


def test_a_grace_continues_if_a_kill_undoes_a_settlement(directory: Directory) -> None:
    opened = directory.open(OTHER_BOOT)
    cursor = opened.cursors[KEY]
    assert cursor.is_in_grace(9)
    for offset in range(10):
        cursor.finish(offset, End.ACKED)
    cursor.skip(10, cursor.end)
    assert cursor.grace_count == 0
    _lanes_with_notes(opened)
    cursor = directory.cursor(OTHER_BOOT)
    assert cursor.is_in_grace(9)
    assert cursor.grace_end_ms == NOW_MS + LEASE_MS


@pytest.mark.parametrize("kills", [0, 1, 2])
def test_the_receipt_of_a_live_lease_is_valid_after_kills_and_a_power_loss(
    tmp_path: Path, kills: int
) -> None:
    directory = Directory(tmp_path / "state")
    opened = directory.open()
    cursor = opened.cursors[KEY]
    deliver(cursor, 5)
    receipt = _receipt(cursor, _lease(cursor, 5))
    save(opened, cursor)
    for _ in range(kills):
        kill(opened)
        opened = directory.open(BOOT)
        assert receipt_state(opened.cursors[KEY], receipt) == (ReceiptState.LIVE, None)
    kill(opened)
    assert receipt_state(directory.cursor(OTHER_BOOT), receipt) == (ReceiptState.GRACE, None)


def test_a_dead_letter_keeps_its_id_after_a_power_loss(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "state", durability="written")
    opened = directory.open()
    cursor = opened.cursors[KEY]
    deliver(cursor, 5)
    cursor.give_back(5, End.REJECTED, _lease(cursor, 5).number)
    save(opened, cursor)
    kill(opened)
    after = directory.cursor(OTHER_BOOT)
    assert after.epoch != cursor.epoch
    assert _letters(after) == _letters(cursor) != []
    after.seek(5)
    deliver(after, 5)
    after.give_back(5, End.REJECTED, _lease(after, 5).number)
    assert _letters(after)[0].letter_id != _letters(cursor)[0].letter_id


def _letters(cursor: Cursor) -> list[DeadLetter]:
    config = GroupConfig(has_dead_letters=True)
    lane = QueueLane(
        KEY[0], KEY[1:], cursor, Queues(), config, None, lambda lane: None, KnownKeys()
    )
    return lane.dead_letters


def test_a_lease_from_before_a_grace_is_stale_after_a_second_first_lease(
    directory: Directory,
) -> None:
    opened = directory.open(OTHER_BOOT)
    cursor = opened.cursors[KEY]
    first_boot = cursor.boot - 1
    before = Receipt(*KEY, 3, (first_boot << 40) + 4, cursor.epoch, NOW_MS + LEASE_MS, 1, "m")
    longer = replace(before, offset=4, lease_number=before.lease_number + 1)
    for receipt in (before, longer):
        assert receipt_state(cursor, receipt) == (ReceiptState.GRACE, None)
    cursor.adopt(Head(4), "m", longer.lease_number, NOW_MS + 2 * LEASE_MS, NOW_MS)
    cursor.end_grace()
    deliver(cursor, 3)
    again = _receipt(cursor, _lease(cursor, 3))
    save(opened, cursor)
    kill(opened)
    kill(directory.open(OTHER_BOOT))
    cursor = directory.cursor(THIRD_BOOT)
    assert receipt_state(cursor, again) == (ReceiptState.GRACE, None)
    assert receipt_state(cursor, before) == (ReceiptState.STALE, None)


def test_a_queue_has_no_grace_until_its_first_timed_lease(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "state")
    opened = directory.open()
    cursor = opened.cursors[KEY]
    cursor.seen_below = 0  # as in a new group
    cursor.lease([Head(0), Head(1)], "link", NO_DEADLINE, NOW_MS, 1)
    save(opened, cursor)
    kill(opened)
    opened = directory.open(OTHER_BOOT)
    cursor = opened.cursors[KEY]
    assert [cursor.state(offset) for offset in range(3)] == [State.AVAILABLE] * 3
    assert cursor.is_redelivery(0)
    deliver(cursor, 1)
    receipt = _receipt(cursor, _lease(cursor, 1))
    _lanes_with_notes(opened)  # the row does not have this lease, but the page has
    opened = directory.open(OTHER_BOOT)
    assert receipt_state(opened.cursors[KEY], receipt) == (ReceiptState.LIVE, None)
    kill(opened)
    cursor = directory.cursor(THIRD_BOOT)
    assert [cursor.state(offset) for offset in range(3)] == [State.GRACE] * 3
    assert receipt_state(cursor, receipt) == (ReceiptState.GRACE, None)


def test_bound_leases_are_over_at_the_next_start(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "state")
    opened = directory.open()
    cursor = opened.cursors[KEY]
    cursor.lease([Head(0)], "link", NO_DEADLINE, NOW_MS, 1)
    deliver(cursor, 1)
    _lanes_with_notes(opened)
    cursor = directory.cursor()
    assert [each.head.offset for each in cursor.leases.find_due(NOW_MS, 10)] == [0]
    assert cursor.attempt(0) == 1
