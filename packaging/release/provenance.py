"""Prints the provenance of release files, a statement of in-toto with SLSA's predicate, version 1:

    provenance.py --commit SHA --started EPOCH_S [--validate] FILE...

It names each file with its SHA-256, the commit that the files were built from, and the tools. It is
not signed: the publisher of a release must sign it.
"""

import argparse
import hashlib
import json
import platform
import sys
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

#: The name of this way to build, which packaging/release/build describes.
BUILD_TYPE = "https://holdfast.invalid/packaging/release/build"
#: The statement does not say who runs the machine that built the files: it may be any machine.
BUILDER = "https://holdfast.invalid/builders/any-machine"


def statement(
    files: Sequence[Path], commit: str, started_s: int, finished_s: int
) -> dict[str, Any]:
    """Return the statement about files that were built from a commit, between two Unix times."""
    tools = sorted((each.name.lower(), each.version) for each in distributions())
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": file.name, "digest": {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}}
            for file in sorted(files)
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"command": "make release", "commit": commit},
                "internalParameters": {
                    "python": platform.python_version(),
                    "platform": platform.platform(),
                    "wheels": {
                        file.name: _generator(file) for file in files if file.suffix == ".whl"
                    },
                },
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    *({"uri": f"pkg:pypi/{name}@{version}"} for name, version in tools),
                ],
            },
            "runDetails": {
                "builder": {"id": BUILDER},
                "metadata": {"startedOn": _time(started_s), "finishedOn": _time(finished_s)},
            },
        },
    }


def _generator(wheel: Path) -> str:
    """Return the program that wrote a wheel, for example `setuptools (84.2.1)`."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        lines = archive.read(name).decode().splitlines()
    return next(line.removeprefix("Generator: ") for line in lines if line.startswith("Generator"))


def _time(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def validate(text: str) -> None:
    """Read a statement with the types of in-toto, which refuse an unknown field and a field of
    another type. Raises ValueError, and ParseError of protobuf."""
    from google.protobuf.json_format import Parse, ParseDict
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    read = Parse(text, statement_pb2.Statement())
    Statement.copy_from_pb(read).validate()
    ParseDict(json.loads(text)["predicate"], provenance_pb2.Provenance())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commit", required=True)
    parser.add_argument("--started", type=int, required=True)
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    finished_s = int(datetime.now(UTC).timestamp())
    text = json.dumps(statement(given.files, given.commit, given.started, finished_s), indent=2)
    if given.validate:
        validate(text)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
