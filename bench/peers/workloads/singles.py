"""Durable singles: producers that wait for the disk on every message of 1 KiB.

Producers of one program share a client, as the documentation of most clients advises; producers
that are programs of their own have one each. Both are measured, of every system. How a client
is shared is its own affair: requests that are put together (ours, Kafka's), one connection on
which nobody waits for his turn (NATS, RabbitMQ), a pool of connections (Redis). RocketMQ's
producers are one object in both, since in one process they share their connection all the same.
"""

from collections.abc import Iterator

from bench.peers.workload import Bar, Result, Run, Workload, rate

#: How many producers, and whether they share a client.
_CASES = {
    "1 producer": (1, True),
    "16 producers, one client": (16, True),
    "64 producers, one client": (64, True),
    "16 producers, a client each": (16, False),
    "64 producers, a client each": (64, False),
}
_LEAST = 4 * 64
_BODY_BYTES = 1024
_MOST = 30_000

_BARS = (
    Bar("nats-jetstream", 1),
    Bar("kafka", 1),
    Bar("rabbitmq-classic", 1),
    Bar("rabbitmq-quorum", 1),
    Bar("rocketmq", 1),
    Bar("redis-streams", 0.5),
)


def _run(run: Run) -> Iterator[Result]:
    for case, (producers, shared) in _CASES.items():
        measured = run.sized(
            f"singles, {case}",
            least=_LEAST,
            most=_MOST,
            verb="singles",
            topic=run.topic(),
            body_bytes=_BODY_BYTES,
            producers=producers,
            shared=shared,
        )
        yield rate(case, measured)


SINGLES = Workload(
    "singles",
    "1 KiB, one message a publish, each acknowledged after a sync",
    "fsync",
    "messages/s",
    _run,
    dict.fromkeys(_CASES, "W4"),
    {case: _BARS for case, (producers, _) in _CASES.items() if producers > 1},
)
