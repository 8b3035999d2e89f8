"""A real broker that requires tokens: changes while it runs, and secrets that it never shows."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from holdfast.broker import Broker
from holdfast.client import AsyncClient, Client, errors
from holdfast.commitlog.config import CommitLogConfig
from holdfast.config import Config
from holdfast.http_api.access.config import AccessConfig
from holdfast.http_api.access.grants import parse_grants
from holdfast.http_api.access.service import RemoteWithoutAccess
from holdfast.http_api.access.token_file import TokenFile, create_token, revoke_tokens
from holdfast.http_api.config import HttpConfig
from holdfast.running_broker import BrokerDidNotStart, RunningBroker
from holdfast.testing import TEST_ARGUMENTS

ACCESS = ("--access-authentication", "true", "--access-token-check-ms", "20")


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "data")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        data_dir=tmp_path / "data",
        commitlog=CommitLogConfig(segment_bytes=1 << 20, reserve_bytes=0),
        http_api=HttpConfig(port=0),
        access=AccessConfig(authentication=True, token_check_ms=20),
    )


@pytest.fixture
async def broker(config: Config) -> AsyncIterator[Broker]:
    async with Broker(config) as broker:
        yield broker


def make(file: TokenFile, *grants: str, expires_ms: int | None = None) -> tuple[str, str]:
    """Return (id, text) of a new token."""
    parsed = [grant for each in grants for grant in parse_grants(each)]
    now_ms = time.time_ns() // 1_000_000
    token, text = create_token(file, name="", grants=parsed, now_ms=now_ms, expires_ms=expires_ms)
    return token.token_id, text


async def until_it_is(expected: int, broker: Broker, text: str) -> None:
    """Wait until a request with this token is answered with the expected status."""
    deadline = time.monotonic() + 10
    status = 0
    while status != expected:
        assert time.monotonic() < deadline, f"still {status}"
        async with AsyncClient(broker.url, token=text, timeout_ms=0) as client:
            try:
                await client.topics()
                status = 200
            except errors.ApiError as error:
                status = error.status


async def test_tokens_can_change_while_the_broker_runs(broker: Broker, file: TokenFile) -> None:
    token_id, text = make(file, "all")
    await until_it_is(200, broker, text)
    other_id, other = make(file, "operate")
    await until_it_is(403, broker, other)
    revoke_tokens(file, [token_id])
    await until_it_is(401, broker, text)
    await until_it_is(403, broker, other)
    revoke_tokens(file, [other_id])
    await until_it_is(401, broker, other)


async def test_a_token_expires_while_the_broker_runs(
    broker: Broker, file: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires_ms = time.time_ns() // 1_000_000 + 60_000
    _, text = make(file, "all", expires_ms=expires_ms)
    await until_it_is(200, broker, text)
    assert broker._access is not None
    monkeypatch.setattr(broker._access.access, "_now_s", lambda: expires_ms / 1000)
    await until_it_is(401, broker, text)


async def test_existing_tokens_work_from_the_first_request(config: Config, file: TokenFile) -> None:
    _, text = make(file, "all")
    async with Broker(config) as broker, AsyncClient(broker.url, token=text) as client:
        await client.create_topic("orders")


async def test_a_file_damaged_in_use_is_reported(
    broker: Broker, file: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:
    _, text = make(file, "all")
    await until_it_is(200, broker, text)
    with caplog.at_level(logging.ERROR):
        for path in (file.path, file.path.with_name("tokens.copy")):
            path.write_bytes(b"damaged")
        while "cannot be read" not in caplog.text:
            await until_it_is(200, broker, text)
    await until_it_is(200, broker, text)


async def test_a_file_damaged_at_the_start_refuses_everybody(
    config: Config, file: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:
    _, text = make(file, "all")
    for path in (file.path, file.path.with_name("tokens.copy")):
        path.write_bytes(b"damaged")
    with caplog.at_level(logging.ERROR):
        async with Broker(config) as broker:
            await until_it_is(401, broker, text)
            assert [fault.reason for fault in broker.status.degraded] == ["tokens-unreadable"]
    assert "so the broker refuses every client" in caplog.text


async def test_a_refused_client_is_answered_at_once(broker: Broker, file: TokenFile) -> None:
    _, text = make(file, "publish:orders")
    await until_it_is(200, broker, text)
    async with AsyncClient(broker.url) as client:
        with pytest.raises(errors.Unauthenticated):
            await client.topics()
    async with AsyncClient(broker.url, token=text) as client:
        with pytest.raises(errors.Forbidden) as raised:
            await client.create_topic("orders")
        assert raised.value.verb == "admin"
        with pytest.raises(errors.Forbidden):
            await client.publish("orders", b"x")
        with pytest.raises(errors.Forbidden):
            async for _ in client.pull("orders", queue=0, offset=0):
                raise AssertionError
        with pytest.raises((errors.Forbidden, errors.PublishFailed)):
            async with client.producer("orders") as producer:
                producer.send(b"x")


# -- listening addresses ---------------------------------------------------------------------


async def test_no_remote_address_without_authentication(config: Config) -> None:
    remote = replace(config.http_api, host="0.0.0.0")
    open_to_all = replace(config, http_api=remote, access=AccessConfig())
    broker = Broker(open_to_all)
    with pytest.raises(RemoteWithoutAccess):
        await broker.start()
    assert not config.data_dir.exists()
    for access in (AccessConfig(insecure_remote=True), AccessConfig(authentication=True)):
        async with Broker(replace(open_to_all, access=access)) as broker:
            assert broker.url.startswith("http://0.0.0.0:")


def test_the_command_line_names_the_options(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data", ("--host", "0.0.0.0"))
    with pytest.raises(BrokerDidNotStart) as raised:
        broker.start()
    assert "ended with status 6" in raised.value.reason
    assert "--access-insecure-remote true" in raised.value.log
    assert "Traceback" not in raised.value.log


# -- secrets stay secret ---------------------------------------------------------------------


def test_no_token_is_logged_or_shown(tmp_path: Path, file: TokenFile) -> None:
    """Search everything that the broker and its clients write for every secret.

    The tokens are valid and invalid, and the log level is the most verbose one.
    """
    secrets = []
    texts = []
    for grants in (("all",), ("consume:a",), ("operate",)):
        _, text = make(file, *grants)
        texts.append(text)
        secrets.append(text.partition(".")[2])
    _, expired = make(file, "all", expires_ms=1)
    revoked_id, revoked = make(file, "all")
    revoke_tokens(file, [revoked_id])
    invented = f"holdfast_{'0' * 12}.{'Q' * 43}"
    texts += [expired, revoked, invented]
    secrets += [each.partition(".")[2] for each in texts[3:]]
    output: list[str] = []
    arguments = (*TEST_ARGUMENTS, *ACCESS, "--log-level", "debug")
    with RunningBroker(tmp_path / "data", arguments) as running:
        for text in texts:
            output += _everything(running.url, text)
        output += [" ".join(psutil.Process(running.pid).cmdline())]
        output += [str(psutil.Process(running.pid).environ())]
        with Client(running.url, token=texts[0]) as client:
            output += [repr(client), str(vars(client).keys())]
            output += [json.dumps(client.describe_topic("a").to_dict())]
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    output += [
        path.read_bytes().decode("latin-1") for path in files if path.stat().st_size < 1 << 23
    ]
    log = running.log_path.read_text()
    assert "DEBUG" in log
    output.append(log)
    everything = "\n".join(output)
    assert '"outcome":"denied"' in everything, "the audit log was searched, too"
    assert "holdfast_http_request_seconds" in everything
    for secret in secrets:
        assert secret not in everything
        assert secret[:20] not in everything


#: Asks the broker directly, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _everything(url: str, text: str) -> list[str]:
    """Return the broker's responses to requests of every kind with this token."""
    output = []
    head = {"Authorization": f"Bearer {text}"}
    for method, path, headers, body in (
        ("GET", "/v1/info", head, None),
        ("GET", "/metrics", head, None),
        ("GET", "/openapi.json", head, None),
        ("GET", "/readyz", head, None),
        ("PUT", "/v1/topics/a", head, b"{}"),
        ("POST", "/v1/topics/a/messages", head, b"hello"),
        ("GET", "/v1/topics/a/queues/0/messages?offset=0", head, None),
        ("GET", "/v1/topics/nothing", head, None),
        ("GET", "/v1/topics?what=1", head, None),
        ("GET", "/v1/topics/a/queues/x/messages", head, None),
        ("POST", "/v1/topics/a/messages", head | {"Content-Type": "application/json"}, b"{"),
        ("GET", "/nothing", head, None),
        ("DELETE", "/v1/topics/a", head, None),
        ("GET", "/v1/topics", {"Authorization": f"Basic {text}"}, None),
        ("GET", "/v1/topics", {"Authorization": text}, None),
        ("GET", "/v1/topics", {"Authorization": f"Bearer {text} {text}"}, None),
    ):
        request = urllib.request.Request(url + path, method=method, headers=headers, data=body)
        try:
            with _OPENER.open(request) as response:
                output.append(f"{response.headers}\n{response.read().decode('latin-1')}")
        except urllib.error.HTTPError as error:
            output.append(f"{error.headers}\n{error.read().decode('latin-1')}")
    output += [_raw(url, line) for line in _malformed(text)]
    return output


