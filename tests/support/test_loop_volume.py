import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.loop_volume import FILE_SYSTEMS, CannotMount, LoopVolume, why_not

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_a_power_loss_loses_only_unsynced_data(file_system: str) -> None:
    reason = why_not(file_system)
    if reason is not None:
        pytest.skip(reason)
    try:
        volume = LoopVolume(file_system)
    except CannotMount as error:
        pytest.skip(str(error))
    try:
        with (volume.path / "synced").open("wb", buffering=0) as file:
            file.write(b"kept")
            os.fsync(file.fileno())
            file.write(b"lost")
            folder = os.open(volume.path, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
            (volume.path / "unsynced").touch()
            volume.cut_power()
            with pytest.raises(OSError, match="Input/output"):
                os.fsync(file.fileno())
        volume.restore_power()
        names = sorted(path.name for path in volume.path.iterdir())
        assert [name for name in names if name != "lost+found"] == ["synced"]
        assert (volume.path / "synced").read_bytes() in (b"kept", b"kept\0\0\0\0")
    finally:
        volume.remove()
    assert not volume.path.exists()
    assert str(volume.path) not in Path("/proc/self/mountinfo").read_text()


def test_volumes_of_a_killed_test_process_are_removed() -> None:
    reason = why_not("ext4")
    if reason is not None:
        pytest.skip(reason)
    code = (
        "import os; from tests.support.loop_volume import LoopVolume; v = LoopVolume('ext4');"
        "v.cut_power(); print(v.path, flush=True); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "CannotMount" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 9, done.stderr
    left = done.stdout.strip()
    assert left in Path("/proc/self/mountinfo").read_text()
    LoopVolume("ext4").remove()
    assert left not in Path("/proc/self/mountinfo").read_text()
    assert not Path(left).parent.exists()
