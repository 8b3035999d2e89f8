"""Run an action when Spark ends the process that drives a stream.

As soon as the query stops or fails, Spark sends SIGTERM, which by default ends the process without
running any `finally` block. A second SIGTERM follows immediately (PythonStreamingSourceRunner.stop
signals the worker, then all processes).
"""

import os
import signal
import sys
from collections.abc import Callable

#: Spark runs this module as __main__ only in the process that drives a stream.
DRIVER_OF_A_STREAM = "pyspark.sql.streaming.python_streaming_source_runner"
MAX_SECONDS = 10.0  # for the action


def run_before_termination(act: Callable[[], None], max_s: float = MAX_SECONDS) -> None:
    """If this process drives a stream, make SIGTERM call `act` and then end the process.

    In any other process, do nothing. `act` runs once in the main thread, between any two
    instructions of the interrupted code, however often SIGTERM arrives. After `max_s` seconds,
    SIGALRM ends the process even if `act` is not done. A later call replaces the earlier `act`.
    """
    if getattr(sys.modules["__main__"].__spec__, "name", None) != DRIVER_OF_A_STREAM:
        return
    is_ending = False

    def end(*_: object) -> None:
        nonlocal is_ending
        if is_ending:
            return
        is_ending = True
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max_s)
        try:
            act()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
