"""The token file of a data directory: read by the broker, changed by `holdfast token`.

There are two copies, `access/tokens` and `access/tokens.copy`. A change writes one after the other,
each whole beside its place and renamed into it, so that one of them is whole at any moment, and a
token that was revoked does not come back with an older copy. `access/lock` keeps two writers apart;
readers need no lock.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.commitlog.data_dir import refuse_foreign
from holdfast.commitlog.disk import make_directory, sync_directory
from holdfast.http_api.access.token_format import (
    DamagedTokens,
    TokenFileContent,
    decode_tokens,
    encode_tokens,
)
from holdfast.http_api.access.tokens import Token

#: No change takes longer than a few syncs.
LOCK_TIMEOUT_S = 10.0
_LOCK_PAUSE_S = 0.02

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Changes whenever a copy does."""


class TokensUnreadable(Exception):
    """No copy of the token file is whole; `faults` says why of each."""

    def __init__(self, path: Path, faults: tuple[str, ...]) -> None:
        super().__init__(path, faults)
        self.path = path
        self.faults = faults

    def __str__(self) -> str:
        return (
            f"the access tokens cannot be read ({'; '.join(self.faults)}), and so nobody gets in; "
            f"put {self.path} back from a backup, or remove it and its copy and make new tokens"
        )


class TokensLocked(Exception):
    """Another process is changing the tokens, and does not come to an end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"another process holds {self.path}; wait for it to end, then try again"


@dataclass(frozen=True, slots=True)
class TokensRead:
    """What was read, and what was wrong with the copy that it was not read from."""

    content: TokenFileContent
    faults: tuple[str, ...]


class TokenFile:
    """The tokens of one data directory. Every method blocks, for a sync or two at most."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.directory = data_dir / "access"
        self.path = self.directory / "tokens"
        self.audit_path = self.directory / "audit.log"
        self._copies = (self.path, self.directory / "tokens.copy")

    def stamp(self) -> Stamp:
        """Return what is different after any change. OSError passes through."""
        return tuple(map(_stamp, self._copies))

    def read(self) -> TokensRead:
        """Return the newest whole copy; no tokens where there is no file.

        Raises TokensUnreadable; OSError passes through.
        """
        found: list[TokenFileContent] = []
        faults: list[str] = []
        for path in self._copies:
            try:
                found.append(decode_tokens(path.read_bytes()))
            except FileNotFoundError:
                faults.append(f"{path} is missing")
            except DamagedTokens as error:
                faults.append(f"{path} is damaged: {error}")
        if found:
            newest = max(found, key=lambda content: content.generation)
            return TokensRead(newest, tuple(faults))
        if all(fault.endswith("missing") for fault in faults):
            return TokensRead(TokenFileContent(0, ()), ())
        raise TokensUnreadable(self.path, tuple(faults))

    def change(self, change: Callable[[tuple[Token, ...]], tuple[Token, ...]]) -> None:
        """Put what `change` returns in place of the tokens; durable on return.

        What `change` raises leaves all as it was. Raises NotADataDir, TokensUnreadable,
        TokensLocked; OSError passes through.
        """
        self._make_directory()
        with self._locked():
            read = self.read()
            tokens = change(read.content.tokens)
            data = encode_tokens(TokenFileContent(read.content.generation + 1, tokens))
            for path in self._copies:
                self._put(path, data)

    def _make_directory(self) -> None:
        make_directory(self._data_dir)
        refuse_foreign(self._data_dir)
        if not self.directory.is_dir():
            self.directory.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._give_to_owner(descriptor)
            finally:
                os.close(descriptor)
            sync_directory(self._data_dir)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.directory / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._give_to_owner(descriptor)
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while not _is_locked(descriptor):
                if time.monotonic() > deadline:
                    raise TokensLocked(path)
                time.sleep(_LOCK_PAUSE_S)
            yield
        finally:
            os.close(descriptor)

    def _put(self, path: Path, data: bytes) -> None:
        unfinished = path.with_name(f"{path.name}.new")
        unfinished.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(unfinished, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            self._give_to_owner(descriptor)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        unfinished.rename(path)
        sync_directory(path.parent)

    def _give_to_owner(self, descriptor: int) -> None:
        """Let the broker read what root made for it: it runs as whoever owns the directory."""
        if os.geteuid() == 0:
            owner = self._data_dir.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
