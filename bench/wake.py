"""W5 beside Redis in three situations: at 1,000 messages/s, with a sync for each message, and cold.

    python -m bench.wake [--json] [--rounds 5] [--messages 3000] [--fsync-messages 900]
                         [--cold-messages 20]

A producer process publishes 100 bytes at a fixed rate with a real client; a consumer process waits
in a held pull, or in XREAD BLOCK (redis-py with hiredis). `cold` is one message a second, so the
code of the server is no longer in the processor's caches. The systems take turns in each round, and
the bars are ratios to Redis in the same round. `fsync` uses Redis's `appendfsync always`. Needs
Redis: run bench/peers/install.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from bench.harness import arguments
from bench.peers.system import System, running
from bench.peers.systems.holdfast import Holdfast
from bench.peers.systems.redis import RedisStreams
from bench.peers.workload import Run
from bench.rows import TIMES, Row, report

_SHARES = {"p50": 0.5, "p99": 0.99}
_BODY_BYTES = 100
_UNIT = "ms"
#: The bar of the broker's processor time for a message at 1,000/s that wakes a pull.
_MOST_BROKER_US = 400


@dataclass(frozen=True)
class Situation:
    """A rate of publishes, and the bars of its percentiles as multiples of those of Redis."""

    name: str
    durability: str
    rate: int
    messages: int
    bars: dict[str, float]


def main() -> None:
    """Measure and print."""
    options = arguments(
        __doc__ or "", rounds=5, messages=3000, fsync_messages=900, cold_messages=20
    )
    situations = (
        Situation("1,000/s", "written", 1000, options.messages, {"p50": 2.5, "p99": 2.5}),
        Situation("300/s", "fsync", 300, options.fsync_messages, {"p50": 1.8}),
        Situation("cold, 1/s", "written", 1, options.cold_messages, {"p50": 3}),
    )
    found = itertools.chain.from_iterable(rows(each, options.rounds) for each in situations)
    report(found, as_json=options.json)


def rows(situation: Situation, rounds: int) -> Iterator[Row]:
    """Measure one situation; yield the latencies of both systems, and their ratios."""
    systems: tuple[System, System] = (Holdfast(), RedisStreams())
    for each in systems:
        each.check()
    found = {
        (each.name, share): _row(situation, f"{each.name}, {share}", _UNIT)
        for each in systems
        for share in _SHARES
    }
    with ExitStack() as stack:
        runs = {
            each.name: Run(
                stack.enter_context(running(each, situation.durability)), situation.durability, {}
            )
            for each in systems
        }
        for _ in range(rounds):
            for name, run in runs.items():
                _measure(run, situation, {share: found[name, share] for share in _SHARES})
    yield from found.values()
    ours, theirs = (each.name for each in systems)
    for share in _SHARES:
        pairs = zip(found[ours, share].values, found[theirs, share].values, strict=True)
        ratio = _row(situation, f"{share} beside {theirs}", TIMES)
        ratio.values, ratio.at_most = [a / b for a, b in pairs], situation.bars.get(share)
        yield ratio
    spent = _row(situation, "broker's processor time a message", "us")
    spent.values = found[ours, "p50"].broker_us
    spent.at_most = _MOST_BROKER_US if situation.rate == 1000 else None
    yield spent


def _measure(run: Run, situation: Situation, into: dict[str, Row]) -> None:
    measured = run.load(
        "latency",
        topic=run.topic(),
        messages=situation.messages,
        body_bytes=_BODY_BYTES,
        rate=situation.rate,
    )
    for share, row in into.items():
        row.values.append(measured.latencies_ms[int(situation.messages * _SHARES[share])])
        row.broker_us.append(measured.server_cpu_s / measured.messages * 1e6)
        row.client_us.append(measured.client_cpu_s / measured.messages * 1e6)


def _row(situation: Situation, case: str, unit: str) -> Row:
    return Row("W5", f"{situation.name}: {case}", situation.durability, unit, [])


if __name__ == "__main__":
    main()
