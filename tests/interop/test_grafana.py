"""Grafana's own types read the dashboard: a program of Grafana's SDK for Go, which is strict."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.toolchains import ROOT, go_reader, run

DASHBOARD = ROOT / "packaging" / "grafana" / "holdfast.json"


@pytest.fixture(scope="module")
def reader() -> Path:
    return go_reader("grafana")


def test_the_dashboard_has_every_field_that_grafana_requires(reader: Path) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert run([reader, DASHBOARD]) == f"{len(panels)}\n"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda panels: panels[1]["options"].pop("wideLayout"), "wideLayout: required field"),
        (lambda panels: panels[1].update(titel="Serves"), "unexpected field"),
        (lambda panels: panels[1]["gridPos"].update(w="wide"), "cannot unmarshal string"),
    ],
    ids=["a missing field", "an unknown field", "a wrong type"],
)
def test_the_reader_finds_what_is_wrong(
    reader: Path, tmp_path: Path, spoil: Callable[[list[Any]], object], says: str
) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    spoil(dashboard["panels"])
    spoilt = tmp_path / "dashboard.json"
    spoilt.write_text(json.dumps(dashboard))
    with pytest.raises(AssertionError, match=says):
        run([reader, spoilt])
