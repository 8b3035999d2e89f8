"""packaging/container: the image's settings are valid, it runs without root, and its health check
tells a broker that serves from one that does not."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast.free_port import free_port
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.clients.certificates import Certificates

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "packaging" / "container"


def last_stage() -> dict[str, list[str]]:
    """Return the arguments of each instruction of the image's last stage, in order."""
    text = re.sub(r"^\s*#.*\n", "", (CONTAINER / "Containerfile").read_text(), flags=re.M)
    found: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, _, argument = line.partition(" ")
        if name == "FROM":
            found = {}
        if name:
            found.setdefault(name, []).append(argument.strip())
    return found


def environment() -> dict[str, str]:
    (settings,) = last_stage()["ENV"]
    return dict(each.split("=", 1) for each in shlex.split(settings))


def test_the_settings_of_the_image_are_valid() -> None:
    settings = {k: v for k, v in environment().items() if k.startswith("HOLDFAST_")}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "config", "show"],
        env={"PATH": os.environ["PATH"], **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    given = {each["key"]: each["value"] for each in shown if each["source"] != "default"}
    (volume,) = last_stage()["VOLUME"]
    assert given == {
        "data_dir": volume,
        "http_api.host": "0.0.0.0",
        "log_format": "json",
        "commitlog.segment_bytes": 64 * 1024 * 1024,
    }
    assert last_stage()["EXPOSE"] == ["8711"]


def test_the_image_runs_without_root_and_owns_its_volume() -> None:
    stage = last_stage()
    (user,) = stage["USER"]
    uid, gid = map(int, user.split(":"))
    assert uid > 0 and gid > 0
    assert f"chown {user} {stage['VOLUME'][0]}" in stage["RUN"][-1]
    assert (stage["ENTRYPOINT"], stage["CMD"]) == (['["holdfast"]'], ['["serve"]'])


def test_the_build_gets_the_whole_source_of_the_package() -> None:
    sent = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    parts = {path.resolve().name for path in (ROOT / "holdfast").iterdir() if path.is_symlink()}
    assert parts
    assert sent >= {"holdfast", "pyproject.toml", "requirements.lock", "README.md", "LICENSE"}
    assert sent >= parts
    assert "packaging/client" in sent, "the image installs the wheel of the client, too"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    data_files = project["tool"]["setuptools"]["data-files"].values()
    for path in (each for files in data_files for each in files):
        assert any(Path(path).is_relative_to(each) for each in sent), path
    copied = {source for line in last_stage()["COPY"] for source in line.split()[:-1]}
    assert {each for each in copied if not each.startswith("/")} <= {*sent, "--from=build"}
    assert all((ROOT / each).exists() for each in sent)


def health(**environ: str) -> tuple[int, str]:
    """Run the health check of the image; return its exit code and what it printed."""
    (check,) = last_stage()["HEALTHCHECK"]
    command = json.loads(check[check.index("CMD") + 3 :])
    assert command == ["/opt/holdfast/bin/python3", "-I", "/opt/holdfast/healthcheck.py"]
    done = subprocess.run(
        [sys.executable, "-I", str(CONTAINER / "healthcheck.py")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr


def port_of(broker: RunningBroker) -> str:
    return broker.url.rpartition(":")[2]


def test_a_broker_that_serves_is_healthy(holdfast_session_broker: RunningBroker) -> None:
    assert health(HOLDFAST_HTTP_API_PORT=port_of(holdfast_session_broker)) == (0, "")


def test_a_broker_over_tls_is_healthy(tmp_path: Path) -> None:
    certificate, key = Certificates(tmp_path).issue("server", "broker.example")
    tls = ("--http-api-tls-certificate", str(certificate), "--http-api-tls-key", str(key))
    with RunningBroker(tmp_path / "data", (*tls, *TEST_ARGUMENTS)) as broker:
        port = port_of(broker)
        given = {"HOLDFAST_HTTP_API_TLS_CERTIFICATE": str(certificate)}
        assert health(HOLDFAST_HTTP_API_PORT=port, **given) == (0, "")
        assert health(HOLDFAST_HTTP_API_PORT=port)[0] == 1


def test_a_broker_that_does_not_answer_is_not_healthy() -> None:
    code, said = health(HOLDFAST_HTTP_API_PORT=str(free_port()))
    assert code == 1
    assert said.startswith("/readyz on port ") and "Traceback" not in said


def test_a_broker_that_recovers_is_not_healthy() -> None:
    class Recovering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b'{"type": "/problems/recovering"}')

    with ThreadingHTTPServer(("127.0.0.1", 0), Recovering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code, said = health(HOLDFAST_HTTP_API_PORT=str(server.server_port))
        server.shutdown()
    assert code == 1
    assert '503 {"type": "/problems/recovering"}' in said


@pytest.mark.parametrize("name", ["prometheus.yml", "grafana/datasource.yml"])
def test_the_files_that_compose_mounts_name_its_services(name: str) -> None:
    compose = (CONTAINER / "compose.yaml").read_text()
    services = set(re.findall(r"^  (\w+):$", compose.split("\nvolumes:")[0], re.M))
    assert services == {"holdfast", "prometheus", "grafana"}
    assert f"./{name}:" in compose
    hosts = re.findall(r"(?:\"|//)(\w+):\d+", (CONTAINER / name).read_text())
    assert hosts and {*hosts} <= services


def test_every_file_that_compose_names_exists() -> None:
    compose = (CONTAINER / "compose.yaml").read_text()
    mounted = re.findall(r"^ +- (\.\S+?):", compose, re.M)
    assert len(mounted) == 5
    for path in mounted:
        assert (CONTAINER / path).is_file(), path
    (context,) = re.findall(r"context: (\S+)", compose)
    (containerfile,) = re.findall(r"dockerfile: (\S+)", compose)
    assert (CONTAINER / context / containerfile).is_file()
