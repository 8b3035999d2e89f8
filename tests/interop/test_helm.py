"""The Helm chart in packaging/helm: linted and rendered by Helm, decoded by the types of the
Kubernetes API, and its settings read by the broker."""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.interop.toolchains import BUILD_S, HERE, ROOT, cached_folder, copy_into, need, run

CHART = ROOT / "packaging" / "helm" / "holdfast"

#: Values that switch on everything that is off by default.
ALL_ON: dict[str, Any] = {
    "image": {"repository": "registry.example/holdfast", "tag": "1"},
    "imagePullSecrets": [{"name": "registry"}],
    "tls": {"secretName": "broker-tls"},
    "amqp": {"enabled": True},
    "settings": {"commitlog.max_total_bytes": "8GiB", "topics.auto_create_topics": False},
    "persistence": {"size": "20Gi", "storageClass": "fast", "annotations": {"a": "b"}},
    "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
    "serviceAccount": {"annotations": {"a": "b"}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "orders"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "broker", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "networkPolicy": {"enabled": True, "from": [{"podSelector": {"matchLabels": {"a": "b"}}}]},
    "metrics": {
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "tokenSecret": {"name": "scrape"},
        },
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True},
    },
}
WITHOUT_TOKENS = {
    "access": {
        "authentication": False,
        "insecureRemote": True,
        "allowedHosts": ["broker.example"],
    }
}
SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all-on": ALL_ON,
    "without-tokens": WITHOUT_TOKENS,
}

#: A Helm that is built without its Makefile takes a very old release for the cluster's.
KUBERNETES = "--kube-version=1.30.0"

Objects = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def tools() -> Path:
    """A folder with Helm, and with the program that decodes what it renders."""
    need("go")
    sources = sorted((HERE / "helm").iterdir())
    folder = cached_folder("helm", [each.read_bytes() for each in sources])
    if not (folder / "complete").exists():
        copy_into(folder, sources)
        for output, package in (("helm", "helm.sh/helm/v3/cmd/helm"), ("decode", ".")):
            run(
                ["go", "build", "-mod=readonly", "-o", output, package],
                cwd=folder,
                timeout_s=BUILD_S,
            )
        (folder / "complete").touch()
    return folder


def values_file(folder: Path, values: Mapping[str, Any]) -> str:
    path = folder / "values.yaml"
    path.write_text(json.dumps(values))
    return f"--values={path}"


def rendered(tools: Path, folder: Path, values: Mapping[str, Any], release: str = "mq") -> Objects:
    """Return what the chart makes of these values, by kind. Each has a kind of its own, except pods
    of a StatefulSet."""
    text = run(
        [
            *(tools / "helm", "template", release, CHART, "--namespace", "shop", KUBERNETES),
            values_file(folder, values),
        ]
    )
    decoded = subprocess.run(
        [tools / "decode"], input=text, capture_output=True, text=True, check=False
    )
    assert decoded.returncode == 0, decoded.stderr
    objects = [json.loads(line) for line in decoded.stdout.splitlines()]
    found = {each["kind"]: each for each in objects}
    assert len(found) == len(objects)
    return found


@pytest.fixture(params=SETS)
def objects(request: pytest.FixtureRequest, tools: Path, tmp_path: Path) -> Objects:
    return rendered(tools, tmp_path, SETS[request.param])


@pytest.mark.parametrize("name", SETS)
def test_helm_finds_nothing_to_complain_about(name: str, tools: Path, tmp_path: Path) -> None:
    run([tools / "helm", "lint", "--strict", CHART, KUBERNETES, values_file(tmp_path, SETS[name])])


