"""Holdfast itself."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

import holdfast
from bench.peers.system import Server, python_load
from holdfast.running_broker import RunningBroker


class Holdfast:
    """One process. Durability is a property of topics, so both classes use the same settings."""

    name = "holdfast"

    def check(self) -> None:
        """Do nothing: Holdfast is always available."""

    def version(self) -> str:
        """Return the version of this checkout."""
        return str(holdfast.__version__)

    @contextmanager
    def run(self, durability: str, directory: Path) -> Iterator[Server]:
        """Run a broker with its defaults, except for smaller segments."""
        arguments = ("--commitlog-segment-bytes", "256MiB")
        with RunningBroker(directory / "data", arguments) as broker:
            yield Server(
                broker.url,
                f"defaults; segments of 256 MiB; topics with durability {durability}",
                [psutil.Process(broker.pid)],
                python_load("holdfast_load", python=sys.executable),
            )
