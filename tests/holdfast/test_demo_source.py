"""The demonstration's input: what Linux reports of this machine, and the lines of a file."""

import json
from itertools import islice
from pathlib import Path

from holdfast.demo.source import machine_readings


def write_proc(proc: Path, *, cpu: str) -> None:
    (proc / "net").mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 {cpu} 0 0 0 0 9 9\nintr 5\n")
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")
    (proc / "vmstat").write_text("nr_free_pages 1\npgpgin 7\npgpgout 3\n")
    (proc / "net" / "dev").write_text(
        "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n"
        "  eth0: 100 1 0 0 0 0 0 0 200 2 0 0 0 0 0 0\n"
    )


def test_each_round_has_the_values_since_the_round_before(tmp_path: Path) -> None:
    write_proc(tmp_path, cpu="10 0 10 80")
    readings = machine_readings(tmp_path)
    first = [json.loads(each.body) for each in islice(readings, 6)]
    assert [(each["sensor"], each["value"], each["unit"]) for each in first[1:]] == [
        ("cpu0", 20.0, "%"),
        ("memory.used", 600 * 1024, "B"),
        ("disk.written", 3 * 1024, "B"),
        ("net.eth0.received", 100, "B"),
        ("net.eth0.sent", 200, "B"),
    ]
    assert first[0]["sensor"] == "load.1min"
    write_proc(tmp_path, cpu="40 0 20 90")  # 50 ticks later, of which 40 were busy
    second = {each.key: json.loads(each.body)["value"] for each in islice(readings, 6)}
    assert second["cpu0"] == 80.0


def test_sensors_without_a_file_are_left_out(tmp_path: Path) -> None:
    readings = islice(machine_readings(tmp_path), 3)
    assert [(each.key, each.tag) for each in readings] == [("load.1min", "load")] * 3
