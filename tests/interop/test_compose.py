"""The compose file is read by the library of `docker compose`."""

import json
import shutil
from pathlib import Path

import pytest

from tests.interop.toolchains import ROOT, go_reader, run

PACKAGING = ROOT / "packaging"
COMPOSE = PACKAGING / "container" / "compose.yaml"


@pytest.fixture(scope="module")
def reader() -> Path:
    return go_reader("compose")


def test_compose_understands_the_file_and_finds_what_it_mounts(reader: Path) -> None:
    project = json.loads(run([reader, COMPOSE]))
    services = project["services"]
    assert services.keys() == {"holdfast", "prometheus", "grafana"}
    built = services["holdfast"]["build"]
    assert Path(built["context"], built["dockerfile"]).is_file()
    volumes = [each for service in services.values() for each in service["volumes"]]
    mounted = [Path(each["source"]) for each in volumes if each["type"] == "bind"]
    assert len(mounted) == 5 and all(path.is_file() for path in mounted)
    named = {each["source"] for each in volumes if each["type"] == "volume"}
    assert named == project["volumes"].keys()
    ports = [each for service in services.values() for each in service["ports"]]
    assert {each["host_ip"] for each in ports} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("read_only: true", "readonly: true", "readonly"),
        ("depends_on: [holdfast]", "depends_on: [broker]", "broker"),
        ("cap_drop: [ALL]", "cap_drop: ALL", "cap_drop must be a array"),
    ],
    ids=["an unknown field", "an unknown service", "a wrong type"],
)
def test_the_reader_finds_what_is_wrong(
    reader: Path, tmp_path: Path, right: str, wrong: str, says: str
) -> None:
    shutil.copytree(PACKAGING, tmp_path / "packaging")
    text = COMPOSE.read_text()
    assert right in text
    spoilt = tmp_path / "packaging" / "container" / "compose.yaml"
    spoilt.write_text(text.replace(right, wrong))
    with pytest.raises(AssertionError, match=says):
        run([reader, spoilt])
