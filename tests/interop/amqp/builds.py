"""Builds of the clients of AMQP, cached in `.interop/` (toolchains.py). Each function returns the
command that starts a client; the URL of the broker is its last argument."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.interop.toolchains import BUILD_S, cached_folder, copy_into, one_at_a_time, run

HERE = Path(__file__).parent
PROTON = "python-qpid-proton==0.40.0"


@one_at_a_time
def go_client() -> list[str]:
    """Build the program of go/ with go-amqp."""
    folder = _sources("amqp-go", "go")
    program = folder / "client"
    if not program.exists():
        run(["go", "build", "-mod=readonly", "-o", "built", "."], cwd=folder, timeout_s=BUILD_S)
        (folder / "built").rename(program)
    return [str(program)]


@one_at_a_time
def rhea_client() -> list[str]:
    """Install rhea next to the program of node/."""
    folder = _sources("amqp-rhea", "node")
    if not (folder / "complete").exists():
        run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, timeout_s=BUILD_S)
        (folder / "complete").touch()
    return ["node", str(folder / "client.js")]


@one_at_a_time
def proton_client() -> list[str]:
    """Make an environment with python-qpid-proton, which is compiled from its sources."""
    folder = cached_folder("amqp-proton", [PROTON.encode(), sys.version.encode()])
    python = folder / "venv" / "bin" / "python"
    if not (folder / "complete").exists():
        run([sys.executable, "-m", "venv", "--clear", folder / "venv"], timeout_s=BUILD_S)
        run([python, "-m", "pip", "install", "--quiet", PROTON], timeout_s=BUILD_S)
        (folder / "complete").touch()
    return [str(python), str(HERE / "python" / "client.py")]


def qpid_jms_client() -> list[str]:
    """Compile the programs of java/ with the jars of Maven Central."""
    return _java("QpidJms")


def protonj2_client() -> list[str]:
    """Compile the programs of java/ with the jars of Maven Central."""
    return _java("ProtonJ2")


@one_at_a_time
def fe2o3_client() -> list[str]:
    """Build the program of rust/ with fe2o3-amqp."""
    manifests = [HERE / "rust" / name for name in ("Cargo.toml", "Cargo.lock")]
    folder = cached_folder("amqp-fe2o3", [each.read_bytes() for each in manifests])
    source = HERE / "rust" / "src" / "main.rs"
    copy_into(folder, manifests)
    (folder / "src").mkdir(exist_ok=True)
    copied = folder / "src" / "main.rs"
    program = folder / "target" / "debug" / "client"
    if not program.exists() or copied.read_bytes() != source.read_bytes():
        copy_into(folder / "src", [source])
        run(["cargo", "build", "--quiet", "--locked"], cwd=folder, timeout_s=BUILD_S)
    return [str(program)]


@one_at_a_time
def _java(name: str) -> list[str]:
    jars = cached_folder("amqp-jars", [(HERE / "java" / "pom.xml").read_bytes()])
    if not (jars / "complete").exists():
        copy_into(jars, [HERE / "java" / "pom.xml"])
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        run(["mvn", "--quiet", "--batch-mode", goal, f"-DoutputDirectory={jars / 'lib'}"],
            cwd=jars, timeout_s=BUILD_S)  # fmt: skip
        (jars / "complete").touch()
    folder = _sources("amqp-java", "java")
    path = f"{folder / 'classes'}:{jars / 'lib'}/*"
    if not (folder / "complete").exists():
        sources = sorted(folder.glob("*.java"))
        run(["javac", "-cp", path, "-d", folder / "classes", *sources], timeout_s=BUILD_S)
        (folder / "complete").touch()
    # Small programs: a small heap, and no compiler that costs more than it saves.
    return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path, name]


def _sources(name: str, source: str) -> Path:
    """Return the cached folder `name`, into which the files of the folder `source` are copied."""
    sources = sorted(path for path in (HERE / source).iterdir() if path.is_file())
    folder = cached_folder(name, [each.read_bytes() for each in sources])
    copy_into(folder, sources)
    return folder


#: The clients, the toolchains that each one needs, and how it is built.
CLIENTS: Mapping[str, tuple[tuple[str, ...], Callable[[], list[str]]]] = {
    "go-amqp": (("go",), go_client),
    "rhea": (("node", "npm"), rhea_client),
    "proton": (("cc",), proton_client),
    "qpid-jms": (("javac", "mvn"), qpid_jms_client),
    "protonj2": (("javac", "mvn"), protonj2_client),
    "fe2o3": (("cargo",), fe2o3_client),
}
