"""S1, D6: commands of root reach nothing outside the data directory through files that its owner
planted there, of any kind under any name, and do not wait for such files."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.http_api.access.grants import EVERYTHING
from holdfast.http_api.access.token_file import TokenFile, create_token
from holdfast.running_broker import RunningBroker
from tests.support.damage.planted_names import KINDS, OWNER, Root, Scene, give_to_owner

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: it cannot take another's place"),
    pytest.mark.timeout(600),
]

_SEGMENT = f"{0:020d}"
NAMES = (
    *("lock", "VERSION", "VERSION.new", "reserve", "reserve.new", "MANIFEST", "repaired"),
    *("commitlog", f"commitlog/{_SEGMENT}", "commitlog/00000000000004194304.new"),
    *("consumequeue", "consumequeue/data.mdb", "consumequeue/lock.mdb"),
    *("consumequeue/seal", "consumequeue/seal.new", "consumequeue/condemned"),
    *("state", "state/data.mdb", "state/lock.mdb", "state/groups.page", "state/groups.page.new"),
    *("state/groups", "state/groups/data.mdb", "state/groups/lock.mdb"),
    *("access", "access/lock", "access/tokens", "access/tokens.copy", "access/tokens.new"),
    *("access/tokens.copy.new", "access/audit.log", "access/audit.log.1"),
)

#: The arguments of each command; {data} and {backup} are replaced.
COMMANDS: dict[str, tuple[str, ...]] = {
    "token create": ("token", "create", "--data-dir", "{data}", "--allow", "operate"),
    "token list": ("token", "list", "--data-dir", "{data}"),
    "token revoke": ("token", "revoke", "--data-dir", "{data}", "{token}"),
    "check": ("check", "{data}"),
    "check --live": ("check", "--live", "{data}"),
    "repair": ("repair", "--accept-loss", "{data}"),
    "backup": ("backup", "{backup}", "--data-dir", "{data}"),
    "restore": ("restore", "{sound_backup}", "--data-dir", "{data}"),
    "serve": ("serve", "--data-dir", "{data}", "--port", "0"),
}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Return a folder that another user can reach, unlike pytest's own folder."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-planted-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def root(place: Path) -> Iterator[Root]:
    root = Root(place / "out")
    yield root
    root.close()


@pytest.fixture(scope="module")
def sound(place: Path, root: Root) -> Path:
    """Return a data directory with a file under every name that a broker leaves, and a backup."""
    data = place / "sound"
    with RunningBroker(data, _SMALL) as broker, broker.client() as client:
        client.create_topic("t", queues=1)
        client.create_group("g", ["t"])
        for number in range(3):
            client.publish("t", str(number))
    made, _ = create_token(TokenFile(data), name="", grants=EVERYTHING, now_ms=1)
    (place / "token").write_text(made.token_id)
    root.run(["backup", str(place / "sound-backup"), "--data-dir", str(data)])
    assert (place / "sound-backup" / "MANIFEST").exists()
    return data


_SMALL = (
    *("--commitlog-segment-bytes", "1MiB", "--commitlog-reserve-bytes", "64KiB"),
    *("--consumequeue-map-size-bytes", "16MiB"),
)


@pytest.fixture
def scene(place: Path, sound: Path) -> Scene:
    scene = Scene(place / "scene")
    scene.build(sound)
    return scene


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_planted_under_a_name_is_neither_followed_nor_waited_for(
    command: str, scene: Scene, sound: Path, place: Path, root: Root
) -> None:
    values = {
        "data": str(scene.data),
        "backup": str(scene.target),
        "token": (place / "token").read_text(),
        "sound_backup": str(place / "sound-backup"),
    }
    arguments = [each.format(**values) for each in COMMANDS[command]]
    if command == "serve":
        arguments += _SMALL
    wrong = []
    for name in NAMES:
        for kind in KINDS:
            scene.build_inside(sound)
            if not scene.plant(name, kind):
                continue
            before = scene.seen_outside()
            ran = root.run(arguments)
            after = scene.seen_outside()
            what = f"{name} is {kind}: {ran}"
            if ran.code is None:
                wrong.append(f"hangs: {what}")
            if ran.code == 70 or "Traceback" in ran.output:
                wrong.append(f"fails: {what}")
            if changed := [path for path in after if after[path] != before.get(path)]:
                wrong.append(f"reaches {changed}: {what}")
                scene.build(sound)
            if scene.holds_secret():
                wrong.append(f"copies: {what}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", ["check", "repair", "backup", "serve"])
def test_what_is_planted_is_named(command: str, scene: Scene, sound: Path, root: Root) -> None:
    for name in ("VERSION", "lock", "state/data.mdb", f"commitlog/{_SEGMENT}", "access/tokens"):
        scene.build(sound)
        scene.plant(name, "FIFO")
        values = {"data": str(scene.data), "backup": str(scene.target)}
        arguments = [each.format(**values) for each in COMMANDS[command]]
        ran = root.run(arguments)
        assert ran.code == 6, ran
        assert f"{scene.data / name}: it is no regular file" in ran.output, ran


def test_what_root_makes_belongs_to_the_owner_of_the_directory(scene: Scene, root: Root) -> None:
    for path in scene.data.rglob("*"):
        path.chmod(0o777)
    for arguments in (
        ["token", "create", "--data-dir", str(scene.data), "--allow", "operate"],
        ["serve", "--data-dir", str(scene.data), "--port", "0", *_SMALL],
        ["backup", str(scene.target), "--data-dir", str(scene.data)],
        ["check", str(scene.target)],
        ["restore", str(scene.target), "--data-dir", str(scene.root / "owners" / "restored")],
    ):
        ran = root.run(arguments)
        assert ran.code == 0, (arguments, ran)
    for path in (scene.root / "owners").rglob("*"):
        assert path.stat().st_uid == OWNER, path
    # S2: users who are neither the owner nor in the group may read none of it.
    for path in scene.data.rglob("*"):
        assert path.stat().st_mode & (0o027 if path.is_dir() else 0o177) == 0, path


@pytest.fixture
def roots(sound: Path, place: Path) -> Iterator[Path]:
    """Return a data directory that root owns, with the messages of the sound one."""
    data = place / "roots"
    shutil.copytree(sound, data)
    yield data
    shutil.rmtree(data)


@pytest.mark.parametrize("name", ["commitlog", "access-1", "state-1", "groups-1"])
@pytest.mark.parametrize("options", [[], ["--incremental"]], ids=["new", "incremental"])
def test_root_backs_its_own_directory_up_into_no_folder_of_another_user(
    options: list[str], name: str, scene: Scene, roots: Path, place: Path, root: Root
) -> None:
    if options:
        shutil.copytree(place / "sound-backup", scene.target)
    else:
        scene.target.mkdir()
        (scene.target / "UNFINISHED").touch()
    scene.plant(name, "link", folder=scene.target, other=roots / "commitlog")
    give_to_owner(scene.target)
    before, segments = _entries(scene.target), _entries(roots)
    ran = root.run(["backup", str(scene.target), *options, "--data-dir", str(roots)])
    assert _entries(roots) == segments, ran
    assert ran.code == 6, ran
    assert "chown -R root" in ran.output, ran
    assert _entries(scene.target) == before

    ran = root.run(["backup", f"{scene.target}/new", "--data-dir", str(roots)])
    assert ran.code == 6, ran
    assert not (scene.target / "new").exists()


#: Names in a backup, and the file of a data directory to which a link or hard link there leads.
_BACKUP_NAMES = {
    "UNFINISHED": "VERSION",
    "MANIFEST.new": "VERSION",
    "commitlog": "commitlog",
    f"commitlog/{_SEGMENT}.1": f"commitlog/{_SEGMENT}",
    "state-1": "state",
    "state-1/data.mdb": "state/data.mdb",
    "groups-1": "state/groups",
    "groups-1/data.mdb": "state/groups/data.mdb",
    "access-1": "access",
    "access-1/tokens": "access/tokens",
}


@pytest.mark.parametrize("options", [[], ["--incremental"]], ids=["new", "incremental"])
@pytest.mark.parametrize("whose", ["the owner's", "root's, open to all"])
def test_what_is_planted_in_the_folder_of_a_backup_is_not_followed(
    whose: str, options: list[str], scene: Scene, sound: Path, roots: Path, place: Path, root: Root
) -> None:
    """No user's files are followed, also where others may write to a folder of root's."""
    wrong = []
    data = scene.data if whose == "the owner's" else roots
    target = scene.target if whose == "the owner's" else place / "open-to-all"
    for name, leads_to in _BACKUP_NAMES.items():
        for kind in KINDS:
            scene.build_inside(sound)
            shutil.rmtree(target, ignore_errors=True)
            if options:
                shutil.copytree(place / "sound-backup", target)
            else:
                target.mkdir()
                (target / "UNFINISHED").touch()
            if whose == "the owner's":
                give_to_owner(target)
            else:
                target.chmod(0o777)
            other = scene.outside / leads_to
            if "hard" in kind and other.is_dir():
                continue
            scene.plant(name, kind, folder=target, other=other)
            parent = (target / name).parent
            if whose == "the owner's":
                os.chown(parent, OWNER, OWNER)
            before = scene.seen_outside()
            ran = root.run(["backup", str(target), *options, "--data-dir", str(data)])
            after = scene.seen_outside()
            what = f"{name} is {kind}: {ran}"
            # Removing a second hard link changes only the time of the file's status.
            if ran.code != 6 and not (ran.code == 0 and "hard link" in kind):
                wrong.append(f"ends with {ran.code}: {what}")
            if changed := [path for path in after if after[path] != before.get(path)]:
                wrong.append(f"reaches {changed}: {what}")
                scene.build(sound)
            if scene.holds_secret():
                wrong.append(f"copies: {what}")
    shutil.rmtree(target)
    assert not wrong, "\n".join(wrong)


def test_root_restores_no_backup_of_another_user_as_its_own(
    scene: Scene, place: Path, root: Root
) -> None:
    shutil.copytree(place / "sound-backup", scene.target)
    give_to_owner(scene.target)
    restored = place / "restored"
    arguments = ["restore", str(scene.target), "--data-dir", str(restored)]
    ran = root.run(arguments)
    assert ran.code == 6, ran
    assert "chown -R root" in ran.output, ran
    assert not restored.exists()
    assert not restored.with_name(".restored.restoring").exists()


def _entries(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_uid, path.lstat().st_size)
        for path in (folder, *folder.rglob("*"))
    }
