"""NATS JetStream."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.system import (
    PEERS,
    Server,
    Unavailable,
    peers_python,
    python_load,
    started,
)
from holdfast.free_port import free_port


class Nats:
    """One process with file streams. The class `written` uses the default: a sync every two
    minutes."""

    name = "nats-jetstream"

    def check(self) -> None:
        """Raise Unavailable without the server or nats-py."""
        self._program()
        peers_python()

    def version(self) -> str:
        """Return the server's version."""
        told = subprocess.run(
            [self._program(), "--version"], capture_output=True, text=True, check=True
        )
        return told.stdout.split()[-1].removeprefix("v")

    @contextmanager
    def run(self, durability: str, directory: Path) -> Iterator[Server]:
        """Run the server. Raise Unavailable if its version cannot sync on every acknowledgement."""
        port = free_port()
        own = "; sync_interval: always" if durability == "fsync" else ""
        if own and int(self.version().split(".")[1]) < 10:
            raise Unavailable(f"{self.version()} cannot sync on every acknowledgement")
        config = directory / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}"{own} }}\n'
        )
        with started([self._program(), "-c", config], directory, port=port) as process:
            yield Server(
                f"127.0.0.1:{port}",
                f"file streams{own}",
                [process],
                python_load("nats_load", python=peers_python()),
            )

    def _program(self) -> str:
        built = PEERS / "bin" / "nats-server"
        program = str(built) if built.exists() else shutil.which("nats-server")
        if not program:
            raise Unavailable("nats-server is not installed: run bench/peers/install")
        return program