def _malformed(text: str) -> list[bytes]:
    """Return malformed HTTP heads that contain a token."""
    line = f"Authorization: Bearer {text}".encode()
    get = b"GET /v1/topics HTTP/1.1\r\nHost: x\r\n"
    return [
        get + line + b"\x00\r\n\r\n",
        get + line + b"\x0b\r\n\r\n",
        get + line + b"\n bad\r\n\r\n",
        get + line.replace(b":", b" :") + b"\r\n\r\n",
        get + line + b"x" * 70_000 + b"\r\n\r\n",
        get + line + b"\r\n" + line + b"\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\r\n" + line + b"\r\nContent-Length: x\r\n\r\n",
        line + b"\r\n\r\n",
    ]


def _raw(url: str, data: bytes) -> str:
    parts = urlsplit(url)
    output = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        # The broker may refuse the head and close before all of it has arrived.
        with suppress(ConnectionError):
            connection.sendall(data)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while piece := connection.recv(65536):
                output += piece
    return output.decode("latin-1")


def test_a_failing_command_does_not_repeat_its_token(tmp_path: Path, file: TokenFile) -> None:
    _, text = make(file, "operate")
    environ = {**os.environ, "HOLDFAST_TOKEN": text}
    with RunningBroker(tmp_path / "data", (*TEST_ARGUMENTS, *ACCESS)) as running:
        for command in (
            ("topic", "list", "--url", running.url),
            ("publish", "orders", "--url", running.url),
            ("pull", "orders", "--from", "earliest", "--url", running.url),
            ("group", "list", "--url", running.url),
            ("config", "show"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "holdfast", *command],
                env=environ, input=b"a line\n", capture_output=True, check=False,
            )  # fmt: skip
            output = done.stdout + done.stderr
            assert text.partition(".")[2].encode() not in output
            if command[0] != "config":
                assert done.returncode == 6, output
                assert re.search(rb"needs (publish|consume|admin)", output), output


# -- the audit log ---------------------------------------------------------------------------


async def test_start_and_stop_are_audited(config: Config) -> None:
    async with Broker(config):
        pass
    path = config.data_dir / "access" / "audit.log"
    started, stopped = (json.loads(line) for line in path.read_text().splitlines())
    assert (started["act"], stopped["act"]) == ("broker.start", "broker.stop")
    assert started["object"] == str(config.data_dir)
    assert started["config"]["access.authentication"] is True
    assert "http_api.host" not in started["config"]


async def test_without_an_audit_log_nothing_is_audited(config: Config) -> None:
    access = replace(config.access, audit=False)
    async with Broker(replace(config, access=access)):
        pass
    assert not (config.data_dir / "access").exists()
