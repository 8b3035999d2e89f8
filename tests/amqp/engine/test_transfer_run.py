"""Transfer frames that are read in a run have the same effect as those that are read one by one."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import Received
from holdfast.amqp.engine.link import LinkState
from holdfast.amqp.wire.frames import frame
from holdfast.amqp.wire.performatives import Accepted, Transfer, encode_composite
from tests.amqp.engine.pair import Pair, performatives


class Receiving:
    """A server with two links, each with this credit. It records deliveries and output."""

    def __init__(self, window: int, credit: int, max_message_bytes: int) -> None:
        self.pair = Pair(server=ConnectionSettings("server", 4_096, incoming_window=window))
        self.pair.pump()
        self.session, self.remote_session = self.pair.begun()
        self.links = [self.pair.sender(self.session, name)[1] for name in ("a", "b")]
        for link in self.links:
            link.max_message_bytes = max_message_bytes
            link.grant(credit)
        self.pair.pump()

    def receive(self, octets: bytes | bytearray) -> list[Any]:
        self.pair.server.receive(octets)  # type: ignore[arg-type]
        deliveries = [
            (each.link.name, each.id, each.tag, each.format, each.message, each.is_settled,
             each.state, each.rcv_settle_mode)
            for event in self.pair.server.take(Received)
            for each in event.deliveries
        ]  # fmt: skip
        events = [(type(each), str(getattr(each, "error", ""))) for each in self.pair.server.events]
        windows = self.remote_session.windows
        return [
            deliveries,
            events,
            self.pair.server.connection.take_output(),
            [(link.credit, link.state, link.unfinished_bytes) for link in self.links],
            (windows.next_incoming_id, windows.incoming_left, self.remote_session.state),
            [(at, each.message) for at, each in self.remote_session.incoming_unsettled],
        ]


_FLAG = st.sampled_from([None, False, True])
_RARE = st.sampled_from([None] * 8 + [True, False])
TRANSFERS = st.builds(
    Transfer,
    handle=st.sampled_from([0] * 8 + [1] * 4 + [7, 300]),
    delivery_tag=st.sampled_from([b"tag"] * 8 + [b"", bytes(32), bytes(33), None]),
    message_format=st.sampled_from([0] * 8 + [None, 1]),
    settled=_FLAG,
    more=_RARE.map(bool),
    rcv_settle_mode=st.sampled_from([None] * 9 + [1]),
    state=st.sampled_from([None] * 9 + [Accepted()]),
    resume=_RARE.map(bool),
    aborted=_RARE.map(bool),
    batchable=_FLAG.map(bool),
)
FRAMES = st.lists(st.tuples(TRANSFERS, st.binary(max_size=40)), max_size=12)


def octets_of(
    channel: int, transfers: list[tuple[Transfer, bytes]], first_id: int, *, is_wide: bool = False
) -> bytes:
    """Return the frames. With `is_wide`, each list has its size and its count in four bytes, as
    some clients send it."""
    found = []
    for number, (each, payload) in enumerate(transfers):
        performative = encode_composite(each._replace(delivery_id=first_id + number))
        if is_wide:
            assert performative[3] == 0xC0
            size, count = performative[4] + 3, performative[5]
            head = b"%b\xd0%b%b" % (
                performative[:3],
                size.to_bytes(4, "big"),
                count.to_bytes(4, "big"),
            )
            performative = head + performative[6:]
        found.append(frame(channel, performative + payload))
    return b"".join(found)


@settings(deadline=None)
@given(
    FRAMES,
    st.sampled_from([0, 250, 70_000]),
    st.tuples(st.integers(1, 9), st.integers(0, 9), st.sampled_from([0, 20])),
    st.booleans(),
    st.data(),
)
def test_a_run_has_the_effect_of_its_frames(
    transfers: list[tuple[Transfer, bytes]],
    first_id: int,
    limits: tuple[int, int, int],
    is_wide: bool,
    data: st.DataObject,
) -> None:
    run, single = Receiving(*limits), Receiving(*limits)
    octets = octets_of(run.session.channel, transfers, first_id, is_wide=is_wide)
    cut = data.draw(st.integers(0, len(octets)))
    # A buffer that is no `bytes` is read frame by frame.
    expected = single.receive(bytearray(octets))
    parts = [run.receive(octets[:cut]), run.receive(octets[cut:])]
    assert parts[0][0] + parts[1][0] == expected[0]
    assert parts[1][1] == expected[1]
    assert parts[0][2] + parts[1][2] == expected[2]
    assert parts[1][3:] == expected[3:]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.booleans())
def test_changed_bytes_have_the_same_effect(edits: list[tuple[int, int]], is_wide: bool) -> None:
    run, single = Receiving(100, 100, 0), Receiving(100, 100, 0)
    transfers = [(Transfer(0, delivery_tag=b"t", message_format=0, settled=False), b"body")] * 5
    octets = bytearray(octets_of(run.session.channel, transfers, 0, is_wide=is_wide))
    for at, octet in edits:
        octets[at % len(octets)] = octet
    assert run.receive(bytes(octets)) == single.receive(octets)


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("settled", [None, False, True])
def test_frames_of_one_form_are_read_in_one_run(settled: bool | None, is_wide: bool) -> None:
    receiving = Receiving(100, 100, 0)
    link, session = receiving.links[0], receiving.remote_session
    transfers = [(Transfer(0, delivery_tag=b"t", message_format=0, settled=settled), bytes(9))] * 7
    octets = octets_of(receiving.session.channel, transfers, 0, is_wide=is_wide)
    events: list[Any] = []
    assert session.run_arrived(octets, 0, len(octets), 9, 4_096, events) == (len(octets), 7)
    assert [(each.link, len(each.deliveries)) for each in events] == [(link, 7)]


@pytest.mark.parametrize(("window", "each"), [(1, 1), (2, 1), (7, 4), (400, 200)])
def test_the_window_is_announced_again_at_half_of_it(window: int, each: int) -> None:  # A46
    run, single = Receiving(window, 1_500, 0), Receiving(window, 1_500, 0)
    transfers = [(Transfer(0, delivery_tag=b"t", message_format=0, settled=True), b"x")] * 1_050
    octets = octets_of(run.session.channel, transfers, 0)
    found = run.receive(octets)
    assert found == single.receive(bytearray(octets))
    assert len(found[0]) == 1_050
    assert run.links[0].state is LinkState.ATTACHED
    announced = [(flow.next_incoming_id, flow.incoming_window) for flow in performatives(found[2])]
    assert announced == [(count, window) for count in range(each, 1_051, each)]
