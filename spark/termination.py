"""What the process that drives a stream still does when Spark ends it.

Spark ends it by SIGTERM as soon as its query stops or fails, which by itself runs no `finally`.
"""

import os
import signal
import sys
from collections.abc import Callable

#: What Spark starts for a stream, and for nothing else.
DRIVER_OF_A_STREAM = "pyspark.sql.streaming.python_streaming_source_runner"


def before_termination(act: Callable[[], None]) -> None:
    """Let SIGTERM call `act`, then end the process, where Spark started it to drive a stream.

    Elsewhere the process is somebody else's, and nothing is done. `act` is called in the main
    thread between any two steps of what runs there. What was set before is called no more; a
    second SIGTERM does not wait for `act`.
    """
    if getattr(sys.modules["__main__"].__spec__, "name", None) != DRIVER_OF_A_STREAM:
        return

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            act()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
