"""Where samples fell: folded stacks, as py-spy writes them, counted by thread, area and function.

Pure. A line of the input is `thread (ID): NAME;frame;...;frame count`, the innermost frame last.
A sample belongs to the innermost of its frames that is ours or a library's: what Python's own
library or the C below it did is on the account of who called it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_THREAD = re.compile(r"^thread \((?P<id>\w+)\)(?:: (?P<name>.*))?$")
_FRAME = re.compile(r"^(?P<function>.+) \((?P<file>[^()]+?)(?::\d+)?\)$")
_PACKAGE = re.compile(r"/site-packages/(?P<package>[^/]+)")
_OURS = re.compile(r"/(?P<path>(?:holdfast|bench)/.+\.py)$")
#: A number at the end of a thread's name tells it from others like it.
_NUMBER = re.compile(r"[-_]?\d+$")
_NONE = "no Python"

#: The innermost frame of a thread whose time is spent in C below it: for reading and writing
#: sockets, for taking a job.
_WAITING_ROOMS = {
    "runners.py": "event loop",
    "base_events.py": "event loop",
    "selectors.py": "event loop",
    "thread.py": "thread pool",
}


@dataclass(frozen=True)
class Sample:
    """One stack and how often it was seen: `area` is a file of ours or a library, and `function`
    is in it."""

    thread_id: str
    thread: str
    area: str
    function: str
    count: int


def samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Yield the samples of folded lines; ValueError for what is no such line."""
    for line in lines:
        if line.strip():
            stack, _, count = line.strip().rpartition(" ")
            yield _sample(stack.split(";"), int(count))


def spread(seen: Iterable[Sample], spent: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Spread what each thread spent over its samples: `thread`, `area` and `function` -> name ->
    amount, the largest first.

    `spent` is by thread id. A thread's own sum is exact, its inner split as good as the samples;
    what a thread without any sample spent is told as that of "no Python".
    """
    by_thread: dict[str, list[Sample]] = defaultdict(list)
    for sample in seen:
        by_thread[sample.thread_id].append(sample)
    told: dict[str, dict[str, float]] = {
        field: defaultdict(float) for field in ("thread", "area", "function")
    }
    for thread_id, amount in spent.items():
        of_it = by_thread.get(thread_id) or [Sample(thread_id, _NONE, _NONE, _NONE, 1)]
        total = sum(sample.count for sample in of_it)
        for sample in of_it:
            for field, amounts in told.items():
                amounts[getattr(sample, field)] += amount * sample.count / total
    return {
        field: dict(sorted(amounts.items(), key=lambda pair: -pair[1]))
        for field, amounts in told.items()
    }


def with_ended(
    spent: Mapping[str, float], ended: float, seen: Iterable[Sample]
) -> dict[str, float]:
    """Return what each thread spent, with what those spent that have ended since: `ended` in all,
    shared out by how often each was seen."""
    counts: Counter[str] = Counter()
    for sample in seen:
        if sample.thread_id not in spent:
            counts[sample.thread_id] += sample.count
    if not counts:
        return dict(spent)
    return {**spent, **{each: ended * count / counts.total() for each, count in counts.items()}}


def _sample(frames: list[str], count: int) -> Sample:
    thread_id, thread = "", "MainThread"
    area = function = ""
    for frame in frames:
        if told := _THREAD.match(frame):
            thread_id = told["id"]
            thread = _NUMBER.sub("", told["name"] or "unnamed")
        elif (found := _FRAME.match(frame)) and (its := _area(found["file"])):
            area, function = its, f"{found['function']} ({its})"
    its = _WAITING_ROOMS.get(frames[-1].partition(":")[0].rpartition("/")[2], "")
    return Sample(
        thread_id, thread, its or area or "Python's library", its or function or frames[-1], count
    )


def _area(file: str) -> str | None:
    if library := _PACKAGE.search(file):
        return library["package"]
    if ours := _OURS.search(file):
        return ours["path"].removeprefix("holdfast/")
    return None
