"""Kafka, a single KRaft node."""

import base64
import re
import shutil
import subprocess
import uuid
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

_JARS = PEERS / "kafka" / "jars"
_HEAP = "-Xms1g -Xmx1g"


class Kafka:
    """Broker and controller in one process, with the heap size of Kafka's start script."""

    name = "kafka"

    def check(self) -> None:
        """Raise Unavailable without Java, its jars or confluent-kafka."""
        if not shutil.which("java"):
            raise Unavailable("java is not installed: run bench/peers/install")
        if not _JARS.is_dir():
            raise Unavailable("its jars are not there: run bench/peers/install")
        peers_python()

    def version(self) -> str:
        """Return the version in the name of its jar."""
        (jar,) = _JARS.glob("kafka_2.13-*.jar")
        found = re.search(r"-([\d.]+)\.jar", jar.name)
        return found[1] if found else "unknown"

    @contextmanager
    def run(self, durability: str, directory: Path) -> Iterator[Server]:
        """Format a directory and run it."""
        port, controller = free_port(), free_port()
        config = directory / "server.properties"
        config.write_text(
            f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
        )
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        java = ["java", *_HEAP.split(), "-cp", f"{_JARS}/*"]
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)],
            check=True,
            capture_output=True,
        )
        with started([*java, "kafka.Kafka", config], directory, port=port) as process:
            sync = "flush.messages=1, acks=all" if durability == "fsync" else "acks=1"
            yield Server(
                f"127.0.0.1:{port}",
                f"{_HEAP}; one partition; {sync}; consumer: queued.min.messages=1000000",
                [process],
                python_load("kafka_load", python=peers_python()),
            )
