"""Both wheels together install the package `holdfast` and no other top-level folder. The wheel of
the client works alone."""

import csv
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from holdfast import __version__
from holdfast.testing import RunningBroker

ROOT = Path(__file__).parents[1]
PARTS = ("amqp", "commitlog", "consumequeue", "groups", "holdservice", "http_api", "spark")
SMOKE = ROOT / "tests" / "packaging" / "client_smoke.py"
#: Modules of the broker's dependencies, and modules that Windows does not have.
BLOCKED = (
    *("aiohttp", "click", "lark", "lmdb", "prometheus_client", "rich", "uvloop"),
    *("fcntl", "grp", "pwd", "resource", "termios"),
)
#: Functions and constants of `os` that Windows does not have.
ONLY_UNIX = (
    *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH", "fdatasync", "geteuid", "posix_fadvise"),
    *("posix_fallocate", "pread", "preadv", "pwrite", "pwritev", "sendfile"),
)
LEFT_OUT = shutil.ignore_patterns(
    *(".git", ".venv", ".peers", ".interop", ".*_cache", ".hypothesis", "__pycache__"),
    *("build", "dist", "*.egg-info"),
)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the two wheels by name, built from a copy of the checkout, so that no stale build
    folder is used."""
    folder = tmp_path_factory.mktemp("wheels")
    source = folder / "source"
    source.mkdir()
    for name in ("holdfast", *PARTS, "packaging"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=LEFT_OUT)
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    built = {}
    for name, project in {"holdfast": ".", "holdfast_client": "packaging/client"}.items():
        _run("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source / project)
        (built[name],) = folder.glob(f"{name}-*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that contains only the two installed wheels."""
    target = tmp_path_factory.mktemp("site")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target)
    _run(*install, *wheels.values())
    return target


