"""A program that uses AMQP: a connection with one session, against a broker in this process."""

from contextlib import AsyncExitStack
from typing import Any, Self

from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.session import Session
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.wire.performatives import Accepted
from holdfast.broker import Broker
from tests.amqp.client import AmqpClient, amqp_client
from tests.amqp.test_listener import port_of


class Program:
    """A connection with one session."""

    def __init__(self, client: AmqpClient, session: Session) -> None:
        self.client, self.session = client, session

    @classmethod
    async def connect(
        cls, stack: AsyncExitStack, broker: Broker, container: str = "me", **sasl: Any
    ) -> Self:
        """Connect until the end of the stack."""
        client = await stack.enter_async_context(
            amqp_client(port_of(broker), ConnectionSettings(container), **sasl)
        )
        return cls(client, await client.session())

    async def take(self, count: int) -> list[tuple[str, bytes]]:
        """Receive and accept messages; return the names of their links, and their bodies."""
        found = await self.client.receive(count)
        for each in found:
            self.session.dispose(each.id, each.id, Accepted(), settled=True)
        self.client.write()
        bodies = [Sections(each.message).body_value() for each in found]
        return [(each.link.name, body) for each, body in zip(found, bodies, strict=True)]

    async def end(self, link: Any, *, closed: bool = True) -> None:
        """Detach a link, and wait for the broker's answer."""
        link.detach(closed=closed)
        await self.client.detached(link)

    async def refused(self, link: Any) -> str:
        """Wait for the detach of a link that was refused; return its condition."""
        assert (link.remote.source if link.role else link.remote.target) is None
        return str((await self.client.detached(link)).condition)
