"""What the threads have read and the loop has not taken yet is bounded."""

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.consumequeue.queue_reading import READS_AT_ONCE, QueueReading


def reading_with(executor: ThreadPoolExecutor) -> QueueReading:
    """Return one that has threads and nothing to read."""
    parts: dict[str, Any] = dict.fromkeys(inspect.signature(QueueReading).parameters)
    return QueueReading(**{**parts, "queues": {}, "cache_bytes": 0, "executor": executor})


async def test_threads_do_not_run_ahead_of_the_loop() -> None:
    begun: list[int] = []
    with ThreadPoolExecutor(4) as executor:
        reading = reading_with(executor)
        reads = [asyncio.create_task(reading.in_thread(lambda: begun.append(1))) for _ in range(50)]
        await asyncio.sleep(0)
        # The loop takes nothing as long as this goes on; the threads end all that they have begun.
        together = threading.Barrier(4, timeout=20)
        for each in [executor.submit(together.wait) for _ in range(4)]:
            each.result()
        assert len(begun) == READS_AT_ONCE
        await asyncio.gather(*reads)
    assert len(begun) == 50


async def test_a_read_that_is_given_up_leaves_its_place_to_the_next() -> None:
    with ThreadPoolExecutor(1) as executor:
        reading = reading_with(executor)
        release = threading.Event()
        stuck = [asyncio.create_task(reading.in_thread(release.wait)) for _ in range(20)]
        await asyncio.sleep(0)
        for each in stuck:
            each.cancel()
        await asyncio.wait(stuck)
        release.set()
        assert await reading.in_thread(lambda: "read") == "read"
