"""packaging/prometheus and packaging/grafana: each alert has its page and its case, and the
dashboard's panels do not overlap. tests/interop/test_monitoring.py evaluates the queries."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RULES = ROOT / "packaging" / "prometheus" / "alerts.yml"
CASES = ROOT / "packaging" / "prometheus" / "alerts_test.yml"
DASHBOARD = ROOT / "packaging" / "grafana" / "holdfast.json"
GRID_COLUMNS = 24


def alerts() -> list[str]:
    found = re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.M)
    assert found
    return found


def panels() -> list[dict[str, Any]]:
    found = json.loads(DASHBOARD.read_text())["panels"]
    assert found
    return list(found)


def test_each_alert_has_a_section_in_the_runbook() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text()
    assert re.findall(r"^## (Holdfast\w+)$", page, re.M) == alerts()
    linked = re.findall(r"runbook: docs/runbook\.md#(\w+)$", RULES.read_text(), re.M)
    assert linked == [name.lower() for name in alerts()]


def test_each_alert_says_how_urgent_it_is() -> None:
    rules = RULES.read_text().split("- alert: ")[1:]
    page = (ROOT / "docs" / "runbook.md").read_text()
    for rule in rules:
        name = rule.split("\n")[0]
        (severity,) = re.findall(r"labels: \{severity: (critical|warning)\}", rule)
        assert f"\n## {name}\n\n*{severity.capitalize()}: " in page, name


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    *cases, healthy = CASES.read_text().split("  - interval: 1m\n")[1:]
    named = {case.split("name: ")[1].split("\n")[0]: case for case in cases}
    assert list(named) == alerts()
    for name, case in named.items():
        assert "exp_labels" in case and "exp_alerts: []" in case, name
    quiet = re.findall(r"alertname: (\w+), exp_alerts: \[\]", healthy)
    assert quiet == alerts()


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: Counter[tuple[int, int]] = Counter()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= GRID_COLUMNS, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            taken.update((x, y) for y in range(place["y"], place["y"] + place["h"]))
    assert max(taken.values()) == 1
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)


def test_the_dashboard_asks_the_chosen_data_source_for_the_chosen_brokers() -> None:
    for panel in panels():
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}", panel["title"]
            selected = re.findall(r"(?:holdfast|process)_\w+\{(.*?)\}", target["expr"])
            assert selected, panel["title"]
            for labels in selected:
                assert 'job=~"$job", instance=~"$instance"' in labels, panel["title"]
