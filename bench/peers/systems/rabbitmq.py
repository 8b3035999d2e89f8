"""RabbitMQ: a durable classic queue, and a quorum queue."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from bench.peers.system import (
    Server,
    Unavailable,
    peers_python,
    python_load,
    started,
)
from holdfast.free_port import free_port

_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class _Rabbit:
    """One Erlang node. Messages are persistent, and publishes are confirmed."""

    name: ClassVar[str]
    _kind: ClassVar[str]
    _note: ClassVar[str]
    _plugins: ClassVar[str] = ""

    def check(self) -> None:
        """Raise Unavailable without the server or its clients."""
        if not _PROGRAM.exists():
            raise Unavailable("rabbitmq-server is not installed: run bench/peers/install")
        peers_python()

    def version(self) -> str:
        """Return the server's version."""
        told = subprocess.run(
            ["dpkg-query", "-W", "-f=${Version}", "rabbitmq-server"],
            capture_output=True,
            text=True,
            check=False,
        )
        return told.stdout.partition("-")[0] or "unknown"

    @contextmanager
    def run(self, durability: str, directory: Path) -> Iterator[Server]:
        """Run a node with its own port mapper."""
        port, distribution, mapper = free_port(), free_port(), free_port()
        (directory / "enabled_plugins").write_text(f"[{self._plugins}].\n")
        environment = {
            "HOME": str(directory),
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        epmd = shutil.which("epmd") or "epmd"
        with (
            started([epmd, "-port", str(mapper)], directory, port=mapper),
            started([_PROGRAM], directory, port=port, environment=environment) as process,
        ):
            yield Server(
                f"127.0.0.1:{port}/{self._kind}",
                f"defaults; durable {self._kind} queue; persistent, confirmed; {self._note}",
                [process],
                python_load("rabbitmq_load", python=peers_python()),
                {"HOME": os.environ.get("HOME", "/")},
            )


class RabbitClassic(_Rabbit):
    """A durable classic queue: it confirms after its message store has synced."""

    name = "rabbitmq-classic"
    _kind = "classic"
    _note = "confirmed after its store's sync, in both classes"


class RabbitQuorum(_Rabbit):
    """A quorum queue with one member: it confirms after its write-ahead log has synced."""

    name = "rabbitmq-quorum"
    _kind = "quorum"
    _note = "one member; confirmed after its log's sync, in both classes"


class RabbitAmqp(RabbitClassic):
    """A node with the plugin for AMQP 1.0. The clients make its queues."""

    name = "rabbitmq-amqp"
    _plugins = "rabbitmq_amqp1_0"
