import io
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import holdfast
from holdfast.spark.__main__ import main
from holdfast.spark.deploy.archive import EXECUTORS_NEED, build_archive
from holdfast.spark.session import ship
from tests.cluster.clusters import python_with

PACKAGE = Path(holdfast.__file__).parent


def run(python: Path | str, program: str, path: Path, folder: Path) -> str:
    """Run a program that can import only its libraries and `path`."""
    done = subprocess.run(
        [str(python), "-c", program],
        env={"PYTHONPATH": str(path)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    path = tmp_path / "sent.zip"
    main([str(path)])
    return path


def test_the_archive_is_the_package_and_nothing_beside_it(archived: Path) -> None:
    with zipfile.ZipFile(archived) as zipped:
        assert zipped.testzip() is None
        names = zipped.namelist()
        source = zipped.read("holdfast/spark/source.py")
    assert source == (PACKAGE / "spark" / "source.py").read_bytes()
    assert {"holdfast/__init__.py", "holdfast/commitlog/format/batch.py"} < set(names)
    assert all(name.startswith("holdfast/") and "__pycache__" not in name for name in names)


def test_the_same_source_is_the_same_archive() -> None:
    assert build_archive() == build_archive()


def test_an_executor_needs_only_what_is_named(archived: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    said = run(
        python_with((*EXECUTORS_NEED, "pyspark", "py4j"), tmp_path / "python"),
        "import holdfast.spark.source as s, holdfast.spark.arrow.messages; print(s.__file__)",
        archived,
        tmp_path,
    )
    assert said.strip() == f"{archived}/holdfast/spark/source.py"


@pytest.mark.parametrize("missing", EXECUTORS_NEED)
def test_an_executor_needs_each_of_what_is_named(
    archived: Path, tmp_path: Path, missing: str
) -> None:
    pytest.importorskip("pyspark")
    rest = (*set(EXECUTORS_NEED).difference([missing]), "pyspark", "py4j")
    program = (
        "try: import holdfast.spark.source, holdfast.spark.arrow.messages\n"
        "except ModuleNotFoundError as error: print(error.name)"
    )
    said = run(python_with(rest, tmp_path / "python"), program, archived, tmp_path)
    assert said.strip().replace("_", "-") == missing


def test_a_program_that_runs_from_the_archive_sends_the_archive(
    archived: Path, tmp_path: Path
) -> None:
    program = (
        "import sys, holdfast.spark.deploy.archive as s\n"
        "assert str(s.find_own_archive()) == sys.path[1], s.find_own_archive()\n"
        f"open({str(tmp_path / 'again.zip')!r}, 'wb').write(s.build_archive())"
    )
    run(sys.executable, program, archived, tmp_path)
    assert (tmp_path / "again.zip").read_bytes() == archived.read_bytes()


def test_a_session_is_sent_the_archive_and_then_told_of_the_source() -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    from holdfast.spark.source import HoldfastDataSource

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
    assert first.read_bytes() in cloudpickle.dumps(HoldfastDataSource)


def test_the_program_writes_the_archive_and_says_nothing(tmp_path: Path) -> None:
    arguments = [sys.executable, "-W", "error", "-m", "holdfast.spark", str(tmp_path / "out.zip")]
    assert subprocess.run(arguments, capture_output=True, check=True).stderr == b""
    assert (tmp_path / "out.zip").read_bytes() == build_archive()


@pytest.mark.parametrize("arguments", [[], ["out.tar"], ["a.zip", "b.zip"]])
def test_the_program_says_how_it_is_called(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"usage: .*FILE\.zip"):
        main(arguments)
