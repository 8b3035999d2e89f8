import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.commitlog.disk.data_dir import DataDir, NotADataDir
from holdfast.http_api.access import token_file
from holdfast.http_api.access.grants import EVERYTHING
from holdfast.http_api.access.token_file import (
    CertificateTaken,
    TokenFile,
    TokensLocked,
    TokensUnreadable,
    UnknownToken,
    create_token,
    revoke_tokens,
)
from holdfast.http_api.access.tokens import Token, Tokens


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "data")


def create(file: TokenFile, name: str = "") -> tuple[Token, str]:
    return create_token(file, name=name, grants=EVERYTHING, now_ms=1)


def names(file: TokenFile) -> list[str]:
    return [token.name for token in file.read().content.tokens]


def copies(file: TokenFile) -> tuple[Path, Path]:
    return file.path, file.path.with_name("tokens.copy")


def test_there_are_no_tokens_before_the_first(file: TokenFile) -> None:
    read = file.read()
    assert (read.content.tokens, read.faults) == ((), ())
    assert file.stamp() == (None, None)


def test_a_created_token_is_found_until_it_is_revoked(file: TokenFile) -> None:
    token, text = create(file, "one")
    create(file, "two")
    assert Tokens(file.read().content.tokens).find(text) is not None
    assert revoke_tokens(file, [token.token_id]) == [token]
    assert Tokens(file.read().content.tokens).find(text) is None
    assert names(file) == ["two"]
    assert text.partition(".")[2].encode() not in file.path.read_bytes()


def test_no_token_is_revoked_if_one_id_is_unknown(file: TokenFile) -> None:
    token, _ = create(file)
    with pytest.raises(UnknownToken, match="nothing was revoked"):
        revoke_tokens(file, [token.token_id, "0" * 12])
    assert len(file.read().content.tokens) == 1


def test_a_certificate_has_one_entry(file: TokenFile) -> None:
    create_token(file, name="", grants=EVERYTHING, now_ms=1, certificate="a.example")
    with pytest.raises(CertificateTaken, match="revoke"):
        create_token(file, name="", grants=EVERYTHING, now_ms=1, certificate="a.example")
    assert len(file.read().content.tokens) == 1


def test_other_users_cannot_read_the_files(file: TokenFile) -> None:
    create(file)
    assert stat.S_IMODE(file.directory.stat().st_mode) == 0o700
    for path in file.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_data_directory_may_begin_with_its_tokens(file: TokenFile, tmp_path: Path) -> None:
    create(file, "one")
    DataDir(tmp_path / "data", 0).close()
    assert names(file) == ["one"]


def test_a_foreign_folder_is_not_changed(file: TokenFile, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("")
    with pytest.raises(NotADataDir):
        create(file)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["thesis.txt"]


# -- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "missing"])
def test_one_damaged_copy_loses_no_token_and_is_reported(
    file: TokenFile, which: int, damage: str
) -> None:
    create(file, "one")
    create(file, "two")
    path = copies(file)[which]
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"flipped": data[:40] + bytes([data[40] ^ 1]) + data[41:], "cut": data[:-1]}.get(
                damage, b""
            )
        )
    read = file.read()
    assert [token.name for token in read.content.tokens] == ["one", "two"]
    assert [str(path) in fault for fault in read.faults] == [True]
    create(file, "three")
    assert file.read().faults == ()
    assert names(file) == ["one", "two", "three"]


def test_a_revoked_token_does_not_come_back_with_the_other_copy(file: TokenFile) -> None:
    token, text = create(file)
    revoke_tokens(file, [token.token_id])
    for path in copies(file):
        whole = path.read_bytes()
        path.write_bytes(b"damaged")
        assert Tokens(file.read().content.tokens).find(text) is None
        path.write_bytes(whole)


def test_the_newer_copy_is_used_after_an_interrupted_change(
    file: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, text = create(file)
    put = TokenFile._put

    def put_one(self: TokenFile, path: Path, data: bytes) -> None:
        if path == copies(file)[1]:
            raise OSError("power lost")
        put(self, path, data)

    monkeypatch.setattr(TokenFile, "_put", put_one)
    with pytest.raises(OSError, match="power lost"):
        revoke_tokens(file, [token.token_id])
    assert Tokens(file.read().content.tokens).find(text) is None


def test_two_damaged_copies_are_refused_and_not_changed(file: TokenFile) -> None:
    create(file)
    for path in copies(file):
        path.write_bytes(b"damaged")
    with pytest.raises(TokensUnreadable, match="from a backup"):
        file.read()
    with pytest.raises(TokensUnreadable):
        create(file)
    assert [path.read_bytes() for path in copies(file)] == [b"damaged", b"damaged"]


def test_the_leftover_of_an_interrupted_change_is_replaced(file: TokenFile) -> None:
    create(file, "one")
    file.path.with_name("tokens.new").write_bytes(b"half")
    create(file, "two")
    assert names(file) == ["one", "two"]
    assert not list(file.directory.glob("*.new"))


# -- two writers -----------------------------------------------------------------------------


def test_concurrent_writers_lose_no_token(file: TokenFile) -> None:
    create(file, "first")
    threads = [threading.Thread(target=create, args=(file, f"n{i}")) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names(file)) == sorted(["first", *(f"n{i}" for i in range(12))])


def test_a_lock_held_too_long_is_reported(file: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    create(file)
    lock = file.directory / "lock"
    program = (
        f"import fcntl; f = open({str(lock)!r}); fcntl.flock(f, 2); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        monkeypatch.setattr(token_file, "LOCK_TIMEOUT_S", 0.05)
        with pytest.raises(TokensLocked, match="another process holds"):
            create(file)
        holder.communicate(b"\n")
    create(file)


def test_every_change_changes_the_stamp(file: TokenFile) -> None:
    stamps = [file.stamp()]
    token, _ = create(file)
    stamps.append(file.stamp())
    revoke_tokens(file, [token.token_id])
    stamps.append(file.stamp())
    assert len(set(stamps)) == 3
    assert file.stamp() == stamps[-1]
