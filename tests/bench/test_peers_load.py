"""The measurements of a load of bench.peers, and its error messages."""

import sys

import psutil
import pytest

from bench.peers.system import Server


def _server(program: str) -> Server:
    return Server("nowhere", "", [psutil.Process()], [sys.executable, "-c", program])


def test_the_servers_cpu_time_is_counted_from_the_begin_of_the_load() -> None:
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


def test_the_error_of_a_failed_load_contains_its_output() -> None:
    with pytest.raises(RuntimeError, match=r"consume failed: .*no such queue"):
        _server("raise SystemExit('no such queue')").load("consume")
