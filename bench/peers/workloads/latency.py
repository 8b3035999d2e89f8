"""Publish to delivery: a producer process at 1,000 messages per second, and a waiting consumer."""

from collections.abc import Iterator

from bench.peers.workload import Bar, Result, Run, Workload

_RATE = 1000
_MESSAGES = 3000
_BAR = (Bar("redis-streams", 2),)


def _run(run: Run) -> Iterator[Result]:
    measured = run.load(
        "latency", topic=run.topic(), messages=_MESSAGES, body_bytes=100, rate=_RATE
    )
    ordered = measured.latencies_ms
    for case, share in (("p50", 0.5), ("p99", 0.99)):
        yield Result(case, ordered[int(len(ordered) * share)], measured)
    achieved = measured.messages / measured.seconds
    if achieved < 0.98 * _RATE:
        print(f"  (it took only {achieved:.0f} messages/s, so its queue never filled)")


LATENCY = Workload(
    "latency",
    "100 B at 1,000 messages/s: from before the publish to the waiting consumer's hands",
    "written",
    "ms",
    _run,
    {"p50": "W5", "p99": "W5"},
    {"p50": _BAR, "p99": _BAR},
    {"rocketmq": "its load has no waiting consumer"},
)
