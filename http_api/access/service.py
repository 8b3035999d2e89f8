"""Access control of one broker: authorization, tokens, the audit log, the address to listen on."""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from holdfast.http_api.access.audit import AuditFile, AuditLog
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.config import AccessConfig
from holdfast.http_api.access.hosts import AllowedHosts, host_name, is_loopback, names_in
from holdfast.http_api.access.token_file import Stamp, TokenFile, TokensUnreadable
from holdfast.http_api.access.tokens import Tokens

_logger = logging.getLogger(__name__)


class AccessService:
    """Access control of the broker with this `data_dir`. It belongs to one event loop."""

    def __init__(self, config: AccessConfig, data_dir: Path) -> None:
        self._config = config
        file = TokenFile(data_dir)
        self.access = Access(is_required=config.authentication)
        self.audit: AuditLog | None = None
        if config.audit:
            self.audit = AuditLog(
                AuditFile(file.audit_path, config.audit_bytes, config.audit_files),
                max_denied_per_second=config.max_denied_per_second,
            )
        self._watcher: TokenWatcher | None = None
        if config.authentication:
            interval_s = config.token_check_ms / 1000
            self._watcher = TokenWatcher(file, interval_s, self._on_tokens_changed)

    async def check_address(
        self, host: str, *, is_encrypted: bool = False, asks_for_certificates: bool = False
    ) -> None:
        """Check the address on which the broker will listen, and set the allowed host names.

        Raises RemoteWithoutAccess if other machines can reach the address but authentication is
        off. Logs a warning if tokens would be sent unencrypted. Raises OSError if `host` cannot be
        resolved.
        """
        remote = await is_remote(host)
        if not is_encrypted:
            # With TLS, the broker need not check names: browsers compare them with the certificate.
            names = [host_name(host), *names_in(self._config.allowed_hosts)]
            self.access.hosts = AllowedHosts(names, any_address=remote)
        if remote:
            self._check_remote(host, is_encrypted, asks_for_certificates)

    async def check_login_address(
        self, host: str, *, is_encrypted: bool, asks_for_certificates: bool = False
    ) -> None:
        """Check an address on which clients authenticate once for each connection (AMQP).

        Raises RemoteWithoutAccess as `check_address` does. Raises RemoteWithoutTls if other
        machines can reach the address and would send tokens unencrypted. Raises OSError if `host`
        cannot be resolved.
        """
        if not await is_remote(host):
            return
        config = self._config
        if config.authentication and not is_encrypted and not config.insecure_remote:
            raise RemoteWithoutTls(host)
        self._check_remote(host, is_encrypted, asks_for_certificates)

    def _check_remote(self, host: str, is_encrypted: bool, asks_for_certificates: bool) -> None:
        if not self._config.authentication and not asks_for_certificates:
            if not self._config.insecure_remote:
                raise RemoteWithoutAccess(host)
            _logger.warning("other machines can reach %s, and clients need no token", host)
        elif not is_encrypted:
            _logger.warning(
                "other machines can reach %s without TLS, so others can read tokens and messages; "
                "give the broker a certificate, or use a proxy with a certificate",
                host,
            )

    async def start(self) -> None:
        """Read the tokens, watch their file, and start to write the audit log."""
        if self.audit is not None:
            self.audit.start()
        if self._watcher is not None:
            await self._watcher.start()
            if not self.access.tokens.all and self._watcher.fault is None:
                _logger.warning(
                    "there are no access tokens, so every client is refused; make a token with "
                    "'holdfast token create'"
                )

    async def reload(self) -> None:
        """Load the tokens now if the token file has changed."""
        if self._watcher is not None:
            await self._watcher.check_file()

    async def stop(self) -> None:
        """Stop watching, and write the waiting audit lines. May be called twice."""
        if self._watcher is not None:
            await self._watcher.stop()
        if self.audit is not None:
            await asyncio.to_thread(self.audit.stop)

    @property
    def fault(self) -> str | None:
        """Why the tokens in memory may differ from the file; None if they are equal."""
        return self._watcher.fault if self._watcher is not None else None

    def _on_tokens_changed(self, tokens: Tokens) -> None:
        self.access.tokens = tokens


@dataclass(eq=False, repr=False)
class RemoteWithoutAccess(Exception):
    """The broker must not listen where other machines can reach it while authentication is off."""

    host: str

    def __str__(self) -> str:
        return (
            f"{self.host} can be reached by other machines, whose users could then do "
            "everything; make a token with 'holdfast token create' and ask for it "
            "(--access-authentication true), listen on 127.0.0.1, or, where the network itself "
            "keeps others out, say so (--access-insecure-remote true)"
        )


@dataclass(eq=False, repr=False)
class RemoteWithoutTls(Exception):
    """The broker must not ask for tokens where they would cross the network unencrypted."""

    host: str

    def __str__(self) -> str:
        return (
            f"{self.host} can be reached by other machines, which would send their tokens "
            "unencrypted over AMQP; use --amqp-tls-port with a certificate, listen on 127.0.0.1, "
            "or, where the network itself keeps others out, say so (--access-insecure-remote true)"
        )


async def is_remote(host: str) -> bool:
    """Return whether `host` resolves to an address that other machines can reach.

    Raises OSError if the name cannot be resolved.
    """
    found = await asyncio.to_thread(
        socket.getaddrinfo, host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return not all(is_loopback(str(address[0])) for *_, address in found)


class TokenWatcher:
    """Checks the token file every `interval_s` in a thread, and passes new tokens to `changed`.

    If the file becomes unreadable while the broker runs, the error is logged and the old tokens
    stay valid. If the file is already unreadable at the start, there are no tokens, so every
    request that needs a token is denied.
    """

    def __init__(
        self, file: TokenFile, interval_s: float, changed: Callable[[Tokens], None]
    ) -> None:
        self._file = file
        self._interval_s = interval_s
        self._changed = changed
        self._stamp: Stamp | None = None
        self._task: asyncio.Task[NoReturn] | None = None
        self.fault: str | None = None
        """Why the tokens in memory may differ from the file; None if they are equal."""

    async def start(self) -> None:
        await self.check_file()
        self._task = asyncio.create_task(self._watch(), name="access-tokens")

    async def stop(self) -> None:
        """Stop watching the file. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def check_file(self) -> None:
        """Load the tokens if the file has changed since the last check."""
        try:
            found = await asyncio.to_thread(self._read_if_changed)
        except TokensUnreadable as error:
            self._report(str(error))
            return
        except OSError as error:
            self._report(
                f"the access tokens cannot be read ({error}): they stay as they were; let the "
                "broker's user read the folder access/ in its data directory"
            )
            return
        if found is None:
            return
        tokens, faults = found
        self.fault = None
        for fault in faults:
            _logger.error("access tokens: %s; the other copy is used", fault)
        _logger.info("access tokens: %d", len(tokens))
        self._changed(tokens)

    def _read_if_changed(self) -> tuple[Tokens, tuple[str, ...]] | None:
        """Return the tokens, and the faults of copies, or None if the file has not changed.

        Runs in a thread.
        """
        stamp = self._file.stamp()
        if stamp == self._stamp:
            return None
        read = self._file.read()
        # Set only after a successful read, so that a failed read is repeated at the next check.
        self._stamp = stamp
        return Tokens(read.content.tokens), read.faults

    def _report(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            _logger.error("%s", fault)

    async def _watch(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.check_file()
