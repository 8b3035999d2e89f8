"""The four ways to run Spark on which the contracts are tested.

On one machine the workers' Python has holdfast installed. In the other three cases it has only the
packages that an executor needs in addition: local-cluster gets holdfast at submit, and the job
sends holdfast to a standalone cluster and over Spark Connect.
"""

import sys
import venv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from holdfast.spark.shipping import EXECUTORS_NEED, build_archive
from tests.cluster.spark_processes import JAVA_OPTIONS, clean_environment, running

_LOOPBACK = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True)
class Cluster:
    """A master, or the address of a Connect server, where a job runs. `must_ship` is True if the
    processes there lack holdfast until the job sends it. `path` is where the job itself imports the
    package from, instead of the checkout."""

    environment: Mapping[str, str]
    master: str | None = None
    remote: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    must_ship: bool = False
    path: Sequence[str] = ()


@contextmanager
def local(folder: Path) -> Iterator[Cluster]:
    """Yield one process for all, two threads."""
    yield Cluster(_with_holdfast(), master="local[2]", settings=_LOOPBACK)


@contextmanager
def local_cluster(folder: Path) -> Iterator[Cluster]:
    """Yield two executor processes that the driver starts by itself."""
    environment = clean_environment(python_with(EXECUTORS_NEED, folder / "python"))
    package = folder / "holdfast.zip"
    package.write_bytes(build_archive())
    settings = {
        **_LOOPBACK,
        "spark.executor.memory": "800m",
        "spark.submit.pyFiles": str(package),  # what `spark-submit --py-files` sets
    }
    yield Cluster(
        environment, master="local-cluster[2,1,1024]", settings=settings, path=[str(package)]
    )


@contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    """Yield a master and two workers, whose Python does not have holdfast."""
    environment = clean_environment(python_with(EXECUTORS_NEED, folder / "python"))
    deploy = "org.apache.spark.deploy"
    anywhere = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        started = stack.enter_context(
            running(
                [f"{deploy}.master.Master", *anywhere],
                environment,
                folder / "master.log",
                ready=r"Starting Spark master at (spark://\S+)",
            )
        )
        for number in range(2):
            stack.enter_context(
                running(
                    [
                        *(f"{deploy}.worker.Worker", *anywhere, "--cores", "1", "--memory", "1g"),
                        *("--work-dir", str(folder / f"work-{number}"), started[1]),
                    ],
                    environment,
                    folder / f"worker-{number}.log",
                    ready="Successfully registered with master",
                )
            )
        settings = {**_LOOPBACK, "spark.executor.memory": "800m"}
        yield Cluster(environment, master=started[1], settings=settings, must_ship=True)


@contextmanager
def connect(folder: Path) -> Iterator[Cluster]:
    """Yield a Spark Connect server whose Python does not have holdfast."""
    environment = clean_environment(python_with(EXECUTORS_NEED, folder / "python"))
    server = {
        **_LOOPBACK,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    with running(
        [
            *("org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *(word for name, value in server.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
        ],
        environment,
        folder / "connect.log",
        ready=r"Spark Connect server started at: \S*?:(\d+)",
    ) as started:
        yield Cluster(environment, remote=f"sc://127.0.0.1:{started[1]}", must_ship=True)


CLUSTERS: Mapping[str, Callable[[Path], AbstractContextManager[Cluster]]] = {
    "local": local,
    "local-cluster": local_cluster,
    "standalone": standalone,
    "connect": connect,
}


def python_with(distributions: Iterable[str], folder: Path) -> Path:
    """Make an environment that has these distributions of this one's, and return its Python."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = folder / "lib" / version / "site-packages"
    for name in distributions:
        installed = metadata.distribution(name)
        tops = {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            (libraries / top).symlink_to(Path(str(installed.locate_file(top))))
    return folder / "bin" / "python"


def _with_holdfast() -> dict[str, str]:
    """Return an environment whose Python is this one, with this checkout first on its path."""
    root = str(Path(__file__).parents[2])
    return {**clean_environment(Path(sys.executable)), "PYTHONPATH": root}
