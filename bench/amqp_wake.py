"""Publish to delivery over an AMQP link with credit, compared with Redis Streams.

    python -m bench.amqp_wake [--json] [--messages 3000] [--rounds 5]

A producer process publishes 100 bytes at 1,000 messages/s and awaits each outcome; a consumer
process waits on its link, or in XREAD BLOCK (redis-py with hiredis). `topic`: the link gets every
message of the topic, as XREAD does. `group`: the link is a member of a group and accepts each
message. Written mode; Redis: `appendfsync everysec`. The systems are measured in turns. Needs
Redis: run bench/peers/install.
"""

from collections.abc import Iterator
from contextlib import ExitStack

from bench.harness import arguments
from bench.peers.system import running
from bench.peers.systems.holdfast_amqp import HoldfastAmqp
from bench.peers.systems.redis import RedisStreams
from bench.peers.workload import Run
from bench.rows import TIMES, Row, report

_SHARES = {"p50": 0.5, "p99": 0.99}
_BODY_BYTES = 100
_RATE = 1000
#: The bar of the p50, as a multiple of that of Redis.
_MOST_TIMES = 3.5


def main() -> None:
    """Measure and print."""
    options = arguments("Wake-up of an AMQP link, compared with Redis.", messages=3000, rounds=5)
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure each system in turns; yield the latencies, and their ratios to those of Redis."""
    redis = RedisStreams()
    redis.check()
    systems = (HoldfastAmqp("topic"), HoldfastAmqp("group"), redis)
    found = {
        (system.name, share): Row("", f"{system.name}: wake {share}", "written", "ms", [])
        for system in systems
        for share in _SHARES
    }
    with ExitStack() as stack:
        runs = {
            system.name: Run(stack.enter_context(running(system, "written")), "written", {})
            for system in systems
        }
        for _ in range(rounds):
            for name, run in runs.items():
                measured = run.load(
                    "latency",
                    topic=run.topic(),
                    messages=messages,
                    body_bytes=_BODY_BYTES,
                    rate=_RATE,
                )
                for share, of_all in _SHARES.items():
                    row = found[name, share]
                    row.values.append(measured.latencies_ms[int(messages * of_all)])
                    row.broker_us.append(measured.server_cpu_s / messages * 1e6)
                    row.client_us.append(measured.client_cpu_s / messages * 1e6)
    yield from found.values()
    for (name, share), row in found.items():
        if name != redis.name:
            theirs = found[redis.name, share].values
            ratios = [ours / other for ours, other in zip(row.values, theirs, strict=True)]
            bar = _MOST_TIMES if share == "p50" else None
            yield Row("", f"{row.case} / {redis.name}", "written", TIMES, ratios, at_most=bar)


if __name__ == "__main__":
    main()
