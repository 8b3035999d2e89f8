"""While syncs take a second, only durable publishes wait: p99 of others is below 50 ms. The best
round counts, because a machine may be busy; a slow round may also take at most twice as long as one
with a quick disk, which is traced too if the slow disk is: tracing stops each system call."""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import Calls
from tests.support.damage import slow_broker
from tests.support.damage.system_faults import injected
from tests.support.histories.latency_probe import Latencies, prepare, probe

pytestmark = [pytest.mark.fault, pytest.mark.machine, pytest.mark.timeout(600)]

_PROMISED_S = 0.05
_ROUNDS = 10
_ROUND_S = 3.0


def _broker(tmp_path: Path, seconds: float, how: str) -> RunningBroker:
    program = (sys.executable, slow_broker.__file__, str(seconds), how)
    return RunningBroker(tmp_path / "data", program=program)


def _excess_of_the_best_round(
    broker: RunningBroker, tmp_path: Path, *, rounds: int = _ROUNDS, is_traced: bool = False
) -> float:
    """Return the slowest p99 of the best round, divided by the allowed p99: at most 1 passes. A
    traced broker also stores offsets, because the syncs of its state are slow too."""
    best = float("inf")
    for number in range(rounds):
        found = probe(broker.url, _ROUND_S, store_offsets=is_traced)
        _is_about_slow_syncs(found)
        what, p99_s = found.slowest()
        allowed_s = _PROMISED_S
        if p99_s > allowed_s:
            quick_s = _p99_with_a_quick_disk(tmp_path / f"quick-{number}", is_traced=is_traced)
            allowed_s = max(allowed_s, 2 * quick_s)
        print(f"{what}: p99 {p99_s * 1000:.1f} ms of {allowed_s * 1000:.1f} ms")
        best = min(best, p99_s / allowed_s)
        if best <= 1:
            break
    return best


def _p99_with_a_quick_disk(data_dir: Path, *, is_traced: bool) -> float:
    with RunningBroker(data_dir) as broker:
        prepare(Calls(broker.url))
        log = data_dir.with_suffix(".strace")
        with injected(broker.pid, "fdatasync:delay_enter=1", log) if is_traced else nullcontext():
            return probe(broker.url, _ROUND_S, store_offsets=is_traced).slowest()[1]


def _is_about_slow_syncs(found: Latencies) -> None:
    published = sorted(found.of["publish"])
    assert published[len(published) // 2] > 0.25, "the disk is not slow"


def test_nothing_but_durable_publishes_waits_for_a_slow_sync(tmp_path: Path) -> None:
    with _broker(tmp_path, 1.0, "sleep") as broker:
        prepare(Calls(broker.url))
        assert _excess_of_the_best_round(broker, tmp_path) <= 1


def test_nothing_but_writers_waits_for_slow_syncs_of_log_index_and_state(tmp_path: Path) -> None:
    """The syncs are slowed down at the system calls, so LMDB's own syncs are slow too."""
    with RunningBroker(tmp_path / "data") as broker:
        prepare(Calls(broker.url))
        with injected(broker.pid, "fdatasync:delay_enter=1000000", tmp_path / "strace.log"):
            assert _excess_of_the_best_round(broker, tmp_path, is_traced=True) <= 1


@pytest.mark.planted
def test_the_probe_sees_a_sync_that_holds_the_interpreters_lock(tmp_path: Path) -> None:
    with _broker(tmp_path, 1.0, "hold") as broker:
        prepare(Calls(broker.url))
        assert _excess_of_the_best_round(broker, tmp_path, rounds=1) > 2, (
            "the probe would not see it"
        )
