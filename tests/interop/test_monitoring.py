"""A real Prometheus scrapes a real broker, and evaluates every query in packaging/: those of the
dashboard and those of the alerts."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.interop.toolchains import ROOT, need, run
from tests.support.clients.certificates import Certificates

PROMETHEUS = ROOT / "packaging" / "prometheus"
DASHBOARD = ROOT / "packaging" / "grafana" / "holdfast.json"

#: Metrics that have no series until something goes wrong. The broker declares them from the start.
ONLY_IN_TROUBLE = {
    "holdfast_amqp_closed_early_total",
    "holdfast_amqp_errors_total",
    "holdfast_amqp_refused_total",
    "holdfast_corrupt_records_total",
    "holdfast_group_at_limit",
    "holdfast_group_dead_letters_not_kept_total",
    "holdfast_http_connections_closed_early_total",
    "holdfast_http_connections_refused_total",
}
#: What Grafana would put in the place of its variables.
VARIABLES = {
    "$job": ".*",
    "$instance": ".*",
    "$topic": ".*",
    "$group": ".*",
    "$__rate_interval": "1m",
}
_NAME = re.compile(r"\b(?:holdfast|process)_\w+")
_SUFFIX = re.compile(r"_(bucket|count|sum)$")


class Prometheus:
    """A running Prometheus and its API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def is_ready(self) -> bool:
        """Return whether it answers queries; it listens a little earlier."""
        try:
            with urlopen(f"{self._url}/-/ready", timeout=60):
                return True
        except HTTPError as error:
            if error.code != 503:
                raise
            return False

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(parameters)}", timeout=60) as reply:
            return json.load(reply)["data"]

    def query(self, text: str) -> list[dict[str, str]]:
        """Return the labels of each series that the query finds."""
        return [each["metric"] for each in self.get("query", query=text)["result"]]

    def until(self, condition: Callable[[], Any]) -> Any:
        """Poll until the condition holds, and return its value."""
        deadline_s = time.monotonic() + 120
        while not (value := condition()):
            assert time.monotonic() < deadline_s, "Prometheus does not show it"
            time.sleep(0.1)
        return value


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def watched(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """A broker over TLS that has done what the dashboard shows."""
    need("prometheus", "promtool")
    certificate, key = certificates.issue("server", "127.0.0.1")
    tls = ("--http-api-tls-certificate", str(certificate), "--http-api-tls-key", str(key))
    data_dir = tmp_path_factory.mktemp("watched") / "data"
    with RunningBroker(data_dir, (*tls, *TEST_ARGUMENTS)) as broker:
        with broker.client(ca_file=certificates.ca_file) as client:
            client.create_topic("orders", queues=1)
            client.create_group("billing", ["orders"])
            with ThreadPoolExecutor() as threads:
                held = threads.submit(client.pull_once, "orders", 0, 0, wait_ms=60_000)
                while "holdfast_long_poll_parked 1.0" not in client.metrics():
                    pass
                client.publish("orders", b"one")
                assert len(held.result().messages) == 1
            received = client.receive("billing", "anna")
            client.ack("billing", [each.receipt or "" for each in received.messages])
            client.store_offsets("billing-copy", "orders", {0: 0})
        yield broker


@pytest.fixture(scope="module")
def prometheus(
    watched: RunningBroker, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus with the shipped rules that has scraped the broker several times."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(PROMETHEUS / "alerts.yml", folder)
    shipped = (PROMETHEUS / "prometheus.yml").read_text()
    adapted = shipped.replace("15s", "500ms").replace(
        '      - targets: ["127.0.0.1:8711"]',
        f'      - targets: ["{watched.url.removeprefix("https://")}"]\n'
        f"    scheme: https\n    tls_config: {{ca_file: {certificates.ca_file}}}",
    )
    (folder / "prometheus.yml").write_text(adapted)
    arguments = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(["prometheus", *arguments], stderr=log)
    try:
        found = Prometheus(_address(folder / "log", process))
        found.until(found.is_ready)
        found.until(lambda: found.query("count_over_time(holdfast_ready[1m]) > 3"))
        yield found
    finally:
        process.terminate()
        process.wait()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address that Prometheus chose, which it logs."""
    deadline_s = time.monotonic() + 60
    while not (found := re.search(r'msg="Listening on" address=(\S+)', log.read_text())):
        assert process.poll() is None and time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.1)
    return f"http://{found[1]}"


def queries_of_the_dashboard() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    for name, value in VARIABLES.items():
        found = [query.replace(name, value) for query in found]
    assert found
    return found


def may_be_empty(query: str) -> bool:
    return not {*_NAME.findall(query)}.isdisjoint(ONLY_IN_TROUBLE)


def test_the_broker_declares_every_metric_that_a_query_names(prometheus: Prometheus) -> None:
    declared = {*prometheus.get("metadata")}
    queries = [*queries_of_the_dashboard(), (PROMETHEUS / "alerts.yml").read_text()]
    named = {name for query in queries for name in _NAME.findall(query)}
    assert {name for name in named if _SUFFIX.sub("", name) not in declared} == set()
    assert declared >= ONLY_IN_TROUBLE


def test_every_query_of_the_dashboard_finds_series(prometheus: Prometheus) -> None:
    empty = [query for query in queries_of_the_dashboard() if not prometheus.query(query)]
    assert [query for query in empty if not may_be_empty(query)] == []


def test_every_variable_of_the_dashboard_finds_values(prometheus: Prometheus) -> None:
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] != "query":
            continue
        parts = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
        assert parts is not None
        selector, label = parts.groups()
        for name, value in VARIABLES.items():
            selector = selector.replace(name, value)
        assert prometheus.get(f"label/{label}/values", **{"match[]": selector}), label


def test_every_rule_is_evaluated_and_a_healthy_broker_raises_no_alert(
    prometheus: Prometheus,
) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    prometheus.until(lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert {rule["name"]: rule["health"] for rule in rules() if rule["health"] != "ok"} == {}
    raised = {rule["name"]: rule["state"] for rule in rules() if rule["state"] != "inactive"}
    if raised.get("HoldfastDiskFillsUp") == "pending":
        # It extrapolates the machine's free disk from the few seconds of this test, in which other
        # programs may write. It fires only after an hour.
        del raised["HoldfastDiskFillsUp"]
    assert raised == {}


def test_every_rule_compares_series_that_exist_and_names_their_labels(
    prometheus: Prometheus,
) -> None:
    (group,) = prometheus.get("rules")["groups"]
    for rule in group["rules"]:
        # With "bool" a comparison keeps the series for which it does not hold. This broker has
        # answered no request with an error of its own.
        compared = re.sub(r" (==|>|<) ", r" \1 bool ", rule["query"])
        assert compared != rule["query"]
        compared = compared.replace('code=~"5.."', 'code=~"2.."')
        found = prometheus.query(compared)
        assert found or may_be_empty(compared), rule["name"]
        named = {*re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])}
        for labels in found:
            assert named <= labels.keys(), rule["name"]


def test_a_broker_that_is_gone_is_seen(
    prometheus: Prometheus, watched: RunningBroker, certificates: Certificates
) -> None:
    watched.kill()
    try:
        prometheus.until(lambda: prometheus.query('ALERTS{alertname="HoldfastDown"}'))
    finally:
        watched.start()
    prometheus.until(lambda: not prometheus.query('ALERTS{alertname="HoldfastDown"}'))


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", PROMETHEUS / "prometheus.yml"),
        ("check", "rules", PROMETHEUS / "alerts.yml"),
        ("test", "rules", PROMETHEUS / "alerts_test.yml"),
    ],
    ids=lambda each: "-".join(map(str, each[:2])),
)
def test_promtool_accepts_the_rules(arguments: tuple[str | Path, ...]) -> None:
    need("promtool")
    run(["promtool", *map(str, arguments)], timeout_s=120)
