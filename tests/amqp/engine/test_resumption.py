"""A sender resumes a link that was lost: the states of the deliveries at both ends."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import Attached, Disposed, Event, Received, SenderSettled
from holdfast.amqp.engine.incoming_link import Delivery, IncomingLink
from holdfast.amqp.engine.resumption import Resumable, fit_unsettled
from holdfast.amqp.wire.performatives import (
    Accepted,
    Attach,
    Rejected,
    Source,
    Target,
    encode_composite,
)
from tests.amqp.engine.pair import Pair

FIRST, SECOND = 0, 1


def test_what_the_sender_has_settled_is_forgotten_when_it_attaches() -> None:
    known = Resumable()
    for tag, state in ((b"1", Accepted()), (b"2", Rejected()), (b"3", None)):
        known.keep(tag, state)
    known.sender_attached({b"1": None}, is_incomplete=True)
    assert list(known.states) == [b"1", b"2", b"3"]
    known.sender_attached({b"1": None, b"3": Accepted(), b"4": None}, is_incomplete=False)
    assert known.states == {b"1": Accepted(), b"3": None}
    assert known.take(b"1") == (True, Accepted())
    assert known.take(b"1") == (False, None)
    known.forget(b"3")
    known.forget(b"3")
    assert len(known) == 0
    known.keep(b"5")
    known.sender_attached(None, is_incomplete=False)
    assert len(known) == 0


@pytest.mark.parametrize("count", [0, 1, 5, 40, 500])
@pytest.mark.parametrize("room", [512, 700, 4096])
def test_a_map_that_is_too_large_for_a_frame_is_incomplete(count: int, room: int) -> None:
    states = {b"%05d" % number: Accepted() for number in range(count)}
    whole = Attach("link", 0, True, 2, 1, Source("here"), Target("there"), states)
    attach = fit_unsettled(whole, room)
    assert len(encode_composite(attach)) + 8 <= room
    if attach.incomplete_unsettled:
        assert attach.unsettled == dict(list(states.items())[: len(attach.unsettled or ())])
        more = whole._replace(
            unsettled=dict(list(states.items())[: len(attach.unsettled or ()) + 2]),
            incomplete_unsettled=True,
        )
        assert len(encode_composite(more)) + 8 > room  # at most one more would have fitted
    else:
        assert attach == whole
    assert fit_unsettled(whole._replace(unsettled=None), 10).incomplete_unsettled is False


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_resumed_delivery_has_its_tag_and_a_new_id(is_settled: bool) -> None:
    pair = Pair()
    pair.pump()
    session, remote_session = pair.begun()
    link, remote = pair.sender(session)
    remote.grant(3)
    pair.pump()
    pair.client.sent = []
    assert link.send(b"new") == 0
    assert link.resume(b"old", Accepted(), settled=is_settled) == 1
    pair.pump()
    (_, transfer) = pair.client.sent
    assert (transfer.resume, transfer.settled or False) == (True, is_settled)
    (new, resumed) = [each for event in pair.server.take(Received) for each in event.deliveries]
    assert (new.is_resumed, new.message) == (False, b"new")
    assert (resumed.is_resumed, resumed.id, resumed.tag) == (True, 1, b"old")
    assert (resumed.state, resumed.is_settled, resumed.message) == (Accepted(), is_settled, b"")
    assert remote.credit == link.credit == 1
    assert len(remote_session.incoming_unsettled) == len(session.outgoing_unsettled)
    assert len(session.outgoing_unsettled) == 1 + (not is_settled)


class _World:
    """A sender and a receiver whose connection is cut again and again.

    The receiver stores messages some time after they arrived, also after the connection is lost,
    and keeps states in a Resumable. The sender uses a tag again as soon as the specification allows
    it: with rcv-settle-mode first, when the receiver has settled the delivery.
    """

    def __init__(self, mode: int, random: Random) -> None:
        self.mode, self.random = mode, random
        self.stored: list[int] = []
        self.next_number = self.next_tag = 0
        self.free_tags: list[bytes] = []
        self.unsettled: dict[bytes, int] = {}
        """Tag -> the message that the sender has not settled."""
        self.resumable = Resumable()
        self.connect()

    # ---- The connection

    def connect(self) -> None:
        """Connect, attach the link with the map of the sender, and resume."""
        self.pair = pair = Pair(server=ConnectionSettings("server", incoming_window=100))
        pair.server.on_event = self._at_receiver
        pair.client.on_event = self._at_sender
        pair.pump()
        self.wires = [b"", b""]
        self.by_id: dict[int, bytes] = {}
        self.arrived: list[Delivery] = []
        self.awaited: dict[int, tuple[bytes, Any]] = {}
        session = self.session = pair.client.connection.begin()
        unsettled = dict.fromkeys(self.unsettled) or None
        self.resumed: dict[bytes, Any] | None = None
        self.link = session.sender(
            "out",
            lambda handle: Attach(
                "out", handle, False, 0, self.mode, Source("here"), Target("there"),
                unsettled=unsettled, initial_delivery_count=0,
            ),
        )  # fmt: skip
        self.to_send = list(self.unsettled)

    def cut(self) -> None:
        """Lose the connection with all bytes that are on their way."""
        for tag, state in self.awaited.values():
            self.resumable.keep(tag, state)
        pending, self.arrived = self.arrived, []
        for each in pending:  # the publishes go on; the next attach waits for them
            self.stored.append(int(each.message))
            self.resumable.keep(each.tag, Accepted())
        self.connect()

    def deliver(self, to_server: bool, size: int) -> None:
        """Pass at most `size` bytes in one direction."""
        ends = (self.pair.client, self.pair.server)
        source, target = ends if to_server else ends[::-1]
        data = self.wires[to_server] + source.take_output()
        self.wires[to_server] = data[size:]
        if data[:size]:
            target.receive(data[:size])

    # ---- The receiver

    def _at_receiver(self, event: Event) -> bool:
        match event:
            case Attached(IncomingLink() as link, False):
                remote = link.remote
                assert remote is not None
                self.resumable.sender_attached(
                    remote.unsettled, is_incomplete=remote.incomplete_unsettled
                )
                link.send_attach(
                    Attach(
                        link.name, link.handle, True, 0, self.mode, remote.source, remote.target,
                        unsettled=dict(self.resumable.states) or None,
                    )
                )  # fmt: skip
                link.grant(50)
                self.remote = link
            case Received(_, deliveries):
                self.remote.grant(50)
                for each in deliveries:
                    self._arrived(each)
            case SenderSettled(_, settled):
                for delivery_id, _ in settled:
                    self.awaited.pop(delivery_id, None)
            case _:
                return False
        return True

    def _arrived(self, delivery: Delivery) -> None:
        if not delivery.is_resumed:
            self.arrived.append(delivery)
            return
        is_known, state = self.resumable.take(delivery.tag)
        if is_known and not delivery.is_settled:
            self._dispose(delivery, state)

    def store(self) -> None:
        """Store the oldest message that has arrived."""
        if self.arrived:
            delivery = self.arrived.pop(0)
            self.stored.append(int(delivery.message))
            self._dispose(delivery, Accepted())

    def _dispose(self, delivery: Delivery, state: Any) -> None:
        (session,) = self.pair.server.connection.sessions
        session.dispose(delivery.id, delivery.id, state, settled=self.mode == FIRST)
        if self.mode == SECOND:
            self.awaited[delivery.id] = delivery.tag, state

    # ---- The sender

    def _at_sender(self, event: Event) -> bool:
        match event:
            case Attached(link, True) if link is self.link:
                self.resumed = (link.remote.unsettled if link.remote else None) or {}
            case Disposed(session, deliveries, state, is_settled):
                for delivery_id, _ in deliveries:
                    self._settle(self.by_id.pop(delivery_id))
                    if not is_settled:
                        session.dispose(delivery_id, delivery_id, state, settled=True, role=False)
            case _:
                return False
        return True

    def _settle(self, tag: bytes) -> None:
        del self.unsettled[tag]
        if self.mode == FIRST:
            self.free_tags.append(tag)

    def send(self) -> None:
        """Resume a delivery, or send it again because the receiver does not know it, or send a new
        message."""
        if self.resumed is None or not self.link.sendable:
            return
        if self.to_send:
            tag = self.to_send.pop(0)
            if tag in self.resumed:
                is_settled = self.random.random() < 0.5
                delivery_id = self.link.resume(tag, None, settled=is_settled)
                if is_settled:
                    del self.unsettled[tag]  # the tag is not free: the other end may not know
                else:
                    self.by_id[delivery_id] = tag
                return
        elif len(self.unsettled) < 8:
            tag = self.free_tags.pop() if self.free_tags else self._new_tag()
            self.unsettled[tag] = self.next_number
            self.next_number += 1
        else:
            return
        self.by_id[self.link.send(b"%d" % self.unsettled[tag], tag=tag)] = tag

    def _new_tag(self) -> bytes:
        self.next_tag += 1
        return b"%d" % self.next_tag

    # ---- The end

    def finish(self) -> None:
        """Let both ends come to rest; nothing may be left."""
        for _ in range(200):
            self.deliver(True, 1 << 20)
            self.deliver(False, 1 << 20)
            self.store()
            if self.to_send:
                self.send()
        assert not self.unsettled
        assert not self.resumable.states
        assert not self.awaited


@settings(max_examples=150, deadline=None)
@given(mode=st.sampled_from([FIRST, SECOND]), seed=st.integers(0, 2**32 - 1))
def test_a_sender_that_resumes_loses_nothing_and_in_mode_second_repeats_nothing(
    mode: int, seed: int
) -> None:
    random = Random(seed)
    world = _World(mode, random)
    for _ in range(random.randint(1, 300)):
        match random.choices(range(5), (8, 5, 5, 6, 1))[0]:
            case 0:
                world.send()
            case 1 | 2 as side:
                world.deliver(side == 1, random.choice((1, 20, 100, 1 << 20)))
            case 3:
                world.store()
            case _:
                world.cut()
    world.finish()
    numbers = list(range(world.next_number))
    assert sorted(set(world.stored)) == numbers
    if mode == SECOND:
        assert sorted(world.stored) == numbers


def test_the_map_of_an_attach_arrives_with_its_states() -> None:
    pair = Pair()
    pair.pump()
    session, _ = pair.begun()
    pair.client.sent = []
    pair.sender(session, unsettled={b"t1": None, b"t2": Accepted()}, incomplete_unsettled=True)
    (attach,) = [each for each in pair.client.sent if isinstance(each, Attach)]
    assert list(attach.unsettled or ()) == [b"t1", b"t2"]
    assert attach.incomplete_unsettled
