"""Clients that stop at any byte of the handshake: the memory of the broker stays flat."""

import asyncio
import re
from contextlib import suppress
from pathlib import Path

from holdfast.amqp.wire.performatives import Begin, Open
from holdfast.free_port import free_port
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.amqp.client import TIMEOUT_S, amqp_client
from tests.amqp.test_listener import raw_frames

#: The connections of one round; there are four rounds.
CONNECTIONS = 2_500
#: How much the memory may differ between the first and the fourth round. On a busy machine more
#: connections are open at once, and the allocator keeps up to 5 MiB. A connection that stayed would
#: take 3 KiB, and the connections of three rounds 22 MiB: half of that tells the two apart.
SLACK_KIB = 11 * 1024


def memory_kib(pid: int) -> int:
    """Return the anonymous memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found
    return int(found[1])


async def stop_at_every_byte(port: int) -> None:
    """Open connections that send a part of the handshake; wait until the broker has ended all."""
    data = raw_frames([(0, Open("c")), (0, Begin(None, 0, 9, 9))])
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    for index, (_, writer) in enumerate(opened):
        writer.write(data[: index % (len(data) - 40)])
    async with amqp_client(port) as other:  # others are served
        await other.session()
    async with asyncio.timeout(TIMEOUT_S):
        for reader, _ in opened:
            with suppress(ConnectionError):
                await reader.read()
    for _, writer in opened:
        writer.close()


def test_connections_that_stop_in_the_handshake_leave_no_memory(tmp_path: Path) -> None:
    port = free_port()
    arguments = (
        *TEST_ARGUMENTS,
        *("--amqp-port", str(port), "--amqp-handshake-timeout-ms", "300"),
    )
    with RunningBroker(tmp_path / "data", arguments) as broker:
        used = []
        for _ in range(4):
            asyncio.run(stop_at_every_byte(port))
            used.append(memory_kib(broker.pid))
    assert used[-1] < used[0] + SLACK_KIB, used
