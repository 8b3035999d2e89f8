import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.damage.loop_volume import FILE_SYSTEMS, LoopVolume, loop_volume

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_a_power_loss_loses_only_unsynced_data(file_system: str) -> None:
    with loop_volume(file_system) as volume:
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
    assert not volume.path.exists()
    assert str(volume.path) not in Path("/proc/self/mountinfo").read_text()


def test_volumes_of_a_killed_test_process_are_removed() -> None:
    with loop_volume("ext4"):
        pass  # skips the test if this machine cannot mount it
    code = (
        "import os; from tests.support.damage.loop_volume import LoopVolume;"
        "v = LoopVolume('ext4');"
        "v.cut_power(); print(v.path, flush=True); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    left = done.stdout.strip()
    assert left in Path("/proc/self/mountinfo").read_text()
    LoopVolume("ext4").remove()
    assert left not in Path("/proc/self/mountinfo").read_text()
    assert not Path(left).parent.exists()
