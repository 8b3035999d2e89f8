"""A connection that is cut at any frame loses and repeats nothing that was acknowledged."""

from itertools import count
from pathlib import Path

from holdfast.client import AsyncClient
from tests.amqp.broker import amqp_broker
from tests.amqp.exchange import Exchange


async def test_a_connection_cut_at_any_frame_loses_and_repeats_nothing(tmp_path: Path) -> None:
    # A25, A51
    async with amqp_broker(tmp_path) as broker, AsyncClient(broker.url) as http:
        assert broker.amqp_port is not None
        for frames in count(1):
            exchange = Exchange(f"cut-{frames}")
            await exchange.prepare(http)
            is_complete = await exchange.run(broker.amqp_port, frames)
            await exchange.check(broker.amqp_port, http)
            if is_complete:
                break
        assert frames > 30
        assert exchange.is_accepted == [3, 3]
        assert exchange.settled == {0, 2}
