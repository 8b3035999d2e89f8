import logging
from pathlib import Path

import pytest

from holdfast.http_api.access.grants import EVERYTHING
from holdfast.http_api.access.token_file import TokenFile, TokensRead, create_token, revoke_tokens
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.access.watcher import TokenWatcher


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path)


@pytest.fixture
def seen() -> list[Tokens]:
    return []


@pytest.fixture
def watcher(file: TokenFile, seen: list[Tokens]) -> TokenWatcher:
    return TokenWatcher(file, 0.01, seen.append)


def create(file: TokenFile) -> str:
    return create_token(file, name="", grants=EVERYTHING, now_ms=1)[0].token_id


async def test_every_change_is_passed_on_once(
    file: TokenFile, watcher: TokenWatcher, seen: list[Tokens]
) -> None:
    for _ in range(2):
        await watcher.check_file()
    assert [len(tokens) for tokens in seen] == [0]
    token_id = create(file)
    for _ in range(2):
        await watcher.check_file()
    revoke_tokens(file, [token_id])
    await watcher.check_file()
    assert [len(tokens) for tokens in seen] == [0, 1, 0]


async def test_a_transient_failure_is_logged_once_and_retried(
    file: TokenFile, watcher: TokenWatcher, seen: list[Tokens], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    create(file)
    await watcher.check_file()
    read = TokenFile.read

    def fail(self: TokenFile) -> TokensRead:
        raise OSError(24, "Too many open files")

    create(file)
    monkeypatch.setattr(TokenFile, "read", fail)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await watcher.check_file()
    assert caplog.text.count("Too many open files") == 1
    faults = [watcher.fault]
    monkeypatch.setattr(TokenFile, "read", read)
    await watcher.check_file()
    faults.append(watcher.fault)
    assert [fault is not None for fault in faults] == [True, False]
    assert [len(tokens) for tokens in seen] == [1, 2]


async def test_a_damaged_copy_is_reported_and_the_other_used(
    file: TokenFile, watcher: TokenWatcher, seen: list[Tokens], caplog: pytest.LogCaptureFixture
) -> None:
    create(file)
    file.path.write_bytes(b"damaged")
    with caplog.at_level(logging.ERROR):
        await watcher.check_file()
    assert [len(tokens) for tokens in seen] == [1]
    assert "the other copy is used" in caplog.text


async def test_it_may_be_stopped_twice_and_before_it_started(watcher: TokenWatcher) -> None:
    await watcher.stop()
    await watcher.start()
    await watcher.stop()
    await watcher.stop()
