"""Dispositions that are read in a run have the same effect as those that are read one by one."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.disposition_run import read_run
from holdfast.amqp.engine.events import Disposed
from holdfast.amqp.wire.frames import frame
from holdfast.amqp.wire.performatives import (
    Accepted,
    Disposition,
    Modified,
    Rejected,
    Released,
    encode_composite,
)
from tests.amqp.engine.pair import Pair

SENT = 12


class Sending:
    """A server that has sent SENT messages, whose ids begin at `first_id`."""

    def __init__(self, first_id: int) -> None:
        self.pair = Pair(server=ConnectionSettings("server", 4_096, first_id=first_id))
        self.pair.pump()
        session, self.session = self.pair.begun()
        link, remote = self.pair.receiver(session)
        link.grant(SENT)
        self.pair.pump()
        for _ in range(SENT):
            remote.send(b"x", settled=False)
        self.pair.pump()
        self.pair.server.events.clear()

    def receive(self, octets: bytes | bytearray) -> list[Any]:
        self.pair.server.receive(octets)  # type: ignore[arg-type]
        disposed = [
            (delivery_id, each.state, each.is_settled)
            for each in self.pair.server.take(Disposed)
            for delivery_id, _ in each.deliveries
        ]
        events = [(type(each), str(getattr(each, "error", ""))) for each in self.pair.server.events]
        left = [at for at, _ in self.session.outgoing_unsettled]
        return [disposed, events, left, self.pair.server.connection.take_output()]


def octets_of(dispositions: list[Disposition], *, is_wide: bool) -> bytes:
    """Return a frame for each, on channel 0, with long ids. With `is_wide`, each list has its size
    and its count in four bytes, as some clients send it."""
    found = []
    for each in dispositions:
        values = b"%c\x70%b" % (0x41 if each.role else 0x42, each.first.to_bytes(4, "big"))
        values += b"\x40" if each.last is None else b"\x70" + each.last.to_bytes(4, "big")
        values += b"\x41" if each.settled else b"\x42"
        values += b"\x40" if each.state is None else encode_composite(each.state)
        size, count = len(values), 5
        head = bytes((0xC0, size + 1, count))
        if is_wide:
            head = b"\xd0%b%b" % ((size + 4).to_bytes(4, "big"), count.to_bytes(4, "big"))
        found.append(frame(0, b"\x00\x53\x15" + head + values))
    return b"".join(found)


FIRST_IDS = st.sampled_from([0, 250, 70_000, 2**32 - 5])
#: How far the id is from the one before, and what else differs.
STEPS = st.tuples(
    st.sampled_from([1] * 12 + [0, 2, 5]),
    st.sampled_from([True] * 9 + [False]),
    st.sampled_from([None] * 9 + [0, 2]),
    st.sampled_from([True] * 9 + [False]),
    st.sampled_from([Accepted()] * 9 + [Released(), Rejected(), Modified(True), None]),
)


@settings(deadline=None)
@given(FIRST_IDS, st.lists(STEPS, max_size=SENT + 3), st.booleans(), st.data())
def test_a_run_has_the_effect_of_its_frames(
    first_id: int, steps: list[Any], is_wide: bool, data: st.DataObject
) -> None:
    run, single = Sending(first_id), Sending(first_id)
    at, dispositions = first_id - 1, []
    for step, role, more, settled, state in steps:
        at = (at + step) & 0xFFFFFFFF
        last = None if more is None else (at + more) & 0xFFFFFFFF
        dispositions.append(Disposition(role, at, last, settled, state))
    octets = octets_of(dispositions, is_wide=is_wide)
    cut = data.draw(st.integers(0, len(octets)))
    # A buffer that is no `bytes` is read frame by frame.
    expected = single.receive(bytearray(octets))
    parts = [run.receive(octets[:cut]), run.receive(octets[cut:])]
    assert parts[0][0] + parts[1][0] == expected[0]
    assert parts[1][1:3] == expected[1:3]
    assert parts[0][3] + parts[1][3] == expected[3]


def test_a_range_that_ends_before_it_begins_settles_nothing_in_a_run() -> None:
    run, single = Sending(0), Sending(0)
    octets = octets_of(
        [Disposition(True, first, 0, True, Accepted()) for first in (0, 1, 2)], is_wide=False
    )
    assert run.receive(octets) == single.receive(bytearray(octets))
    assert 1 in [delivery_id for delivery_id, _ in run.session.outgoing_unsettled]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.booleans())
def test_changed_bytes_have_the_same_effect(edits: list[tuple[int, int]], is_wide: bool) -> None:
    run, single = Sending(0), Sending(0)
    accepted = [Disposition(True, number, None, True, Accepted()) for number in range(6)]
    octets = bytearray(octets_of(accepted, is_wide=is_wide))
    for at, octet in edits:
        octets[at % len(octets)] = octet
    assert run.receive(bytes(octets)) == single.receive(octets)


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("state", [Accepted(), Released()])
def test_frames_of_successive_deliveries_are_one_disposition(state: Any, is_wide: bool) -> None:
    ids = [(2**32 - 3 + number) & 0xFFFFFFFF for number in range(7)]
    octets = octets_of([Disposition(True, at, None, True, state) for at in ids], is_wide=is_wide)
    frame_bytes = len(octets) // 7
    whole = Disposition(True, ids[0], ids[-1], True, state)
    assert read_run(octets, 0, len(octets), 99, 4_096) == (whole, len(octets), 7)
    part = whole._replace(last=ids[3])
    assert read_run(octets, 0, len(octets), 4, 4_096) == (part, 4 * frame_bytes, 4)
    cut = len(octets) - 1
    assert read_run(octets[:cut], 0, cut, 99, 4_096) == (
        whole._replace(last=ids[5]), 6 * frame_bytes, 6
    )  # fmt: skip
    assert read_run(octets, 0, len(octets), 99, frame_bytes - 1) is None
