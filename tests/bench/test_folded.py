"""The CPU time of threads, divided among the samples of folded stacks."""

import pytest

from bench.folded import samples, spread, with_ended

_LINES = (
    "thread (7): MainThread;run (/x/holdfast/cli/process/broker_process.py:3);"
    "answer (/x/holdfast/http_api/app.py:58);dumps (/lib/python3.11/json/__init__.py:1) 3",
    "thread (7): MainThread;run (/x/holdfast/cli/process/broker_process.py:3);"
    "start (/v/lib/site-packages/aiohttp/web_protocol.py:9) 1",
    "",
    "thread (8): holdfast-reader_0;_worker (/lib/python3.11/concurrent/futures/thread.py:69) 5",
    "thread (9): holdfast-reader_1;<module> (<string>:1) 5",
)


def test_a_sample_counts_for_the_innermost_frame_of_holdfast_or_of_a_library() -> None:
    first, second, third, fourth = samples(_LINES)
    assert (first.area, first.count) == ("http_api/app.py", 3)
    assert first.function == "answer (http_api/app.py)"
    assert (second.area, second.function) == ("aiohttp", "start (aiohttp)")
    assert (third.thread, third.area) == ("holdfast-reader", "thread pool")
    assert (fourth.thread, fourth.area) == ("holdfast-reader", "Python's library")


def test_a_function_of_pythons_library_is_named_without_its_folder() -> None:
    line = "thread (7): MainThread;__and__ (/opt/python/lib/python3.11/enum.py:1515) 1"
    (sample,) = samples([line])
    assert sample.function == "__and__ (python3.11/enum.py:1515)"


def test_the_cpu_time_of_a_thread_is_divided_among_its_samples() -> None:
    seconds = spread(samples(_LINES), {"7": 8.0, "8": 1.0, "10": 0.5})
    assert seconds["thread"] == {"MainThread": 8.0, "holdfast-reader": 1.0, "no Python": 0.5}
    areas = [("http_api/app.py", 6.0), ("aiohttp", 2.0), ("thread pool", 1.0), ("no Python", 0.5)]
    assert list(seconds["area"].items()) == areas


def test_ended_threads_share_their_total_cpu_time() -> None:
    assert with_ended({"7": 1.0}, 3.0, samples(_LINES)) == {"7": 1.0, "8": 1.5, "9": 1.5}
    spent = {"7": 1.0, "8": 0.0, "9": 0.0}
    assert with_ended(spent, 3.0, samples(_LINES)) == spent


def test_an_invalid_folded_stack_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(samples(["thread (7): MainThread;run many"]))
