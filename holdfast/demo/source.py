"""Real input for the demonstration: readings of this machine, or the lines of a file."""

import json
import os
import re
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


def machine_readings(proc: Path = Path("/proc")) -> Iterator[Reading]:
    """Yield readings of all sensors of this machine in turn, without end and without pauses. The
    key of a reading is the sensor, the tag is the kind of sensor, and the body is JSON with the
    field "value". Sensors whose file below `proc` is missing are left out."""
    ticks: dict[str, tuple[int, int]] = {}
    while True:
        now = time.time()
        yield _reading("load.1min", "load", os.getloadavg()[0], "", now)
        for words in _lines(proc / "stat"):
            if re.fullmatch(r"cpu\d+", words[0]):
                earlier = ticks.get(words[0], (0, 0))
                ticks[words[0]] = busy, total = _busy_and_total(words)
                percent = 100 * (busy - earlier[0]) / max(total - earlier[1], 1)
                yield _reading(words[0], "cpu", percent, "%", now)
        memory = {words[0]: int(words[1]) for words in _lines(proc / "meminfo")}
        if {"MemTotal:", "MemAvailable:"} <= memory.keys():
            used = (memory["MemTotal:"] - memory["MemAvailable:"]) * 1024
            yield _reading("memory.used", "memory", used, "B", now)
        for name, count in _lines(proc / "vmstat"):
            if name == "pgpgout":  # KiB since the start of the machine
                yield _reading("disk.written", "disk", int(count) * 1024, "B", now)
        for words in _lines(proc / "net" / "dev")[2:]:
            card = words[0].rstrip(":")
            yield _reading(f"net.{card}.received", "network", int(words[1]), "B", now)
            yield _reading(f"net.{card}.sent", "network", int(words[9]), "B", now)


def _lines(path: Path) -> list[list[str]]:
    """Return the words of each line, or no lines if the file cannot be read."""
    try:
        return [words for line in path.read_text().splitlines() if (words := line.split())]
    except OSError:
        return []


def _busy_and_total(words: list[str]) -> tuple[int, int]:
    """Return clock ticks of a processor. The columns are user, nice, system, idle, iowait, irq,
    softirq and steal; what follows them is part of user and nice."""
    counts = [int(each) for each in words[1:9]]
    return sum(counts) - sum(counts[3:5]), sum(counts)


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
