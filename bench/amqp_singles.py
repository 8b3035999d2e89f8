"""Single publishes over one AMQP link, 16 awaited in parallel, compared with Redis.

    python -m bench.amqp_singles [--json] [--messages 8000] [--rounds 5]

Each of 16 producers publishes 100 bytes, awaits the outcome, and repeats. Over AMQP they share one
link; to Redis each has its own connection (redis-py with hiredis on uvloop). Both answer after a
sync: topics with durability `fsync`, and `appendfsync always`. The systems are measured in turns.
Needs Redis: run bench/peers/install.
"""

from collections.abc import Iterator
from contextlib import ExitStack

from bench.harness import arguments
from bench.peers.system import System, running
from bench.peers.systems.holdfast_amqp import HoldfastAmqp
from bench.peers.systems.redis import RedisStreams
from bench.peers.workload import Run
from bench.rows import RATE, TIMES, Row, report

_PRODUCERS = 16
_BODY_BYTES = 100
#: The bar, as a share of the rate of Redis.
_LEAST_SHARE = 0.65


def main() -> None:
    """Measure and print."""
    options = arguments("Single publishes over AMQP, and to Redis.", messages=8000, rounds=5)
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure both systems in turns; yield the rates and their ratio."""
    redis = RedisStreams()
    redis.check()
    systems: tuple[System, System] = (HoldfastAmqp(), redis)
    found = [
        Row("", f"{each.name}: {_PRODUCERS} single publishes", "fsync", RATE, [], _BODY_BYTES)
        for each in systems
    ]
    with ExitStack() as stack:
        runs = [Run(stack.enter_context(running(each, "fsync")), "fsync", {}) for each in systems]
        for _ in range(rounds):
            for run, row in zip(runs, found, strict=True):
                measured = run.load(
                    "singles",
                    topic=run.topic(),
                    messages=messages,
                    body_bytes=_BODY_BYTES,
                    producers=_PRODUCERS,
                    shared=False,
                )
                row.values.append(measured.messages / measured.seconds)
                row.broker_us.append(measured.server_cpu_s / measured.messages * 1e6)
                row.client_us.append(measured.client_cpu_s / measured.messages * 1e6)
    yield from found
    ours, theirs = (row.values for row in found)
    shares = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    yield Row("", f"{found[0].case} / {redis.name}", "fsync", TIMES, shares, at_least=_LEAST_SHARE)


if __name__ == "__main__":
    main()
