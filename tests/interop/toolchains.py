"""The toolchains of these tests, and their cache in `.interop/`, named by a hash of its inputs. A
test may be skipped only because one of these toolchains is missing (conftest.py)."""

import fcntl
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CACHE = ROOT / ".interop"

#: Toolchains that a machine may lack, and the tests that each one needs.
TOOLCHAINS: Mapping[str, str] = {
    "go": "the generated Go client, go-amqp, the readers of compose.yaml and dashboard (golang)",
    "node": "the generated TypeScript client, EventSource and rhea (package nodejs)",
    "npm": "the generated TypeScript client, EventSource and rhea (package npm)",
    "curl": "the examples of docs/http.md (package curl)",
    "cc": "python-qpid-proton, which is compiled (package gcc)",
    "javac": "qpid-jms and protonj2 (package openjdk-17-jdk-headless)",
    "mvn": "qpid-jms and protonj2 (package maven)",
    "cargo": "fe2o3-amqp (package cargo)",
    "prometheus": "the queries of the dashboard and the alerts (package prometheus)",
    "promtool": "the alerts' own cases (package prometheus)",
    "moto": "backups in a store that speaks the protocol of S3 (pip must reach a package index)",
    "dpkg-deb": "the Debian package (package dpkg)",
}

OAPI_CODEGEN = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"

#: Long enough for a download on a slow network, or a compiler on a busy machine.
BUILD_S = 1200


def need(*tools: str) -> None:
    """Skip the test when one of these toolchains is missing."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(skip_reason(tool))


def skip_reason(tool: str) -> str:
    """Return the reason for skipping a test that needs a toolchain."""
    return f"{tool} is missing: {TOOLCHAINS[tool]}"


def run(
    arguments: Sequence[str | Path], *, cwd: Path = ROOT, timeout_s: float = 60, **environ: str
) -> str:
    """Run a program to its end and return its standard output; a failure shows both outputs."""
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    shown = f"{arguments[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, shown[-8000:]
    return done.stdout


P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(build: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that builds in the cache: if two workers of pytest-xdist call it, the
    second one waits, and finds what the first one built."""

    @functools.wraps(build)
    def locked(*args: P.args, **named: P.kwargs) -> R:
        CACHE.mkdir(exist_ok=True)
        with (CACHE / f"{build.__module__}.{build.__name__}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return build(*args, **named)

    return locked


@one_at_a_time
def go_client(document: bytes) -> Path:
    """Return the program of go/, built with a client generated from an OpenAPI document."""
    sources = sorted((HERE / "go").iterdir())
    folder = cached_folder(
        "go", [OAPI_CODEGEN.encode(), document, *(s.read_bytes() for s in sources)]
    )
    program = folder / "client"
    if program.exists():
        return program
    generator = _generator()
    (folder / "holdfast").mkdir(exist_ok=True)
    copy_into(folder, sources)
    (folder / "openapi.json").write_bytes(document)
    run([generator, "-config", "oapi-codegen.yaml", "openapi.json"], cwd=folder)
    run(["go", "build", "-mod=readonly", "-o", "built", "."], cwd=folder, timeout_s=BUILD_S)
    (folder / "built").rename(program)
    return program


@one_at_a_time
def typescript_client(document: bytes) -> Path:
    """Return the folder whose `built/` has typescript/, compiled for an OpenAPI document."""
    sources = sorted(path for path in (HERE / "typescript").iterdir() if path.is_file())
    folder = cached_folder("typescript", [document, *(source.read_bytes() for source in sources)])
    if (folder / "built").exists():
        return folder
    copy_into(folder, sources)
    modules = _node_modules()
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(modules)
    (folder / "openapi.json").write_bytes(document)
    binaries = modules / ".bin"
    run([binaries / "openapi-typescript", "openapi.json", "-o", "schema.d.ts"], cwd=folder)
    run([binaries / "tsc", "--outDir", "unfinished"], cwd=folder, timeout_s=BUILD_S)
    (folder / "unfinished").rename(folder / "built")
    return folder


def _generator() -> Path:
    folder = cached_folder("oapi-codegen", [OAPI_CODEGEN.encode()])
    program = folder / "oapi-codegen"
    if not program.exists():
        run(["go", "install", OAPI_CODEGEN], timeout_s=BUILD_S, GOBIN=str(folder))
    return program


def _node_modules() -> Path:
    manifests = [HERE / "typescript" / name for name in ("package.json", "package-lock.json")]
    folder = cached_folder("node", [each.read_bytes() for each in manifests])
    modules = folder / "node_modules"
    if not (folder / "complete").exists():
        copy_into(folder, manifests)
        run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, timeout_s=BUILD_S)
        (folder / "complete").touch()
    return modules


def cached_folder(name: str, parts: Sequence[bytes]) -> Path:
    """Return the folder for these inputs; if it is new, delete the folders of older inputs."""
    digest = sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = CACHE / f"{name}-{digest}"
    if not folder.exists():
        for old in CACHE.glob(f"{name}-*"):
            shutil.rmtree(old)
        folder.mkdir(parents=True)
    return folder


@one_at_a_time
def go_reader(name: str) -> Path:
    """Return the program in the folder `name`, in Go, which reads a file of another project's
    format. Build it if needed; skip the test without Go."""
    need("go")
    sources = sorted((HERE / name).iterdir())
    folder = cached_folder(name, [each.read_bytes() for each in sources])
    program = folder / "reader"
    if not program.exists():
        copy_into(folder, sources)
        run(["go", "build", "-mod=readonly", "-o", "built", "."], cwd=folder, timeout_s=BUILD_S)
        (folder / "built").rename(program)
    return program


def copy_into(folder: Path, sources: Sequence[Path]) -> None:
    """Copy what differs: another worker may run what is there."""
    for source in sources:
        copied = folder / source.name
        if not copied.exists() or copied.read_bytes() != source.read_bytes():
            shutil.copy(source, copied)
