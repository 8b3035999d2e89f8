"""A backup in a store that speaks the protocol of S3: moto, in an environment of its own."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.backup.manifest import Manifest
from holdfast.backup.object_backup import manifests
from holdfast.backup.object_store import ObjectExists, StoreFailed, open_store
from holdfast.backup.object_target import BackupOvertaken, ObjectTarget
from holdfast.testing import RunningBroker
from tests.interop.toolchains import BUILD_S, cached_folder, run, skip_reason

MOTO = ("moto==5.2.5", "flask==3.1.3", "flask-cors==6.0.5")
HOLDFAST = (sys.executable, "-m", "holdfast")
MIB = 1024 * 1024


def moto_server() -> Path:
    """Install moto, and return the program of its server."""
    folder = cached_folder("moto", [*(each.encode() for each in MOTO), sys.version.encode()])
    programs = folder / "venv" / "bin"
    if not (folder / "complete").exists():
        run([sys.executable, "-m", "venv", "--clear", folder / "venv"], timeout_s=BUILD_S)
        python = str(programs / "python")
        install = [python, "-m", "pip", "install", "--quiet", *MOTO]
        if subprocess.run(install, timeout=BUILD_S, check=False).returncode != 0:
            pytest.skip(skip_reason("moto"))
        (folder / "complete").touch()
    return programs / "moto_server"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of an empty bucket; the environment has its endpoint and credentials."""
    process = subprocess.Popen(
        [moto_server(), "-H", "127.0.0.1", "-p", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "moto ended"
            found = re.search(r"Running on (http://127.0.0.1:\d+)", line)
        endpoint = found[1]
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }.items():
            monkeypatch.setenv(name, value)
        request = urllib.request.Request(f"{endpoint}/backups", method="PUT")
        urllib.request.urlopen(request).close()
        yield "s3://backups/holdfast"
    finally:
        process.terminate()
        process.wait()


def summary(*arguments: str | Path) -> Any:
    return json.loads(run([*HOLDFAST, *arguments], timeout_s=BUILD_S).splitlines()[-1])


def test_a_backup_is_uploaded_in_parts_updated_and_restored(bucket: str, tmp_path: Path) -> None:
    data_dir, restored = tmp_path / "data", tmp_path / "restored"
    small = ("--commitlog-segment-bytes", "20MiB", "--commitlog-reserve-bytes", "0")
    bodies = [bytes([number % 251]) * MIB for number in range(1, 50)]
    backup = ("backup", "--data-dir", data_dir, bucket, "--keep", "2")
    with RunningBroker(data_dir, small) as broker, broker.client() as client:
        client.create_topic("t", queues=1, max_message_bytes=2 * MIB)
        for body in bodies[:-1]:
            client.publish("t", body)
        assert summary(*backup)["reused_bytes"] == 0
        client.publish("t", bodies[-1])
        for number in (2, 3):
            done = summary(*backup)
            assert (done["backup"], done["reused_bytes"] >= 40 * MIB) == (number, True)
            assert done["copied_bytes"] < 12 * MIB
            assert done["notes"] == []
    assert list(manifests(open_store(bucket))) == [2, 3]
    assert summary("restore", bucket, "--data-dir", restored)["is_sound"] is True
    with RunningBroker(restored) as broker, broker.client() as client:
        found = [bytes(each.body) for each in client.pull("t", start="earliest", follow=False)]
    assert found == bodies


def test_of_two_backups_at_the_same_time_one_fails(bucket: str) -> None:
    store = open_store(bucket)
    late = ObjectTarget(store)
    store.create("manifests/0000000001", b"x")
    with pytest.raises(ObjectExists):
        store.create("manifests/0000000001", b"y")
    with pytest.raises(BackupOvertaken):
        late.finish(Manifest(late.backup_id, 0, "", "2", 0, 0, ()))
    store.delete(["manifests/0000000001", "manifests/0000000002"])
    assert list(manifests(store)) == []


def test_a_missing_bucket_is_named(bucket: str) -> None:
    with pytest.raises(StoreFailed, match=r"s3://none/x: .*NoSuchBucket"):
        ObjectTarget(open_store("s3://none/x"))
