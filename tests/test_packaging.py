"""The wheel installs the complete package `holdfast` and no other top-level folder."""

import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("amqp", "commitlog", "consumequeue", "groups", "holdservice", "http_api", "spark")
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.egg-info"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel built from a copy of the checkout, so that no stale build folder is used."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=LEFT_OUT)
    _run("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, folder / "source")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that contains only the installed wheel."""
    target = tmp_path_factory.mktemp("site")
    _run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel)
    return target


def _run(*arguments: object, cwd: Path | None = None, path: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
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
    assert len(metadata) == 1
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


def test_it_holds_every_file_of_the_source(wheel: Path) -> None:
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
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if name.startswith("holdfast/")}
    assert found == expected


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
