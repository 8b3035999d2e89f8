"""Every name that a broker relies on is durable before the broker acknowledges anything."""

import os
from pathlib import Path

import pytest

from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.config import Config
from holdfast.storage.storage import Storage, StorageEvents

#: Files that hold nothing and are recreated when they are missing.
_EXPENDABLE = {"lock", "lock.mdb", "reserve"}


async def test_every_name_is_synced_before_a_publish_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: dict[Path, set[str]] = {}
    sync = os.fsync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_dir():
            durable[path] = {entry.name for entry in path.iterdir()}

    monkeypatch.setattr(os, "fsync", watched)
    data_dir = tmp_path / "made" / "on the way" / "data"
    config = Config(data_dir=data_dir, commitlog=CommitLogConfig(segment_bytes=2**20))
    storage = Storage(config, StorageEvents(lambda error: None))
    storage.lock()
    try:
        store = await storage.open()
        topic, _ = await store.topics.create("orders", queues=1)
        await store.publishing.publish(topic, [Batch.decode(encode_batch([b"kept"], queue_id=0))])
        storage.keeper.stop()  # no segment has its temporary name any more
        names = [path for path in tmp_path.rglob("*") if path.name not in _EXPENDABLE]
    finally:
        await storage.close()
    assert data_dir / "state" / "data.mdb" in names
    for path in names:
        assert path.name in durable.get(path.parent, ()), f"{path} could be lost with its name"