@pytest.mark.parametrize(
    "values",
    [
        {"access": {"authentication": False}},
        {"replicas": 2},
        {"settings": {"commitlog.segment_bytes": 67108864}},
        {"persistence": {"accessModes": ["ReadWriteMany"]}},
    ],
)
def test_values_that_would_fail_later_are_refused(
    values: dict[str, Any], tools: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [tools / "helm", "template", CHART, KUBERNETES, values_file(tmp_path, values)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_only_what_was_asked_for_is_made(tools: Path, tmp_path: Path) -> None:
    always = {"StatefulSet", "Service", "ServiceAccount", "Pod"}
    assert rendered(tools, tmp_path, {}).keys() == always
    optional = {"NetworkPolicy", "ServiceMonitor", "PrometheusRule", "ConfigMap"}
    assert rendered(tools, tmp_path, ALL_ON).keys() == always | optional


def container(objects: Objects) -> dict[str, Any]:
    (found,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_the_broker_understands_its_settings(objects: Objects) -> None:
    environ = {each["name"]: each.get("value", "") for each in container(objects)["env"]}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "config", "show"],
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = {row["key"]: row for row in map(json.loads, done.stdout.splitlines())}
    given = [key for key, row in shown.items() if row["source"] != "default"]
    assert len(given) == len([name for name in environ if name.startswith("HOLDFAST_")])
    mounts = [each["mountPath"] for each in container(objects)["volumeMounts"]]
    assert any(shown["data_dir"]["value"].startswith(f"{each}/") for each in mounts)


def test_the_pods_are_as_restricted_as_kubernetes_can_ask(objects: Objects) -> None:
    for pod in (objects["StatefulSet"]["spec"]["template"]["spec"], objects["Pod"]["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for each in pod["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    containerfile = (ROOT / "packaging" / "container" / "Containerfile").read_text()
    (uid,) = re.findall(r"^USER (\d+):\d+$", containerfile, re.M)
    assert pod["securityContext"]["runAsUser"] == int(uid)


def test_the_service_selects_the_broker_and_not_the_test(objects: Objects) -> None:
    selector = objects["Service"]["spec"]["selector"].items()
    template = objects["StatefulSet"]["spec"]["template"]
    assert selector <= template["metadata"]["labels"].items()
    assert not selector <= objects["Pod"]["metadata"]["labels"].items()
    ports = {each["name"] for each in container(objects)["ports"]}
    assert {each["targetPort"] for each in objects["Service"]["spec"]["ports"]} == ports
    policy = objects.get("NetworkPolicy")
    if policy is not None:
        (rule,) = policy["spec"]["ingress"]
        assert {each["port"] for each in rule["ports"]} == ports


def test_probes_ask_what_the_broker_answers(objects: Objects) -> None:
    pod = container(objects)
    paths = {name: pod[name]["httpGet"]["path"] for name in pod if name.endswith("Probe")}
    assert paths == {
        "startupProbe": "/readyz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
    }
    has_tls = any(each["name"] == "tls" for each in pod["volumeMounts"])
    schemes = {pod[name]["httpGet"]["scheme"] for name in paths}
    assert schemes == {"HTTPS" if has_tls else "HTTP"}


@pytest.mark.parametrize(
    "release", ["mq", "holdfast", "a-release-with-a-name-of-exactly-53-characters-aaaaaa"]
)
def test_names_are_short_enough_and_hosts_are_those_of_the_service(
    release: str, tools: Path, tmp_path: Path
) -> None:
    objects = rendered(tools, tmp_path, WITHOUT_TOKENS, release)
    name = objects["Service"]["metadata"]["name"]
    # The name of the pod, and of its revision, become labels of at most 63 characters.
    assert len(f"{name}-0123456789") <= 63
    assert objects["StatefulSet"]["spec"]["serviceName"] == name
    environ = {each["name"]: each.get("value") for each in container(objects)["env"]}
    hosts = environ["HOLDFAST_ACCESS_ALLOWED_HOSTS"].split(",")
    assert {name, f"{name}.shop.svc", "broker.example"} <= {*hosts}


def test_the_rules_and_the_dashboard_are_those_of_the_other_folders(
    tools: Path, tmp_path: Path
) -> None:
    objects = rendered(tools, tmp_path, ALL_ON)
    rules = (ROOT / "packaging" / "prometheus" / "alerts.yml").read_text()
    (group,) = objects["PrometheusRule"]["spec"]["groups"]
    assert [each["alert"] for each in group["rules"]] == re.findall(r"- alert: (\w+)", rules)
    shipped = (ROOT / "packaging" / "grafana" / "holdfast.json").read_text()
    assert json.loads(objects["ConfigMap"]["data"]["holdfast.json"]) == json.loads(shipped)


def test_the_packaged_chart_contains_the_linked_files(tools: Path, tmp_path: Path) -> None:
    run([tools / "helm", "package", CHART, "--destination", tmp_path])
    (archive,) = tmp_path.glob("holdfast-*.tgz")
    with tarfile.open(archive) as packed:
        names = {each.name for each in packed if each.isfile()}
    assert {"holdfast/files/alerts.yml", "holdfast/files/dashboard.json"} <= names
