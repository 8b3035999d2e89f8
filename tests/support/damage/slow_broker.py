"""A broker whose syncs of the log are slow: `slow_broker.py SECONDS HOW serve ...`.

HOW is `sleep` (the sync releases the interpreter lock, like os.fdatasync) or `hold` (the sync
holds the lock, like mmap.flush). The second is a defect that the latency probe must detect.
"""

import ctypes
import sys
import time


def main() -> None:
    from holdfast.cli.main import main as serve
    from holdfast.commitlog.disk.disk import LinuxFile

    seconds, how = float(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    sync = LinuxFile.sync

    def slow_sync(file: LinuxFile) -> None:
        sync(file)
        if how == "hold":
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        else:
            time.sleep(seconds)

    LinuxFile.sync = slow_sync  # type: ignore[method-assign, assignment]
    serve()


if __name__ == "__main__":
    main()
