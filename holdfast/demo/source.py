"""Real input for the demonstration: readings of this machine, or the lines of a file."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Reading:
    """A message to publish: a measured value, or a line of a file."""

    key: str | None
    tag: str | None
    body: bytes


def machine_readings() -> Iterator[Reading]:
    """Yield readings of all sensors of this machine in turn, without end and without pauses. The
    key of a reading is the sensor, the tag is the kind of sensor, and the body is JSON with the
    field "value". Raises ModuleNotFoundError if psutil is not installed."""
    import psutil

    psutil.cpu_percent(percpu=True)
    while True:
        now = time.time()
        for number, percent in enumerate(psutil.cpu_percent(percpu=True)):
            yield _reading(f"cpu{number}", "cpu", percent, "%", now)
        memory = psutil.virtual_memory()
        yield _reading("memory.used", "memory", memory.total - memory.available, "B", now)
        yield _reading("load.1min", "load", psutil.getloadavg()[0], "", now)
        yield _reading("processes", "load", len(psutil.pids()), "", now)
        disk = psutil.disk_io_counters()
        if disk is not None:
            yield _reading("disk.written", "disk", disk.write_bytes, "B", now)
        for name, card in sorted(psutil.net_io_counters(pernic=True).items()):
            yield _reading(f"net.{name}.received", "network", card.bytes_recv, "B", now)
            yield _reading(f"net.{name}.sent", "network", card.bytes_sent, "B", now)


def _reading(sensor: str, kind: str, value: float, unit: str, now: float) -> Reading:
    body = {"sensor": sensor, "value": round(value, 3), "unit": unit, "time": round(now, 6)}
    return Reading(sensor, kind, json.dumps(body, separators=(",", ":")).encode())


def file_lines(path: Path) -> Iterator[Reading]:
    """Yield a file's lines as bytes, without the newline; the first word is the key."""
    with path.open("rb") as lines:
        for line in lines:
            body = line.rstrip(b"\r\n")
            words = body.split(maxsplit=1)
            key = words[0][:128].decode("utf-8", "replace") if words else None
            yield Reading(key, None, body)
