"""What the process that drives a stream still does when Spark ends it.

Spark ends it by SIGTERM as soon as its query stops or fails, which by itself runs no `finally`;
and at once sends a second one (PythonStreamingSourceRunner.stop: to the worker, then to all).
"""

import os
import signal
import sys
from collections.abc import Callable

#: What Spark starts for a stream, and for nothing else.
DRIVER_OF_A_STREAM = "pyspark.sql.streaming.python_streaming_source_runner"
#: For so long the process may outlive its query.
MAX_SECONDS = 10.0


def before_termination(act: Callable[[], None], max_s: float = MAX_SECONDS) -> None:
    """Let SIGTERM call `act`, then end the process, where Spark started it to drive a stream.

    Elsewhere the process is somebody else's, and nothing is done. `act` is called in the main
    thread between any two steps of what runs there, once, however often SIGTERM comes; after
    `max_s` seconds the process ends by SIGALRM in the midst of it. What was set before is called
    no more.
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
