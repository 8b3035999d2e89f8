import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast.http_api.access.config import AccessConfig
from holdfast.http_api.access.hosts import is_loopback
from holdfast.http_api.access.service import AccessService, RemoteWithoutAccess, is_remote


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
