"""The Debian package: it contains what the unit of systemd starts, and this broker serves."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.interop.toolchains import BUILD_S, ROOT, need, run

DEB = ROOT / "packaging" / "deb"
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("dpkg-deb")
    folder = tmp_path_factory.mktemp("deb")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=_LEFT_OUT)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    run([*build, folder / "source"], timeout_s=BUILD_S)
    run([*build, folder / "source" / "packaging" / "client"], timeout_s=BUILD_S)
    wheels = [next(folder.glob(f"{name}-*.whl")) for name in ("holdfast", "holdfast_client")]
    run([DEB / "build", *wheels, folder], timeout_s=BUILD_S)
    (built,) = folder.glob("*.deb")
    return built


@pytest.fixture(scope="module")
def tree(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the package, unpacked in a folder."""
    target = tmp_path_factory.mktemp("unpacked")
    run(["dpkg-deb", "--extract", package, target])
    return target


def field(package: Path, name: str) -> str:
    return run(["dpkg-deb", "--field", package, name]).strip()


def test_the_package_names_what_it_needs(package: Path) -> None:
    assert field(package, "Version") == __version__
    (minor,) = re.findall(r"python(3\.\d+),", field(package, "Depends"))
    assert shutil.which(f"/usr/bin/python{minor}")
    # /bin/kill, which the unit runs for a reload.
    assert "procps" in field(package, "Depends")
    listed = run(["dpkg-deb", "--contents", package])
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}


def test_the_package_has_every_file_in_its_place(tree: Path) -> None:
    for path, source in {
        "lib/systemd/system/holdfast.service": "systemd/holdfast.service",
        "usr/lib/sysusers.d/holdfast.conf": "systemd/holdfast.sysusers",
        "etc/holdfast/holdfast.toml": "holdfast.toml",
        "usr/share/bash-completion/completions/holdfast": "completion/bash/holdfast",
    }.items():
        assert (tree / path).read_bytes() == (ROOT / "packaging" / source).read_bytes(), path
    assert (tree / "usr/share/man/man1/holdfast.1.gz").is_file()
    assert (tree / "usr/bin/holdfast").readlink() == Path("/opt/holdfast/bin/holdfast")
    unit = (tree / "lib/systemd/system/holdfast.service").read_text()
    (program,) = re.findall(r"^ExecStart=(\S+)", unit, re.M)
    assert (tree / program[1:]).is_file()


def test_no_file_names_the_folder_where_the_package_was_built(package: Path, tree: Path) -> None:
    programs = tree / "opt" / "holdfast" / "bin"
    assert programs.joinpath("holdfast").read_text().startswith("#!/opt/holdfast/bin/python3\n")
    found = subprocess.run(
        ["grep", "-rlI", "-e", "/tmp/tmp", "-e", str(package.parent), tree / "opt" / "holdfast"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""


def test_the_broker_of_the_package_serves(tree: Path, tmp_path: Path) -> None:
    program = (str(tree / "opt" / "holdfast" / "bin" / "python3"), "-I", "-m", "holdfast")
    broker = RunningBroker(tmp_path / "data", TEST_ARGUMENTS, program=program)
    with broker, broker.client() as client:
        assert client.publish("orders", b"one").durable
        assert client.info().version == __version__


@pytest.mark.parametrize("name", ["build", "postinst", "prerm", "postrm"])
def test_the_scripts_of_the_package_are_correct(name: str) -> None:
    shell = (DEB / name).read_text().splitlines()[0].split("/")[-1].split()[-1]
    run([shell, "-n", DEB / name])
