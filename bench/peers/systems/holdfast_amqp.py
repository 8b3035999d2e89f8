"""Holdfast, used over AMQP."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.peers.system import Server, python_load
from bench.peers.systems.holdfast import Holdfast
from holdfast.free_port import free_port
from holdfast.running_broker import RunningBroker


class HoldfastAmqp(Holdfast):
    """One process. The addresses of the load make the topics, so the durability of new topics is
    that of the class."""

    def __init__(self, source: str = "topic") -> None:
        """`source` is from where the load receives: `topic` or `group`."""
        self.name = f"holdfast-{source}"
        self._source = source

    @contextmanager
    def run(self, durability: str, directory: Path) -> Iterator[Server]:
        """Run a broker with its defaults, except for AMQP, its durability and smaller segments."""
        port = free_port()
        arguments = (
            *("--amqp-port", str(port), "--topics-default-durability", durability),
            *("--commitlog-segment-bytes", "256MiB"),
        )
        with RunningBroker(directory / "data", arguments) as broker:
            yield Server(
                f"127.0.0.1:{port}/{self._source}",
                f"defaults; AMQP; segments of 256 MiB; topics with durability {durability}",
                [psutil.Process(broker.pid)],
                python_load("amqp_load", python=sys.executable),
            )
