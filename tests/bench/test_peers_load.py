"""A load of bench.peers: what is measured of it, and what is said when it fails."""

import sys

import psutil
import pytest

from bench.peers.system import Server


def _server(program: str) -> Server:
    return Server("nowhere", "", [psutil.Process()], [sys.executable, "-c", program])


def test_the_servers_time_counts_from_where_the_load_begins() -> None:
    server = _server(
        "import json, sys; asked = json.loads(sys.argv[1]); print('warm'); print('begins');"
        "print(json.dumps({'messages': asked['messages'], 'body_bytes': 1, 'seconds': 0.5,"
        " 'client_cpu_s': 0.1, 'latencies_ms': [2, 1]}))"
    )
    readings = iter([1.0, 5.0, 7.5])
    server.cpu_s = lambda: next(readings)  # type: ignore[method-assign]
    measured = server.load("publish", messages=10)
    assert measured.server_cpu_s == 2.5
    assert (measured.messages, measured.seconds) == (10, 0.5)
    assert measured.latencies_ms == (1, 2)


def test_a_load_that_fails_is_told_in_its_own_words() -> None:
    with pytest.raises(RuntimeError, match=r"consume failed: .*no such queue"):
        _server("raise SystemExit('no such queue')").load("consume")
