"""One job: a session on the cluster that its input names, all contracts in it, a JSON of results.

It is started by `run_job` as a program of its own: there is one JVM context a process.
"""

import json
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.spark import register, ship
from tests.cluster.clusters import Cluster
from tests.cluster.contracts import CONTRACTS, Job, refusal
from tests.cluster.published import Published
from tests.cluster.spark_processes import TOGETHER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parents[2]
#: The job runs neither with `-m` nor in the checkout. Otherwise Python, and the workers that
#: inherit its folder, would import holdfast from the checkout.
_PROGRAM = (
    "import sys; output, *path = sys.argv[1:]; sys.path[:0] = path; "
    "from tests.cluster.job import main; main(output)"
)


def run_job(
    name: str, cluster: Cluster, published: Published, folder: Path, *, timeout_s: float
) -> "Found":
    """Run the job in a separate process, and return its results. Raises JobFailed."""
    given = {"name": name, "cluster": asdict(cluster), "published": asdict(published)}
    output = folder / "results.json"
    with (folder / "job.log").open("wb") as log:
        process = subprocess.Popen(
            [*TOGETHER, sys.executable, "-c", _PROGRAM, str(output), *cluster.path, str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(cluster.environment),
        )
        try:
            process.communicate(json.dumps(given).encode(), timeout_s)
        finally:
            process.kill()  # its JVM ends with it
            process.wait()
    if not output.exists():
        raise JobFailed((folder / "job.log").read_text(errors="replace")[-6000:])
    return Found(**json.loads(output.read_bytes()))


class JobFailed(Exception):
    """The job ended without results. The text is the end of its log."""


@dataclass
class Found:
    """The result of each contract, or its traceback, and its duration. `unshipped` is the error of
    a read before the package is sent, on clusters that must be sent the package."""

    results: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    unshipped: str | None = None


def main(output: str) -> None:
    """Run the contracts of the job given on standard input; results go to the file `output`."""
    given = json.load(sys.stdin)
    cluster, published = Cluster(**given["cluster"]), Published(**given["published"])
    started = time.monotonic()
    spark = _session(cluster)
    found = Found(seconds={"session": time.monotonic() - started})
    job = Job(given["name"], spark, published, Path.cwd())
    register(spark)
    if cluster.must_ship:
        found.unshipped = refusal(lambda: job.load().count(), "ModuleNotFoundError:")
        ship(spark)
    for name, check in CONTRACTS.items():
        began = time.monotonic()
        try:
            found.results[name] = check(job)
        except Exception:
            found.failures[name] = traceback.format_exc()
        found.seconds[name] = time.monotonic() - began
    Path(output).write_text(json.dumps(asdict(found)))
    spark.stop()


def _session(cluster: Cluster) -> "SparkSession":
    from pyspark.sql import SparkSession

    if cluster.remote is not None:
        return SparkSession.builder.remote(cluster.remote).getOrCreate()
    assert cluster.master is not None
    builder = SparkSession.builder.master(cluster.master).appName("holdfast contracts")
    for name, value in cluster.settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
