"""Durable singles: producers that publish one message of 1 KiB and wait until it is on the disk.

Every system is measured in two ways: all producers share a client, as in one program (the
documentation of most clients recommends this); and each producer has its own client, as in separate
programs. What a shared client does with the requests depends on the client: it combines them
(Holdfast, Kafka), sends them on one connection without waiting between them (NATS, RabbitMQ), or
uses a pool of connections (Redis). RocketMQ uses one producer object in both ways, because
producers in one process share their connection anyway.
"""

from collections.abc import Iterator

from bench.peers.workload import Bar, Result, Run, Workload, rate

#: Case -> the number of producers, and whether they share a client.
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
