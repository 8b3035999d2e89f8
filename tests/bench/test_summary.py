"""What the benchmarks print, as rows with the bars that it is held to."""

from typing import Any

from bench.summary import growth_rows, peers_rows, restart_rows, spark_rows


def _line(growing: str, what: str, published: float, read: float, memory_mb: float) -> Any:
    return {
        "growing": growing,
        "durability": "written",
        "what": what,
        "published": published,
        "read": read,
        "memory_mb": memory_mb,
    }


def test_growth_is_held_to_the_first_line_of_its_kind() -> None:
    rows = list(
        growth_rows(
            [
                _line("queues", "1", 100.0, 200.0, 90.0),
                _line("queues", "10,000", 81.0, 100.0, 100.0),
                _line("groups", "1", 100.0, 400.0, 90.0),
                _line("groups", "100", 100.0, 360.0, 95.0),
            ]
        )
    )
    assert [(row.case, row.median, row.is_met) for row in rows] == [
        ("published, 10,000 queues beside 1", 0.81, True),
        ("read, 10,000 queues beside 1", 0.5, False),
        ("memory of each queue, 10,000 queues", 10e6 / 9999, True),
        ("read, 100 groups beside 1", 0.9, True),
    ]


def test_a_rebuild_is_held_to_bytes_for_large_batches_and_to_batches_for_small_ones() -> None:
    def restart(what: str, gb: float, batches: int, seconds: float) -> Any:
        return {"what": what, "gb": gb, "batches": batches, "seconds": seconds}

    rows = list(
        restart_rows(
            [
                restart("after SIGKILL, batches of 64", 10.0, 152_587, 1.5),
                restart("index built anew, batches of 64", 10.0, 152_587, 5.0),
                restart("index built anew, batches of 1", 1.0, 1_000_000, 10.0),
            ]
        )
    )
    assert [(row.unit, row.median, row.is_met) for row in rows] == [
        ("s", 1.5, True),
        ("GB/s", 2.0, True),
        ("batches/s", 100_000.0, False),
    ]


def test_small_batches_in_spark_are_held_to_the_same_rows_in_large_ones() -> None:
    def workload(batch: int, url_s: float) -> Any:
        def figure(seconds: float) -> Any:
            return {"rows_per_s": 1000 / seconds, "seconds": [seconds]}

        return {
            "messages": 1000,
            "body_bytes": 100,
            "batch": batch,
            "figures": {"url": figure(url_s), "arrow file": figure(1.0)},
        }

    rows = [row for row in spark_rows([workload(1000, 1.6), workload(8, 4.0)]) if row.unit == "x"]
    assert [(row.workload, row.median, row.is_met) for row in rows] == [
        ("W8", 0.625, True),
        ("W11", 0.25, None),
        ("W11", 0.4, False),
    ]


def test_of_the_peers_table_our_own_rows_are_taken() -> None:
    def row(system: str) -> Any:
        return {
            "system": system,
            "label": "W1",
            "workload": "batches-100",
            "case": "publish",
            "durability": "written",
            "unit": "messages/s",
            "values": [1.0, 3.0],
            "body_bytes": 100,
            "server_us": [0.4],
            "client_us": [0.7],
        }

    (ours,) = peers_rows([{"rows": [row("holdfast"), row("kafka")]}])
    assert (ours.workload, ours.case, ours.median) == ("W1", "batches-100: publish", 2.0)
