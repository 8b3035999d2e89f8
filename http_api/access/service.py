"""Access control of one broker: authorization, tokens, the audit log, the address to listen on."""

import asyncio
import logging
import socket
from dataclasses import dataclass
from pathlib import Path

from holdfast.http_api.access.audit import AuditFile, AuditLog
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.config import AccessConfig
from holdfast.http_api.access.hosts import AllowedHosts, host_name, is_loopback, names_in
from holdfast.http_api.access.token_file import TokenFile
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.access.watcher import TokenWatcher

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
        if not remote:
            return
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


async def is_remote(host: str) -> bool:
    """Return whether `host` resolves to an address that other machines can reach.

    Raises OSError if the name cannot be resolved.
    """
    found = await asyncio.to_thread(
        socket.getaddrinfo, host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return not all(is_loopback(str(address[0])) for *_, address in found)
