"""Makes release.tar.xz: the client and the Spark data source of 0.1.0, without the broker.

    python -m tests.interop.release_0_1_0.make efa88279

The commit is the one that wrote the changelog of 0.1.0. The archive has the packages
`holdfast.client` and `holdfast.spark`, and the modules that they import. It is made once and never
again, because it is what users of that release have.
"""

import ast
import io
import subprocess
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("release.tar.xz")
_LINKED = ("commitlog", "consumequeue", "groups", "holdservice", "http_api", "spark")


def main(commit: str) -> None:
    """Write the archive of a commit of this repository."""
    sources = _sources(commit)
    reached: set[str] = set()
    waiting = ["holdfast", *(name for name in sources if _is_kept(name))]
    while waiting:
        name = waiting.pop()
        if name in sources and name not in reached:
            reached.add(name)
            waiting += [name.rpartition(".")[0], *_imports(sources[name][1])]
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as tar:
        for name in sorted(reached):
            path, text = sources[name]
            info = tarfile.TarInfo(path)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))


def _is_kept(name: str) -> bool:
    return name.startswith(("holdfast.client", "holdfast.spark"))


def _sources(commit: str) -> dict[str, tuple[str, bytes]]:
    """Return the path in the package and the text of every module."""
    command = ["git", "archive", commit, "holdfast", *_LINKED]
    raw = subprocess.run(command, check=True, capture_output=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None and member.name.endswith(".py"):
                path = member.name
                if not path.startswith("holdfast/"):
                    path = f"holdfast/{path}"
                name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                found[name] = (path, file.read())
    return found


def _imports(text: bytes) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


if __name__ == "__main__":
    main(*sys.argv[1:])
