"""The cost of 10,000 groups with leases on one topic: memory, publish time, longest callbacks.

    python -m bench.many_groups [--groups 10000]

The broker runs in a thread of this process, and its callbacks are measured as in bench.loop_turns.
No member of these groups waits for messages, so a publish should cost the same as without groups.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bench.loop_turns import Turns, _Client, _serving

PUBLISHES = 300
GROUPS = 10_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=GROUPS)
    count = parser.parse_args().groups
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        _serving(Path(folder)) as (url, turns),
    ):
        client, process = _Client(url), psutil.Process()
        client.do("PUT", "/v1/topics/t", {"queues": 1, "durability": "written"})
        _publishes(client, turns, "no groups")
        before = process.memory_info().rss

        def create() -> None:
            for number in range(count):
                client.do("PUT", f"/v1/groups/g{number}", {"topics": {"t": {}, "new*": {}}})

        _measured(turns, f"{count:,} groups are made, all together", create)
        each = (process.memory_info().rss - before) / count
        print(f"memory of each: {each / 1024:.1f} KiB")
        _publishes(client, turns, f"{count:,} groups")
        _measured(turns, "a topic that all match is made", lambda: client.do(
            "PUT", "/v1/topics/new", {"queues": 1}))  # fmt: skip
        each = (process.memory_info().rss - before) / count
        print(f"memory of each, on two topics: {each / 1024:.1f} KiB")
        _measured(turns, "it is deleted", lambda: client.do(
            "DELETE", "/v1/topics/new?confirm=new"))  # fmt: skip
        _measured(turns, "groups: list of 1,000", lambda: client.do("GET", "/v1/groups?limit=1000"))
        _measured(turns, "/metrics", lambda: client.ask("GET", "/metrics"))


def _publishes(client: _Client, turns: Turns, what: str) -> None:
    took = []
    turns.begin()
    for _ in range(PUBLISHES):
        started = time.perf_counter()
        client.ask("POST", "/v1/topics/t/messages", b"x", {"Content-Type": "text/plain"})
        took.append(time.perf_counter() - started)
    p50, p99 = statistics.median(took) * 1000, sorted(took)[PUBLISHES * 99 // 100] * 1000
    longest = turns.longest_s * 1000
    print(
        f"publish beside {what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, longest turn {longest:.1f} ms"
    )


def _measured(turns: Turns, what: str, act: Callable[[], object]) -> None:
    turns.begin()
    started = time.perf_counter()
    act()
    seconds = time.perf_counter() - started
    time.sleep(1)  # wait for the broker's work after the answer
    longest, name = turns.longest_s * 1000, turns.name
    print(f"{what}: {seconds:.2f} s, longest turn {longest:.1f} ms in {name}", flush=True)


if __name__ == "__main__":
    main()
