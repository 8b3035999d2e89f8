"""The fuzz targets accept their seeds, small changes of them, and all earlier findings."""

import base64
import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.__main__ import TARGETS, main

#: Earlier failures: target, description, input.
FOUND = [
    ("records", "other digits named a segment", "BTAwMDAwMDAwMDAwMDAwMDDfhzA5Ng=="),
    ("requests", "a query of no characters", "BG8AAAAAZmZzZXRzPTDGzCwxOjImYT0lRkY="),
    ("requests", "a quality after a group separator", "B2FwcGxpY2F0aW9uL2pzb247cT0dMC41Cg=="),
    (
        "requests",
        "a whole number beyond 64 bits",
        "Awp7ImxlYXNlX21zIjo1MDAxODQ0Njc0NDA3MzcwOTU1MTYxNiwiZGVhZF9sZXR0ZXJfdG9waWMiOm51"
        "bGwsIm1heF9hdHRlbXB0cyI6M30=",
    ),
    (
        "requests",
        "a request that waited was answered behind the last answer",
        "CgdHRVQgL2EgSFRUUC8xLjENCkhvc3Q6IHgNCg0KUE9TVCAvYSBIVFRQLzEuMQ0KSG9zdDogeA0KQ29udGVu"
        "dC1MZW5ndGg6IDUNCg0KaGVsbG9QT1NUIC9hJUZGVFAvMS4xDQpIb3N0OiB4DQpUcmFuc2Zlci1FbmNvZGlu"
        "ZzogY2h1bmtlZA0KDQoyDQpoaQ0KMA0KDQpHRVQgL2EgSFRUUC8xLjENCkhvc3Q6IHgNCg0K",
    ),
]


def target(name: str) -> Any:
    return importlib.import_module(f"tests.fuzz.{name}")


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_and_small_changes_of_them_hold(name: str) -> None:
    check: Callable[[bytes], None] = target(name).check
    draw = random.Random(1)
    for seed in target(name).seeds():
        check(seed)
        for _ in range(20):
            changed = bytearray(seed)
            for _ in range(draw.randint(1, 3)):
                if changed:
                    changed[draw.randrange(len(changed))] = draw.randrange(256)
            check(bytes(changed))


@pytest.mark.parametrize(("name", "what", "data"), FOUND, ids=lambda value: str(value)[:40])
def test_what_was_found_once_holds(name: str, what: str, data: str) -> None:
    target(name).check(base64.b64decode(data))


def test_a_finding_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = tmp_path / "finding"
    finding.write_bytes(b"\0" * 20)
    tried: list[bytes] = []
    monkeypatch.setattr(target("records"), "check", tried.append)
    monkeypatch.setattr("sys.argv", ["fuzz", "records", str(finding)])
    main()
    assert tried == [b"\0" * 20]
