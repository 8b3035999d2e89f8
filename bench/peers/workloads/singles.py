"""Durable singles: producers that wait for the disk on every message of 1 KiB."""

from collections.abc import Iterator

from bench.peers.workload import Bar, Result, Run, Workload, rate

_PRODUCERS = (1, 16, 64)
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
    for producers in _PRODUCERS:
        measured = run.sized(
            f"singles-{producers}",
            least=4 * _PRODUCERS[-1],
            most=_MOST,
            verb="singles",
            topic=run.topic(),
            body_bytes=_BODY_BYTES,
            producers=producers,
        )
        yield rate(_case(producers), measured)


def _case(producers: int) -> str:
    return f"{producers} producer{'s' * (producers > 1)}"


SINGLES = Workload(
    "singles",
    "1 KiB, one message a publish, each acknowledged after a sync",
    "fsync",
    "messages/s",
    _run,
    {_case(producers): "W4" for producers in _PRODUCERS},
    {_case(16): _BARS, _case(64): _BARS},
)
