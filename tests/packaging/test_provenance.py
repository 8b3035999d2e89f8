"""packaging/release/provenance.py: the statement names the files, the commit and the tools."""

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

RELEASE = Path(__file__).parents[2] / "packaging" / "release"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_the_provenance_names_the_files_the_commit_and_the_tools(tmp_path: Path) -> None:
    wheel, archive = tmp_path / "orders-1-py3-none-any.whl", tmp_path / "orders-1.tar.gz"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("orders-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: builder (7)\n")
    archive.write_bytes(b"archive")
    done = subprocess.run(
        [
            *(sys.executable, RELEASE / "provenance.py"),
            *("--commit", COMMIT, "--started", "1700000000", archive, wheel),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    stated = json.loads(done.stdout)
    assert stated["subject"] == [
        {"name": file.name, "digest": {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}}
        for file in (wheel, archive)
    ]
    built, run = stated["predicate"]["buildDefinition"], stated["predicate"]["runDetails"]
    assert built["externalParameters"]["commit"] == COMMIT
    assert built["internalParameters"]["wheels"] == {wheel.name: "builder (7)"}
    source, *tools = built["resolvedDependencies"]
    assert source == {"name": "source", "digest": {"gitCommit": COMMIT}}
    assert any(re.fullmatch(r"pkg:pypi/pytest@\S+", tool["uri"]) for tool in tools)
    assert run["metadata"]["startedOn"] == "2023-11-14T22:13:20Z"
    assert run["metadata"]["finishedOn"] > "2026"
