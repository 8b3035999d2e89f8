"""Redis Streams."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.system import (
    Server,
    Unavailable,
    peers_python,
    python_load,
    started,
)
from holdfast.free_port import free_port

#: The append-only file makes Redis's durability comparable. By default, Redis does not use it.
_APPENDFSYNC = {"written": "everysec", "fsync": "always"}


class RedisStreams:
    """One process with an append-only file, and without snapshots during the measurement."""

    name = "redis-streams"

    def check(self) -> None:
        """Raise Unavailable without the server or redis-py."""
        if not shutil.which("redis-server"):
            raise Unavailable("redis-server is not installed: run bench/peers/install")
        peers_python()

    def version(self) -> str:
        """Return the server's version."""
        told = subprocess.run(
            ["redis-server", "--version"], capture_output=True, text=True, check=True
        )
        found = re.search(r"v=(\S+)", told.stdout)
        return found[1] if found else "unknown"

    @contextmanager
    def run(self, durability: str, directory: Path) -> Iterator[Server]:
        """Run the server."""
        port = free_port()
        options = {
            "appendonly": "yes",
            "appendfsync": _APPENDFSYNC[durability],
            "save": "",
            "auto-aof-rewrite-percentage": "0",
        }
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1"]
        for name, value in {**options, "dir": str(directory)}.items():
            command += [f"--{name}", value]
        with started(command, directory, port=port) as process:
            settings = "; ".join(
                f"{name} {value or chr(34) * 2}" for name, value in options.items()
            )
            yield Server(
                f"127.0.0.1:{port}",
                settings,
                [process],
                python_load("redis_load", python=peers_python()),
            )
