"""Messages of 1 KiB: one process publishes a backlog in batches, then one process reads it all."""

from collections.abc import Iterator

from bench.peers.workload import Bar, Result, Run, Workload, rate

_BATCH = 1000
_BODY_BYTES = 1024
_MOST = 600_000


def _run(run: Run) -> Iterator[Result]:
    topic = run.topic()
    published = run.sized(
        "batches-1k",
        least=10 * _BATCH,
        most=_MOST,
        verb="publish",
        topic=topic,
        body_bytes=_BODY_BYTES,
        batch=_BATCH,
    )
    yield rate("publish", published)
    yield rate(
        "consume",
        run.load("consume", topic=topic, messages=published.messages, body_bytes=_BODY_BYTES),
    )


BATCHES_1K = Workload(
    "batches-1k",
    "1 KiB in batches of 1,000: one producer process, then one consumer process",
    "written",
    "messages/s",
    _run,
    {
        "publish": (Bar("redis-streams", 4), Bar("kafka", 1.2)),
        "consume": (Bar("redis-streams", 4), Bar("rabbitmq-classic", 20), Bar("kafka", 2)),
    },
    {"rocketmq": "a batch of 1,000 x 1 KiB is near its largest message; see batches-100"},
)
