"""The results of the rounds of bench.peers, kept over several runs."""

from bench.peers.results import Results
from bench.peers.system import Measured
from bench.peers.workload import Result
from bench.peers.workloads import WORKLOADS

SINGLES = next(each for each in WORKLOADS if each.name == "singles")


def _results(system: str, *rates: float) -> Results:
    results = Results()
    for rate in rates:
        measured = Measured(1000, 1024, 1.0, client_cpu_s=0.5, server_cpu_s=0.25)
        results.add(SINGLES, system, [Result("16 producers, one client", rate, measured)])
    return results


def test_rounds_of_an_earlier_run_count_like_the_rounds_of_this_run() -> None:
    earlier = _results("holdfast", 10.0, 30.0)
    earlier.settings["holdfast 1, fsync"] = "defaults"
    earlier.sizes["holdfast, fsync"] = {"singles": 1000}
    later = Results()
    later.add_earlier(earlier.as_json(), WORKLOADS)
    measured = Measured(1000, 1024, 1.0, client_cpu_s=0.5, server_cpu_s=0.25)
    later.add(SINGLES, "holdfast", [Result("16 producers, one client", 20.0, measured)])
    (row,) = later.rows()
    assert row.values == [10.0, 30.0, 20.0]
    assert row.median == 20.0
    assert row.server_us == [250.0] * 3
    assert later.sizes == {"holdfast, fsync": {"singles": 1000}}
    assert later.settings == {"holdfast 1, fsync": "defaults"}


def test_a_case_that_is_no_longer_measured_is_left_out() -> None:
    earlier = _results("holdfast", 10.0).as_json()
    earlier["rows"][0]["case"] = "17 producers"
    later = Results()
    later.add_earlier(earlier, WORKLOADS)
    assert later.rows() == []
