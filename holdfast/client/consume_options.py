"""How to consume as a member of a group."""

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SerialBy = Literal["key", "queue", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """`AsyncClient.consume` documents each."""

    group: str
    topics: Sequence[str]
    member: str
    max_in_flight: int
    concurrency: int
    serial_by: SerialBy | None
    start: str | None
    follow: bool
    filter: str | None
    lease_ms: int | None
    settled: bool
    max_bytes: int
    wait_ms: int
    ack_batch: int
    ack_interval_ms: float


def own_member() -> str:
    """Return a name for a member that no other has."""
    host = "".join(c for c in socket.gethostname() if c.isascii() and (c.isalnum() or c in "-."))
    return f"{host[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
