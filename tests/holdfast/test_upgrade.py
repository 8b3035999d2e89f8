"""Directories of earlier releases open and serve the same bytes; later formats are refused.

The refusal names the format. `tests/golden_data_dirs/make.py` makes a release's directories.
"""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from holdfast.broker import Broker
from holdfast.check import check_data_dir
from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.format.checksum import crc32c
from holdfast.commitlog.format.segment_format import parse_segment_name
from holdfast.running_broker import BrokerDidNotStart, RunningBroker
from tests import golden_data_dirs
from tests.golden_data_dirs.served import call, everything
from tests.support.storage.stored import small_config

FOLDER = Path(golden_data_dirs.__file__).parent
ARCHIVES = sorted(FOLDER.glob("*/*.tar.xz"))
NAMES = {"clean", "killed", "no_index", "sealed"}

_QUIET = ("--commitlog-reserve-bytes", "0", "--commitlog-segment-bytes", "1MiB")


def unpacked(archive: Path, to: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(to, filter="data")
    return to / "data"


def name_of(archive: Path) -> str:
    return f"{archive.parent.name}-{archive.name.removesuffix('.tar.xz')}"


def test_every_golden_directory_has_every_kind_of_data() -> None:
    releases = {archive.parent.name for archive in ARCHIVES}
    assert "0.1.0" in releases
    assert {name_of(archive) for archive in ARCHIVES} == {
        f"{release}-{name}" for release in releases for name in NAMES
    }
    assert all(archive.stat().st_size < 300_000 for archive in ARCHIVES)


@pytest.mark.parametrize("archive", ARCHIVES, ids=name_of)
def test_an_old_directory_is_served_unchanged(archive: Path, tmp_path: Path) -> None:
    data_dir = unpacked(archive, tmp_path)
    assert check_data_dir(data_dir).is_sound
    sealed = {path: _digest(path) for path in (data_dir / "commitlog").iterdir() if _footer(path)}
    assert bool(sealed) == ("sealed" in archive.name)
    expected = json.loads(archive.with_suffix("").with_suffix(".json").read_text())
    with RunningBroker(data_dir, _QUIET) as broker:
        assert everything(broker.url) == expected
        assert call(broker.url, "/readyz").get("degraded", []) == []
        # New messages continue after the old end.
        queue = expected["topics"]["orders"]["queues"][0]
        body = {"messages": [{"body": "of today", "queue": 0}]}
        (result,) = call(broker.url, "/v1/topics/orders/messages", body)["results"]
        assert result["offset"] == queue["max_offset"]
    assert check_data_dir(data_dir).is_sound
    assert {path: _digest(path) for path in sealed} == sealed


def _footer(path: Path) -> bool:
    return path.read_bytes()[-64:-60] == b"HFFT"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return unpacked(FOLDER / "0.1.0" / "clean.tar.xz", tmp_path)


def _newer_layout(data_dir: Path) -> None:
    (data_dir / "VERSION").write_text("3\n")


def _newer_segment(data_dir: Path) -> None:
    path = min((data_dir / "commitlog").iterdir())
    image = bytearray(path.read_bytes())
    image[4:6] = (2).to_bytes(2, "little")
    image[32:36] = crc32c(bytes(image[:32])).to_bytes(4, "little")
    path.write_bytes(image)


def _newer_batch(data_dir: Path) -> None:
    """Set the version of the log's last block to 2."""
    path = min((data_dir / "commitlog").iterdir())
    start = parse_segment_name(path.name)
    assert start is not None
    image = bytearray(path.read_bytes())
    at = 4096
    while True:
        header = BatchHeader.decode(bytes(image[at : at + 128]))
        if image[at + header.total_size : at + header.total_size + 4] != b"HFBT":
            break
        at += header.total_size
    image[at + 4 : at + 6] = (2).to_bytes(2, "little")
    image[at + 12 : at + 16] = bytes(4)
    image[at + 12 : at + 16] = crc32c(bytes(image[at : at + 128])).to_bytes(4, "little")
    path.write_bytes(image)


@pytest.mark.parametrize("make_newer", [_newer_layout, _newer_segment, _newer_batch])
async def test_data_of_a_later_release_is_refused_and_not_changed(
    old: Path, make_newer: object
) -> None:
    assert callable(make_newer)
    make_newer(old)
    (old / "lock").touch()
    if make_newer is _newer_batch:
        # This forces the walk over the log, which a start with an index may skip.
        for path in (old / "consumequeue").iterdir():
            path.unlink()
    before = {path: _digest(path) for path in (old / "commitlog").iterdir()}
    with pytest.raises(UnknownFormatVersion, match=r"[23]; this Holdfast reads [12]"):
        check_data_dir(old)
    with pytest.raises(UnknownFormatVersion, match=r"a newer one\. Nothing was changed"):
        await Broker(small_config(old)).start()
    assert {path: _digest(path) for path in (old / "commitlog").iterdir()} == before


def test_a_broker_reports_that_a_directory_is_newer(old: Path) -> None:
    _newer_layout(old)
    with pytest.raises(BrokerDidNotStart, match="format version 3; this Holdfast reads 2"):
        RunningBroker(old).start()
