"""The cost of holding: operations of the hold table with 10 and with 100,000 held pulls.

    python -m bench.hold_table [--held 10,100000]

Each figure is the time of one operation; if an operation wakes or expires all pulls, it is the time
per pull. The first and the last column must be similar: a cost that grows with the number of held
pulls would be a defect. Memory is measured for the table alone, and for the service with one
waiting coroutine per pull; HTTP requests and connections are not included.
"""

import argparse
import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from time import perf_counter

from holdfast.consumequeue.topics import QueueKey
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.filters import TagFilter
from holdfast.holdservice.hold_table import TICKS_PER_S, HeldPull, HoldTable
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService

CONFIG = HoldServiceConfig(
    max_held=1_000_000, max_held_per_queue=1_000_000, max_held_per_client=1_000_000
)
CROWDED: QueueKey = (1, 0)
PROBE: QueueKey = (2, 0)
WAIT_S = 300.0  # longer than the simulated time of this benchmark
OPERATIONS = 2000
TAGS = TagFilter(frozenset({"a"}))

Table = HoldTable[None]


def suspend(table: Table, key: QueueKey, offset: int = 0, **options: object) -> HeldPull[None]:
    """Hold one pull. `options` may have `deadline` and `filter`."""
    options = {"deadline": WAIT_S, **options}
    return table.suspend({key: offset}, client="bench", ticket=None, **options)  # type: ignore[arg-type]


def crowded_table(held: int) -> Table:
    """Return a table with `held` pulls on one queue; their deadlines spread over a minute."""
    table = Table(CONFIG)
    for number in range(held):
        suspend(table, CROWDED, deadline=WAIT_S + 60 * number / held)
    return table


def spread_table(held: int) -> Table:
    """Return a table with `held` pulls, each on its own queue."""
    table = Table(CONFIG)
    for number in range(held):
        suspend(table, (3, number), deadline=WAIT_S + 60 * number / held)
    return table


def per_operation_us(run: Callable[[], None], count: int) -> float:
    """Return the time per operation of `run`, which does `count` operations: the shortest of three
    runs."""
    best = min(_timed(run) for _ in range(3))
    return best / count * 1e6


def _timed(run: Callable[[], None]) -> float:
    gc.collect()
    gc.disable()
    started = perf_counter()
    run()
    elapsed = perf_counter() - started
    gc.enable()
    return elapsed


def suspend_and_cancel(table: Table) -> float:
    def run() -> None:
        for _ in range(OPERATIONS):
            table.cancel(suspend(table, CROWDED))

    return per_operation_us(run, OPERATIONS)


def arrival_for_one(table: Table) -> float:
    """Measure an arrival that wakes the only pull of a queue."""
    offset = 0

    def run() -> None:
        nonlocal offset
        for _ in range(OPERATIONS):
            suspend(table, PROBE, offset)
            offset += 1
            table.message_arriving(PROBE, offset)
            assert len(_wake(table)) == 1

    return per_operation_us(run, OPERATIONS)


def arrival_for_nobody(table: Table) -> float:
    """Measure an arrival on a queue whose pulls share one filter that rejects the message."""
    max_offset = 0

    def run() -> None:
        nonlocal max_offset
        for _ in range(OPERATIONS):
            max_offset += 1
            table.message_arriving(CROWDED, max_offset)
            assert not _wake(table)

    return per_operation_us(run, OPERATIONS)


def expiry(table: Table) -> float:
    """Measure the expiry of one pull whose deadline is before all others."""
    now = 0.0

    def run() -> None:
        nonlocal now
        for _ in range(OPERATIONS):
            suspend(table, PROBE, deadline=now)
            now += 1 / TICKS_PER_S
            assert len(table.expire(now)) == 1

    return per_operation_us(run, OPERATIONS)


def wake_everybody(held: int) -> float:
    """Measure one arrival that wakes all pulls of a queue, per pull."""
    tables = [crowded_table(held) for _ in range(3)]

    def run() -> None:
        table = tables.pop()
        table.message_arriving(CROWDED, 1)
        assert len(_wake(table)) == held

    return per_operation_us(run, held)


def expire_everybody(held: int) -> float:
    """Measure the expiry of all pulls at once, per pull."""
    tables = [crowded_table(held) for _ in range(3)]

    def run() -> None:
        assert len(tables.pop().expire(1000.0)) == held

    return per_operation_us(run, held)


def _wake(table: Table) -> list[HeldPull[None]]:
    woken = []
    while table.has_arrivals:
        woken += table.wake_some(lambda key, start, end, filter: end)
    return woken


def filtered_table(held: int) -> Table:
    table = Table(CONFIG)
    for _ in range(held):
        suspend(table, CROWDED, filter=TAGS)
    return table


def table_bytes(make: Callable[[int], Table], held: int) -> float:
    """Return the memory of a held pull in the table."""
    gc.collect()
    tracemalloc.start()
    table = make(held)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(table) == held
    return size / held


async def service_bytes(held: int) -> float:
    """Return the memory of a held pull in the service: table, future, task and coroutine."""
    service = PullRequestHoldService(
        CONFIG, max_offset=lambda key: 0, scan=lambda key, start, end, filter: end
    )
    await service.start()
    gc.collect()
    tracemalloc.start()
    pulls = [
        asyncio.create_task(service.hold({CROWDED: 0}, wait_s=60.0, client="bench"))
        for _ in range(held)
    ]
    while service.stats().held < held:
        await asyncio.sleep(0)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    await service.stop()
    await asyncio.gather(*pulls)
    return size / held


def main() -> None:
    """Print the table of figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--held", default="10,100000", help="how many pulls are held, by commas")
    counts = [int(count) for count in parser.parse_args().held.split(",")]
    rows: list[tuple[str, str, Callable[[int], float]]] = [
        ("suspend and cancel", "us", lambda held: suspend_and_cancel(crowded_table(held))),
        ("suspend, arrival that wakes 1", "us", lambda held: arrival_for_one(crowded_table(held))),
        ("... beside as many queues", "us", lambda held: arrival_for_one(spread_table(held))),
        (
            "arrival that a filter passes over",
            "us",
            lambda h: arrival_for_nobody(filtered_table(h)),
        ),
        ("suspend, expiry of 1", "us", lambda held: expiry(crowded_table(held))),
        ("arrival that wakes all, a pull", "us", wake_everybody),
        ("expiry of all at once, a pull", "us", expire_everybody),
        ("memory in the table, one queue", "B", lambda held: table_bytes(crowded_table, held)),
        ("memory in the table, own queues", "B", lambda held: table_bytes(spread_table, held)),
        ("memory in the service, with task", "B", lambda held: asyncio.run(service_bytes(held))),
    ]
    print(f"{'':36}" + "".join(f"{count:>12,} held" for count in counts))
    for name, unit, measure in rows:
        figures = "".join(f"{measure(count):>14,.2f} {unit:<2}" for count in counts)
        print(f"{name:36}{figures}")


if __name__ == "__main__":
    main()
