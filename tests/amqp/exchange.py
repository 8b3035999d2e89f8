"""An exchange whose connection is cut at a given frame, and what must hold after the cut."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from holdfast.amqp.engine.events import SenderSettled
from holdfast.amqp.wire.performatives import Accepted, Rejected, Released
from holdfast.client import AsyncClient
from tests.amqp.client import AmqpClient, amqp_client, data_message

COUNT = 6
_HEADER = b"AMQP"


class CutClient(AmqpClient):
    """A client whose connection is lost after a number of frames, of both directions together."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.frames_left = frames
        self._arrived = b""

    def _pass(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the complete frames that may pass, and what follows them."""
        at = 0
        while len(data) - at >= 8 and self.frames_left > 0:
            is_header = data.startswith(_HEADER, at)
            size = 8 if is_header else int.from_bytes(data[at : at + 4], "big")
            if len(data) - at < size:
                break
            at += size
            self.frames_left -= 1
        return data[:at], data[at:]

    def data_received(self, data: bytes) -> None:
        if self.frames_left > 0:
            passed, self._arrived = self._pass(self._arrived + data)
            super().data_received(passed)
        self._cut()

    def write(self) -> None:
        output = self.engine.take_output()
        if output and self.frames_left > 0:
            self.transport.write(self._pass(output)[0])
        self._cut()

    def _cut(self) -> None:
        if self.frames_left <= 0:
            self.transport.close()


async def run_until_cut(
    port: int, frames: int, steps: Callable[[CutClient], Coroutine[Any, Any, None]]
) -> tuple[CutClient, bool]:
    """Connect, and do the steps until the connection is lost after `frames` frames. Return the
    client, and whether the steps were complete before."""
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: CutClient(frames), "127.0.0.1", port)
    doing = asyncio.create_task(steps(client))
    lost = asyncio.create_task(client.lost())
    await asyncio.wait([doing, lost], return_when=asyncio.FIRST_COMPLETED)
    is_complete = doing.done()
    for task in (doing, lost):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    client.transport.abort()
    return client, is_complete


async def stored_bodies(http: AsyncClient, topic: str) -> list[bytes]:
    """Return the bodies of all messages of a topic."""
    return [each.body async for each in http.pull(topic, start="earliest", follow=False)]


class Exchange:
    """Publishes over two links, then receives from a group and settles; each step is confirmed."""

    def __init__(self, name: str) -> None:
        self.topics = [f"{name}-0", f"{name}-1"]
        self.source, self.group = f"{name}-source", f"{name}-group"
        self.is_accepted = [0, 0]
        """How many messages of each topic the broker accepted."""
        self.settling: set[int] = set()
        """Messages that the client accepted or rejected."""
        self.settled: set[int] = set()
        """Those of them that the broker has settled."""

    async def prepare(self, http: AsyncClient) -> None:
        """Make the topics and the group, and publish what is to be received."""
        for topic in (*self.topics, self.source):
            await http.create_topic(topic, queues=1)
        await http.create_group(self.group, self.source, start="earliest")
        for number in range(COUNT):
            await http.publish(self.source, str(number))

    async def run(self, port: int, frames: int) -> bool:
        """Do the exchange; return whether it was complete before the connection was cut."""
        client, is_complete = await run_until_cut(port, frames, self._steps)
        self._note(client)
        return is_complete

    def _note(self, client: AmqpClient) -> None:
        for event in client.events:
            if isinstance(event, SenderSettled):
                numbers = {int(each.message[-1:]) for _, each in event.deliveries}
                self.settled |= numbers & self.settling

    async def _steps(self, client: AmqpClient) -> None:
        await client.until(lambda: client.engine.remote)
        session = await client.session()
        links = [await client.sender(session, topic) for topic in self.topics]
        for number in range(COUNT // 2):
            for index, link in enumerate(links):
                ids = await client.send(link, data_message(b"%d" % number))
                outcomes = await client.outcomes(ids)
                assert outcomes == {ids[0]: Accepted()}
                self.is_accepted[index] += 1
        await client.receiver(session, f"/groups/{self.group}", credit=4, rcv_settle_mode=1)
        for delivery, state in zip(
            await client.receive(4), (Accepted(), Released(), Rejected(), None), strict=True
        ):
            if state is None:
                continue
            if not isinstance(state, Released):
                self.settling.add(int(delivery.message[-1:]))
            session.dispose(delivery.id, delivery.id, state, settled=False)
            left = len(session.incoming_unsettled) - 1

            def is_settled(left: int = left) -> bool:
                return len(session.incoming_unsettled) <= left

            await client.until(is_settled, "settlement")

    async def check(self, port: int, http: AsyncClient) -> None:
        """Assert that nothing acknowledged is lost or comes again, and the rest is in its place."""
        for topic, accepted in zip(self.topics, self.is_accepted, strict=True):
            stored = [*map(int, await stored_bodies(http, topic))]
            assert stored == list(range(len(stored)))
            assert len(stored) >= accepted
        everything = set(range(COUNT))
        wanted = everything - self.settling
        async with amqp_client(port) as client:
            session = await client.session()
            await client.receiver(session, f"/groups/{self.group}", credit=COUNT)
            got: list[int] = []
            while not wanted <= set(got):
                got += [int(each.message[-1:]) for each in await client.receive(1)]
        assert got == sorted(set(got))
        assert not set(got) & self.settled