@pytest.fixture(scope="module")
def client_python(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment with holdfast-client and its own dependencies. The
    dependencies are links to those of this environment, so nothing is downloaded."""
    home = tmp_path_factory.mktemp("client")
    venv.create(home, with_pip=False, symlinks=True)
    (target,) = home.glob("lib/python*/site-packages")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target)
    _run(*install, wheels["holdfast_client"])
    with zipfile.ZipFile(wheels["holdfast_client"]) as archive:
        metadata = archive.read(f"holdfast_client-{__version__}.dist-info/METADATA").decode()
    waiting = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    while waiting:
        needed = Requirement(waiting.pop())
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            found = distribution(needed.name)
            for name in {path.parts[0] for path in found.files or []} - {"..", "__pycache__"}:
                if not (target / name).exists():
                    (target / name).symlink_to(str(found.locate_file(name)))
            waiting += found.requires or []
    return home / "bin" / "python"


def _run(
    *arguments: object,
    cwd: Path | None = None,
    path: Path | None = None,
    python: Path | str = sys.executable,
) -> str:
    done = subprocess.run(
        [python, *map(str, arguments)],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        | ({"PYTHONPATH": str(path)} if path else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_installs_holdfast_and_nothing_beside_it(site: Path) -> None:
    names = {path.name for path in site.iterdir() if path.name != "bin"}
    metadata = {name for name in names if name.endswith(".dist-info")}
    assert len(metadata) == 2
    assert names - metadata == {"holdfast", "share"}
    assert [path.name for path in (site / "bin").iterdir()] == ["holdfast"]


def test_it_installs_the_man_page_and_completion_where_shells_look(site: Path) -> None:
    share = site / "share"
    assert {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()} == {
        "man/man1/holdfast.1",
        "bash-completion/completions/holdfast",
        "zsh/site-functions/_holdfast",
        "fish/vendor_completions.d/holdfast.fish",
    }


def _record(wheel: Path) -> set[str]:
    """Return the names in the RECORD of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        return {row[0] for row in csv.reader(archive.read(record).decode().splitlines())}


def test_no_file_is_in_both_wheels(wheels: dict[str, Path]) -> None:
    broker, client = _record(wheels["holdfast"]), _record(wheels["holdfast_client"])
    assert broker & client == set()
    listed = (ROOT / "packaging" / "client" / "files.txt").read_text().split()
    assert {name for name in client if name.startswith("holdfast/")} == {
        *listed,
        "holdfast/py.typed",
    }


def test_both_wheels_hold_every_file_of_the_source(wheels: dict[str, Path]) -> None:
    expected = {"holdfast/py.typed"}
    for pattern in ("*.py", "*.lark", "*.js", "*.css", "*.html", "*.svg"):
        expected |= {
            f"holdfast/{part}/{path.relative_to(ROOT / part)}"
            for part in PARTS
            for path in (ROOT / part).rglob(pattern)
        }
        expected |= {
            str(path.relative_to(ROOT))
            for path in (ROOT / "holdfast").rglob(pattern)
            if path.relative_to(ROOT / "holdfast").parts[0] not in PARTS
        }
    found = {name for wheel in wheels.values() for name in _record(wheel)}
    assert {name for name in found if name.startswith("holdfast/")} == expected


def test_the_client_alone_publishes_pulls_and_consumes(
    client_python: Path, holdfast_session_broker: RunningBroker, tmp_path: Path
) -> None:
    said = _run("-I", SMOKE, holdfast_session_broker.url, cwd=tmp_path, python=client_python)
    assert "the client works" in said
    absent = "import holdfast, importlib.util as u; print(u.find_spec('holdfast.broker'))"
    assert _run("-I", "-c", absent, cwd=tmp_path, python=client_python) == "None\n"


def test_the_client_is_imported_where_only_its_dependencies_are(
    client_python: Path, tmp_path: Path
) -> None:
    # lmdb, lark and uvloop cannot be found, and neither can what only Linux or Unix has.
    code = (
        "import os, runpy, sys\n"
        f"for name in {BLOCKED}: sys.modules[name] = None\n"
        f"for name in {ONLY_UNIX}: delattr(os, name)\n"
        f"sys.argv = [{str(SMOKE)!r}]\n"
        f"runpy.run_path({str(SMOKE)!r}, run_name='__main__')\n"
    )
    said = _run("-I", "-c", code, cwd=tmp_path, python=client_python)
    listed = (ROOT / "packaging" / "client" / "files.txt").read_text().split()
    assert said.startswith(f"{len(listed)} modules imported")


def test_it_works_in_a_folder_with_its_own_spark_and_tests(site: Path, tmp_path: Path) -> None:
    for name in ("spark", "tests", "commitlog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("mine = True\n")
    imports = "; ".join(f"import holdfast.{part}" for part in PARTS if part != "spark")
    said = _run(
        "-c",
        f"{imports}; import spark, tests, commitlog, holdfast.commitlog.format.batch\n"
        "assert spark.mine and tests.mine and commitlog.mine\n"
        "print(holdfast.__file__)",
        cwd=tmp_path,
        path=site,
    )
    assert said.strip() == str(site / "holdfast" / "__init__.py")
    assert "serve" in _run("-m", "holdfast", "--help", cwd=tmp_path, path=site)


@pytest.mark.fault  # slow: a type checker reads the whole client
def test_type_checkers_see_the_package_in_the_environment_of_a_checkout(tmp_path: Path) -> None:
    # C3: type checkers do not understand the import hook of an editable installation
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=LEFT_OUT)
    (setting,) = re.findall(r"--config-settings (\S+)", (ROOT / ".ci" / "make-venv").read_text())
    name, _, value = setting.partition("=")
    build = "import sys; from setuptools.build_meta import build_editable as build; "
    _run("-c", f"{build}build({str(tmp_path)!r}, {{{name!r}: {value!r}}})", cwd=source)
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as editable:
        editable.extractall(site)
    (tmp_path / "use.py").write_text(
        "from holdfast import Client\n"
        "from holdfast.commitlog.format.batch import Batch\n"
        "reveal_type(Client)\n"
        "reveal_type(Batch)\n"
    )
    python = tmp_path / "venv" / "bin" / "python"
    shown = _run("-m", "mypy", "--python-executable", python, "use.py", cwd=tmp_path)
    assert "holdfast.client.sync_client.Client" in shown
    assert "holdfast.commitlog.format.batch.Batch" in shown


def test_an_interactive_session_is_offered_the_lazy_names() -> None:
    # C3: `holdfast.<TAB>` did not offer Client
    for module in ("holdfast", "holdfast.client"):
        code = f"import {module} as m; print({{*m.__all__}} <= {{*dir(m)}}, 'Client' in dir(m))"
        assert _run("-c", code, cwd=ROOT).split() == ["True", "True"]
