"""Small messages: one process publishes a backlog in batches, then one process reads it all."""

from collections.abc import Iterator

from bench.peers.workload import Bar, Result, Run, Workload, rate

_BATCH = 1000
_MOST = 3_000_000


def _run(run: Run) -> Iterator[Result]:
    topic = run.topic()
    published = run.sized(
        "batches-100",
        least=20 * _BATCH,
        most=_MOST,
        verb="publish",
        topic=topic,
        body_bytes=100,
        batch=_BATCH,
    )
    yield rate("publish", published)
    yield rate(
        "consume", run.load("consume", topic=topic, messages=published.messages, body_bytes=100)
    )


BATCHES_100 = Workload(
    "batches-100",
    "100 B in batches of 1,000: one producer process, then one consumer process",
    "written",
    "messages/s",
    _run,
    {
        "publish": (
            Bar("redis-streams", 10),
            Bar("rabbitmq-classic", 20),
            Bar("nats-jetstream", 20),
            Bar("kafka", 2),
        ),
        "consume": (Bar("redis-streams", 4), Bar("rabbitmq-classic", 20), Bar("kafka", 2)),
    },
)
