"""Folded stacks, shared out over what the threads spent."""

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


def test_a_sample_is_on_the_account_of_the_innermost_frame_that_is_ours_or_a_librarys() -> None:
    first, second, third, fourth = samples(_LINES)
    assert (first.area, first.function, first.count) == (
        "http_api/app.py",
        "answer (http_api/app.py)",
        3,
    )
    assert (second.area, second.function) == ("aiohttp", "start (aiohttp)")
    assert (third.thread, third.area) == ("holdfast-reader", "thread pool")
    assert (fourth.thread, fourth.area) == ("holdfast-reader", "Python's library")


def test_a_function_of_pythons_library_is_named_without_its_place_on_the_machine() -> None:
    line = "thread (7): MainThread;__and__ (/opt/python/lib/python3.11/enum.py:1515) 1"
    (sample,) = samples([line])
    assert sample.function == "__and__ (python3.11/enum.py:1515)"


def test_what_a_thread_spent_is_spread_over_its_samples_alone() -> None:
    told = spread(samples(_LINES), {"7": 8.0, "8": 1.0, "10": 0.5})
    assert told["thread"] == {"MainThread": 8.0, "holdfast-reader": 1.0, "no Python": 0.5}
    assert told["area"] == {
        "http_api/app.py": 6.0,
        "aiohttp": 2.0,
        "thread pool": 1.0,
        "no Python": 0.5,
    }
    assert list(told["area"]) == ["http_api/app.py", "aiohttp", "thread pool", "no Python"]


def test_threads_that_ended_share_what_they_spent_together() -> None:
    assert with_ended({"7": 1.0}, 3.0, samples(_LINES)) == {"7": 1.0, "8": 1.5, "9": 1.5}
    assert with_ended({"7": 1.0, "8": 0.0, "9": 0.0}, 3.0, samples(_LINES)) == {
        "7": 1.0,
        "8": 0.0,
        "9": 0.0,
    }


def test_what_is_no_folded_stack_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(samples(["thread (7): MainThread;run many"]))
