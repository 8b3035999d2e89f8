"""Random acts of a client on links with real groups and topics, whose bytes arrive late or early.

For any order of grants, drains, settlements, windows and publishes, these rules hold: No link gets
more messages than its credit (the client's engine would detach it). Both ends have the same credit
once no bytes are in flight (A53). Each message is accepted once. Messages arrive in order, except
messages that are delivered again.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.amqp.engine.events import Closed, Detached, Ended
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.wire.performatives import Accepted, Modified, Released
from holdfast.amqp.wire.types import Described, Symbol
from tests.amqp.nodes.linked import Client, Receiver, body_of, linked
from tests.support.servers.group_broker import GroupBroker, turns
from tests.support.storage.stored import until

OUTCOMES = [Accepted(), Accepted(), Released(), Modified(delivery_failed=True)]
LINKS = st.integers(0, 1)
ACT = st.one_of(
    st.tuples(st.just("grant"), LINKS, st.sampled_from([0, 1, 2, 5, 300, 4_000_000_000])),
    st.tuples(st.just("drain"), LINKS, st.sampled_from([0, 1, 3, 10])),
    st.tuples(
        st.just("settle"), LINKS, st.integers(1, 4), st.sampled_from(OUTCOMES), st.booleans()
    ),
    st.tuples(st.just("publish"), st.integers(1, 5)),
    st.tuples(st.just("window"), st.sampled_from([0, 1, 3, 1_000])),
    st.tuples(st.just("turns"), st.integers(1, 6)),
)


class _Run:
    def __init__(self, broker: GroupBroker, client: Client, receivers: list[Receiver]) -> None:
        self.broker, self.client, self.receivers = broker, client, receivers
        self.session = receivers[0].session
        self.published = 0
        self.held: list[list[Any]] = [[], []]
        self.accepted: list[list[str]] = [[], []]
        self.first_seen: list[list[int]] = [[], []]

    def collect(self) -> None:
        for index, receiver in enumerate(self.receivers):
            for delivery in receiver.take():
                self.held[index].append(delivery)
                if Sections(delivery.message).annotations()["x-opt-attempt"] == 1:
                    self.first_seen[index].append(int(body_of(delivery)))

    async def act(self, act: tuple[Any, ...]) -> None:
        match act:
            case ("grant", index, credit):
                self.receivers[index].link.grant(credit)
            case ("drain", index, credit):
                self.receivers[index].link.grant(credit, drain=True)
            case ("settle", index, count, outcome, is_settled):
                self.settle(index, count, outcome, is_settled)
            case ("publish", count):
                await self.publish(count)
            case ("window", size):
                self.session.set_incoming_window(size)
            case ("turns", count):
                self.client.pump()
                await turns(count)
        self.collect()

    def settle(self, index: int, count: int, outcome: Any, is_settled: bool) -> None:
        held, self.held[index] = self.held[index][:count], self.held[index][count:]
        for each in held:
            self.session.dispose(each.id, each.id, outcome, settled=is_settled)
            if isinstance(outcome, Accepted):
                self.accepted[index].append(body_of(each))

    async def publish(self, count: int) -> None:
        await self.broker.publish([str(self.published + each) for each in range(count)])
        self.published += count

    async def finish(self, wanted: list[int]) -> None:
        """Grant credit for all messages, accept them, and compare. `wanted` has the numbers of all
        messages that the links get together."""
        self.session.set_incoming_window(10_000)
        for receiver in self.receivers:
            receiver.link.grant(10_000)

        def has_all() -> bool:
            self.collect()
            for index in range(len(self.receivers)):
                self.settle(index, len(self.held[index]), Accepted(), True)
            self.client.pump()
            return len(self.accepted[0]) + len(self.accepted[1]) >= len(wanted)

        await until(has_all)
        await turns(5)
        has_all()
        assert sorted(map(int, [*self.accepted[0], *self.accepted[1]])) == sorted(wanted)
        for seen in self.first_seen:
            assert seen == sorted(seen)
        for receiver in self.receivers:
            receiver.grant(10)
            await receiver.rest()
            ends = [
                link for session in self.client.pair.server.connection.sessions
                for link in session.links if link.name == receiver.link.name
            ]  # fmt: skip
            assert isinstance(ends[0], OutgoingLink)
            assert ends[0].credit == receiver.link.credit == 10
        bad = (Detached, Ended, Closed)
        assert not [each for each in self.client.pair.client.events if isinstance(each, bad)]
        assert not [each for each in self.client.pair.server.events if isinstance(each, bad)]


async def _play(acts: list[tuple[Any, ...]], address: str, **fields: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with linked(Path(folder)) as (broker, connect):
            await broker.topic()
            await broker.group("g", max_attempts=0)
            client = connect()
            session = client.session(1_000)
            receivers = [
                await client.attach(address, session, f"in {index}", **fields) for index in range(2)
            ]
            run = _Run(broker, client, receivers)
            await run.publish(5)
            for act in acts:
                await run.act(act)
            numbers = list(range(run.published))
            await run.finish(numbers if address == "/groups/g" else [*numbers, *numbers])


@given(acts=st.lists(ACT, max_size=40))
@settings(max_examples=25, deadline=None)
def test_any_history_of_a_group_accepts_each_message_once(acts: list[tuple[Any, ...]]) -> None:
    # A21, A22, A25, A51, A53, Q1, Q4
    asyncio.run(_play(acts, "/groups/g"))


@given(acts=st.lists(ACT, max_size=40))
@settings(max_examples=25, deadline=None)
def test_any_history_of_copies_accepts_each_message_once_per_link(
    acts: list[tuple[Any, ...]],
) -> None:
    # A21, A22, A25, A51, A53
    first = Described(Symbol("rabbitmq:stream-offset-spec"), "first")
    asyncio.run(_play(acts, "/topics/t", filter={"s": first}))
