"""The token file of a data directory: the broker reads it, `holdfast token` changes it.

There are two copies, `access/tokens` and `access/tokens.copy`. A change writes one copy after the
other. Each copy is written completely to a temporary file and then renamed, so at any moment at
least one copy is intact. A change returns only when both copies have it, so an old copy cannot
bring back a revoked token. `access/lock` prevents that two processes write at the same time;
readers need no lock. All functions block, and changes are durable when they return.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.commitlog.disk.data_dir import refuse_foreign
from holdfast.commitlog.disk.disk import make_directory, sync_directory
from holdfast.commitlog.disk.owned_files import create_file, open_file, read_file
from holdfast.http_api.access.grants import Grant
from holdfast.http_api.access.token_format import (
    DamagedTokens,
    TokenFileContent,
    decode_tokens,
    encode_tokens,
)
from holdfast.http_api.access.tokens import (
    ID_BYTES,
    SECRET_BYTES,
    Token,
    digest_of,
    token_text,
)

#: How long a writer waits for the lock. A change takes no longer than a few syncs of the disk.
LOCK_TIMEOUT_S = 10.0
_LOCK_PAUSE_S = 0.02

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Inode, modification time and size of each copy. The value differs after every change."""


@dataclass(eq=False, repr=False)
class TokensUnreadable(Exception):
    """No copy of the token file is intact. `faults` has the reason for each copy."""

    path: Path
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"the access tokens cannot be read ({'; '.join(self.faults)}), so the broker refuses "
            f"every client; restore {self.path} from a backup, or remove it and its copy and make "
            "new tokens"
        )


@dataclass(eq=False, repr=False)
class TokensLocked(Exception):
    """Another process held the lock for longer than LOCK_TIMEOUT_S."""

    path: Path

    def __str__(self) -> str:
        return f"another process holds {self.path}; wait for it to end, then try again"


class TokensRead(msgspec.Struct, frozen=True):
    """The tokens that were read, and a text for each copy that is missing or damaged."""

    content: TokenFileContent
    faults: tuple[str, ...]


class TokenFile:
    """The tokens of one data directory. `change` may wait for the lock."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.directory = data_dir / "access"
        self.path = self.directory / "tokens"
        self.audit_path = self.directory / "audit.log"
        self._copies = (self.path, self.directory / "tokens.copy")

    def stamp(self) -> Stamp:
        """Return a value that differs after every change. Raises OSError."""
        return tuple(map(_stamp, self._copies))

    def read(self) -> TokensRead:
        """Return the tokens in the newest intact copy, or no tokens if both copies are missing.

        Raises TokensUnreadable, OSError.
        """
        found: list[TokenFileContent] = []
        faults: list[str] = []
        for path in self._copies:
            try:
                found.append(decode_tokens(read_file(path)))
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
        """Replace the tokens with the result of `change`, durably.

        If `change` raises, nothing is written. Raises NotADataDir, TokensUnreadable, TokensLocked,
        OSError.
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
            sync_directory(self._data_dir)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.directory / "lock"
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
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
        with os.fdopen(create_file(unfinished), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        sync_directory(path.parent)


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


@dataclass(eq=False, repr=False)
class UnknownToken(Exception):
    """No token has this id."""

    token_id: str

    def __str__(self) -> str:
        return (
            f"there is no token {self.token_id[:40]!r}, and nothing was revoked; 'holdfast token "
            "list' shows the ids"
        )


@dataclass(eq=False, repr=False)
class CertificateTaken(Exception):
    """The token file already has an entry for this certificate name."""

    certificate: str
    token_id: str

    def __str__(self) -> str:
        return (
            f"the certificate of {self.certificate[:200]!r} has grants as {self.token_id}; revoke "
            "that one first"
        )


def create_token(
    file: TokenFile,
    *,
    name: str,
    grants: Iterable[Grant],
    now_ms: int,
    expires_ms: int | None = None,
    certificate: str = "",
    publish_rates: tuple[int | None, int | None] | None = None,
) -> tuple[Token, str]:
    """Add a token. Return the token, and its text, which is not stored and cannot be read later.

    With `certificate`, the entry is for a client certificate, and the text is empty. Raises
    CertificateTaken, and the errors of TokenFile.change.
    """
    token_id = secrets.token_hex(ID_BYTES)
    text = "" if certificate else token_text(token_id, secrets.token_bytes(SECRET_BYTES))
    token = Token(
        token_id,
        name,
        tuple(dict.fromkeys(grants)),
        now_ms,
        expires_ms,
        b"" if certificate else digest_of(text),
        certificate,
        publish_rates,
    )

    def add_token(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        for other in tokens:
            if certificate and other.certificate == certificate:
                raise CertificateTaken(certificate, other.token_id)
            assert other.token_id != token_id, "the same random id of 48 bits twice"
        return (*tokens, token)

    file.change(add_token)
    return token, text


def revoke_tokens(file: TokenFile, token_ids: Iterable[str]) -> list[Token]:
    """Remove the tokens with these ids and return them.

    Raises UnknownToken, and the errors of TokenFile.change. In case of an error, no token is
    removed.
    """
    revoked: list[Token] = []

    def remove_tokens(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        by_id = {token.token_id: token for token in tokens}
        for token_id in dict.fromkeys(token_ids):
            if token_id not in by_id:
                raise UnknownToken(token_id)
            revoked.append(by_id.pop(token_id))
        return tuple(by_id.values())

    file.change(remove_tokens)
    return revoked
