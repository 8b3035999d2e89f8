import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast.http_api.access.config import AccessConfig
from holdfast.http_api.access.grants import EVERYTHING
from holdfast.http_api.access.hosts import is_loopback
from holdfast.http_api.access.service import (
    AccessService,
    RemoteWithoutAccess,
    TokenWatcher,
    is_remote,
)
from holdfast.http_api.access.token_file import TokenFile, TokensRead, create_token, revoke_tokens
from holdfast.http_api.access.tokens import Tokens


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True), ("127.255.255.254", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("192.168.1.1", False),
        ("fe80::1%eth0", False), ("::ffff:10.0.0.1", False), ("128.0.0.1", False), ("::2", False),
    ],
)  # fmt: skip
def test_only_this_machine_can_reach_loopback_addresses(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "0"])
async def test_every_other_address_is_remote(host: str) -> None:
    assert await is_remote(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1"])
async def test_addresses_and_names_of_loopback_are_not(host: str) -> None:
    assert not await is_remote(host)


async def test_a_name_is_remote_if_one_of_its_addresses_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(*_: object, **__: object) -> object:
        inet = socket.AF_INET, socket.SOCK_STREAM, 6, ""
        return [(*inet, ("127.0.0.1", 0)), (*inet, ("10.0.0.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert await is_remote("broker.example")


async def test_a_remote_address_needs_authentication_or_a_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def service(**keys: Any) -> AccessService:
        return AccessService(AccessConfig(**keys), tmp_path)

    with pytest.raises(RemoteWithoutAccess) as raised:
        await service().check_address("0.0.0.0")
    for mend in ("holdfast token create", "--access-authentication true", "127.0.0.1",
                 "--access-insecure-remote true"):  # fmt: skip
        assert mend in str(raised.value)
    await service().check_address("127.0.0.1")
    with caplog.at_level(logging.WARNING):
        await service(authentication=True).check_address("0.0.0.0", is_encrypted=True)
        await service().check_address("0.0.0.0", is_encrypted=True, asks_for_certificates=True)
        assert not caplog.text
        await service(authentication=True).check_address("0.0.0.0")
        assert "without TLS" in caplog.text
        caplog.clear()
        await service(insecure_remote=True).check_address("0.0.0.0", is_encrypted=True)
        assert "clients need no token" in caplog.text


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
