import io
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

import holdfast
from holdfast.spark.__main__ import main
from holdfast.spark.options.write import parse_write_options
from holdfast.spark.session import ship
from holdfast.spark.shipping import EXECUTORS_NEED, build_archive, ship_archive
from holdfast.spark.source import HoldfastDataSource
from holdfast.spark.stream.source import HoldfastStreamReader
from holdfast.spark.write.sink import HoldfastStreamWriter, RowWriter
from tests.cluster.clusters import python_with
from tests.support.tree.layers import MODULES, own_imports

PACKAGE = Path(holdfast.__file__).parent
LIBRARIES = (*EXECUTORS_NEED, "pyspark", "py4j")


@pytest.fixture(autouse=True)
def nothing_shipped() -> Iterator[None]:
    """Later tests pickle without the archive that a test has shipped."""
    yield
    ship_archive(None)


def run(
    python: Path | str, program: str, folder: Path, input: bytes = b"", **environment: str
) -> bytes:
    """Run a program that can import only its libraries, and return its output."""
    done = subprocess.run(
        [str(python), "-c", program],
        input=input,
        env=environment,
        cwd=folder,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def dumped(thing: Any) -> bytes:
    return bytes(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    path = tmp_path / "sent.zip"
    main([str(path)])
    return path


def test_the_archive_is_exactly_the_package(archived: Path) -> None:
    with zipfile.ZipFile(archived) as zipped:
        assert zipped.testzip() is None
        names = zipped.namelist()
        source = zipped.read("holdfast/spark/source.py")
    assert source == (PACKAGE / "spark" / "source.py").read_bytes()
    assert {"holdfast/__init__.py", "holdfast/commitlog/format/batch.py"} < set(names)
    assert all(name.startswith("holdfast/") and "__pycache__" not in name for name in names)


def test_the_same_source_is_the_same_archive() -> None:
    assert build_archive() == build_archive()


def test_an_executor_needs_only_the_listed_packages(archived: Path, tmp_path: Path) -> None:
    python = python_with(LIBRARIES, tmp_path / "python")
    program = "import holdfast.spark.source as s, holdfast.spark.read.fetch; print(s.__file__)"
    path = run(python, program, tmp_path, PYTHONPATH=str(archived)).decode().strip()
    assert path == f"{archived}/holdfast/spark/source.py"


def test_an_executor_can_import_all_that_reading_and_writing_use(
    archived: Path, tmp_path: Path
) -> None:
    parts = ("spark", "holdfast.arrow", "holdfast.log_files")
    used = {each for each in MODULES if each.startswith(parts)}
    for each in tuple(used):  # imports within functions, too
        used.update(own for _, own in own_imports(MODULES[each], at_runtime=True))
    names = sorted(f"holdfast.{each}".replace("holdfast.holdfast", "holdfast") for each in used)
    python = python_with(LIBRARIES, tmp_path / "python")
    program = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    run(python, program, tmp_path, PYTHONPATH=str(archived))


@pytest.mark.parametrize("missing", EXECUTORS_NEED)
def test_an_executor_needs_each_listed_package(
    archived: Path, tmp_path: Path, missing: str
) -> None:
    rest = tuple(each for each in LIBRARIES if each != missing)
    program = (
        "try: import holdfast.spark.source, holdfast.spark.read.fetch\n"
        "except ModuleNotFoundError as error: print(error.name)"
    )
    python = python_with(rest, tmp_path / "python")
    name = run(python, program, tmp_path, PYTHONPATH=str(archived)).decode().strip()
    assert name.replace("_", "-") == missing


def test_a_program_that_runs_from_the_archive_sends_the_archive(
    archived: Path, tmp_path: Path
) -> None:
    program = (
        "import sys, holdfast.spark.shipping as s\n"
        "assert str(s.find_own_archive()) == sys.path[1], s.find_own_archive()\n"
        f"open({str(tmp_path / 'again.zip')!r}, 'wb').write(s.build_archive())"
    )
    run(sys.executable, program, tmp_path, PYTHONPATH=str(archived))
    assert (tmp_path / "again.zip").read_bytes() == archived.read_bytes()


def test_ship_sends_the_archive_and_then_registers_the_source() -> None:
    seen: list[object] = []

    class Session:
        def __init__(self) -> None:
            self.dataSource = SimpleNamespace(register=lambda source: seen.append(source.name()))

        def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802  Spark's name
            assert pyfile
            with zipfile.ZipFile(io.BytesIO(Path(path).read_bytes())) as zipped:
                seen.append(len(zipped.namelist()) > 100)

    session = Session()
    first, second = ship(session), ship(session)  # type: ignore[arg-type]
    assert seen == [True, "holdfast"] * 2
    assert first.name == second.name, "Spark takes the second for what it has"
    assert first.read_bytes() in dumped(HoldfastDataSource)


def test_the_program_writes_the_archive_and_prints_nothing(tmp_path: Path) -> None:
    arguments = [sys.executable, "-W", "error", "-m", "holdfast.spark", str(tmp_path / "out.zip")]
    assert subprocess.run(arguments, capture_output=True, check=True).stderr == b""
    assert (tmp_path / "out.zip").read_bytes() == build_archive()


@pytest.mark.parametrize("arguments", [[], ["out.tar"], ["a.zip", "b.zip"]])
def test_the_program_prints_its_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"usage: .*FILE\.zip"):
        main(arguments)


# -- pickles that contain the archive


#: Program: unpickle the input, check it, and write it pickled again.
SEND_ON = (
    "import sys, pickle\n"
    "from pyspark import cloudpickle\n"
    "source = pickle.load(sys.stdin.buffer)\n"
    "assert source.options == {'url': 'http://here'}, source.options\n"
    "assert source.name() == 'holdfast'\n"
    "sys.stdout.buffer.write(cloudpickle.dumps(source))"
)


def test_a_source_is_pickled_by_name_if_nothing_was_shipped() -> None:
    assert len(dumped(HoldfastDataSource)) < 200
    assert cloudpickle.loads(dumped(HoldfastDataSource)) is HoldfastDataSource


def test_a_source_brings_its_package_from_process_to_process(tmp_path: Path) -> None:
    ship_archive(build_archive())
    python = python_with(LIBRARIES, tmp_path / "python")
    (tmp_path / "local").mkdir()
    sent = dumped(HoldfastDataSource({"url": "http://here"}))
    folders = f"{tmp_path / 'local'},{tmp_path / 'other'}"
    for _ in range(2):
        sent = run(python, SEND_ON, tmp_path, sent, SPARK_LOCAL_DIRS=folders)
    assert len(list((tmp_path / "local").iterdir())) == 2, "one a process, in Spark's own folder"


def test_a_streams_writer_brings_its_package_into_tasks(tmp_path: Path) -> None:
    ship_archive(build_archive())
    options = parse_write_options({"url": "http://here", "topic": "orders"}, streaming=True)
    writer = HoldfastStreamWriter(RowWriter(options, {}, ()))
    python = python_with(LIBRARIES, tmp_path / "python")
    program = "import sys, pickle; print(pickle.load(sys.stdin.buffer)._rows.options.topic)"
    topic = run(python, program, tmp_path, dumped(writer), SPARK_LOCAL_DIRS=str(tmp_path))
    assert topic == b"orders\n"


def test_the_reader_of_a_stream_carries_the_archive() -> None:
    assert len(dumped(HoldfastStreamReader)) < 200
    ship_archive(b"the archive")
    assert b"the archive" in dumped(HoldfastStreamReader)


def test_a_process_that_has_the_package_unpacks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    ship_archive(build_archive())
    assert cloudpickle.loads(dumped(HoldfastDataSource)) is HoldfastDataSource
    assert not list(tmp_path.iterdir())
