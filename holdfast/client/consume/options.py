"""The options of a consumer that is a member of a group."""

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SerialBy = Literal["key", "queue", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Options of a consumer; `AsyncClient.consume` documents each."""

    group: str
    topics: Sequence[str]
    member: str
    max_in_flight: int
    concurrency: int
    serial_by: SerialBy | None
    start: str | None
    follow: bool
    wait_for_delayed: bool
    filter: str | None
    lease_ms: int | None
    settled: bool
    max_bytes: int
    wait_ms: int
    ack_batch: int
    ack_interval_ms: float


def make_member_name() -> str:
    """Return a unique name for a member: host, process id and a random part."""
    host = "".join(c for c in socket.gethostname() if c.isascii() and (c.isalnum() or c in "-."))
    return f"{host[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
