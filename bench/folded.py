"""Count the samples of folded stacks, as py-spy writes them, by thread, area and function.

Pure. A line of the input is `thread (ID): NAME;frame;...;frame count`; the innermost frame is last.
A sample counts for the innermost frame that is in our code or in a library. So time in Python's
standard library or in C code counts for its caller.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_THREAD = re.compile(r"^thread \((?P<id>\w+)\)(?:: (?P<name>.*))?$")
_FRAME = re.compile(r"^(?P<function>.+) \((?P<file>[^()]+?)(?::\d+)?\)$")
_PACKAGE = re.compile(r"/site-packages/(?P<package>[^/]+)")
_OURS = re.compile(r"/(?P<path>(?:holdfast|bench)/.+\.py)$")
#: The place of Python's standard library, which differs between machines.
_LIBRARY_PLACE = re.compile(r"(?<=\()/[^()]*/(?=python3\.\d+/)")
#: A number at the end of a thread's name, which distinguishes similar threads.
_NUMBER = re.compile(r"[-_]?\d+$")
_NONE = "no Python"

#: File of a thread's innermost Python frame -> name of the area. Such a thread spends its time in C
#: code that this frame called: it reads and writes sockets, or waits for a job.
_WAITING_ROOMS = {
    "runners.py": "event loop",
    "base_events.py": "event loop",
    "selectors.py": "event loop",
    "thread.py": "thread pool",
}


@dataclass(frozen=True)
class Sample:
    """One stack and its number of samples. `area` is one of our files or a library, and `function`
    is a function in this file or library."""

    thread_id: str
    thread: str
    area: str
    function: str
    count: int


def samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Yield the samples of folded lines. Raise ValueError for any other line."""
    for line in lines:
        if line.strip():
            stack, _, count = line.strip().rpartition(" ")
            yield _sample(stack.split(";"), int(count))


def spread(seen: Iterable[Sample], spent: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Distribute the time of each thread over its samples.

    `spent` is the time of each thread, by thread id. Return `thread`, `area` and `function` -> name
    -> amount, with the largest amounts first. The sum of a thread is exact; how it is distributed
    is as exact as the samples. The time of a thread without samples counts for "no Python".
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
    """Return the time of each thread, including threads that have ended.

    `ended` is the total time of ended threads. It is distributed by their numbers of samples.
    """
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
    function = its or function or _LIBRARY_PLACE.sub("", frames[-1])
    return Sample(thread_id, thread, its or area or "Python's library", function, count)


def _area(file: str) -> str | None:
    if library := _PACKAGE.search(file):
        return library["package"]
    if ours := _OURS.search(file):
        return ours["path"].removeprefix("holdfast/")
    return None
