"""A backlog: one process publishes it in batches, then one process reads all of it."""

from collections.abc import Iterator, Mapping

from bench.peers.workload import Bar, Result, Run, Workload, rate

_BATCH = 1000


def _backlog(
    label: str,
    size: str,
    body_bytes: int,
    *,
    most: int,
    publish_bars: tuple[Bar, ...],
    leaves_out: Mapping[str, str],
) -> Workload:
    name = f"batches-{size}"

    def run(run: Run) -> Iterator[Result]:
        topic = run.topic()
        published = run.sized(
            name,
            least=10 * _BATCH,
            most=most,
            verb="publish",
            topic=topic,
            body_bytes=body_bytes,
            batch=_BATCH,
        )
        yield rate("publish", published)
        consumed = run.load(
            "consume", topic=topic, messages=published.messages, body_bytes=body_bytes
        )
        yield rate("consume", consumed)

    return Workload(
        name,
        f"{body_bytes:,} B in batches of {_BATCH:,}: a producer process, then a consumer process",
        "written",
        "messages/s",
        run,
        {"publish": label, "consume": "W3"},
        {
            "publish": publish_bars,
            "consume": (Bar("redis-streams", 4), Bar("rabbitmq-classic", 20), Bar("kafka", 2)),
        },
        leaves_out,
    )


BATCHES_100 = _backlog(
    "W1",
    "100",
    100,
    most=3_000_000,
    publish_bars=(
        Bar("redis-streams", 10),
        Bar("rabbitmq-classic", 20),
        Bar("nats-jetstream", 20),
        Bar("kafka", 2),
    ),
    leaves_out={},
)
BATCHES_1K = _backlog(
    "W2",
    "1k",
    1024,
    most=600_000,
    publish_bars=(Bar("redis-streams", 4), Bar("kafka", 1.2)),
    leaves_out={"rocketmq": "a batch of 1,000 x 1 KiB is near its largest message"},
)
