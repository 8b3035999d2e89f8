"""Where a pull starts, and its limits."""

from dataclasses import dataclass

from holdfast.client.transport.requests import drop_none

#: One request asks for at most this many messages; this is the broker's limit. A reply may have
#: more, because the broker sends whole batches.
MAX_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading starts: an offset, `start` ("earliest" or "latest"), or a time. Exactly one of
    the three is set."""

    offset: int | None = None
    start: str | None = None
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        given = [self.offset, self.start, self.timestamp_ms]
        if sum(value is not None for value in given) != 1:
            raise ValueError("give exactly one of offset=, start= and timestamp_ms=")
        if self.start not in (None, "earliest", "latest"):
            raise ValueError(f'start is "earliest" or "latest", not {self.start!r}')

    def params(self) -> dict[str, str | int]:
        """Return the start as a pull's query parameter."""
        if self.offset is not None:
            return {"offset": self.offset}
        if self.start is not None:
            return {"from": self.start}
        assert self.timestamp_ms is not None
        return {"timestamp_ms": self.timestamp_ms}


@dataclass(frozen=True, kw_only=True)
class PullOptions:
    """The limits, filters and waiting time of a pull; `Client.pull` documents each."""

    max_messages: int = MAX_MESSAGES
    max_bytes: int = 4 * 1024 * 1024
    wait_ms: int = 20_000
    tag: str | None = None
    filter: str | None = None
    skip_corrupt: bool = False
    #: Whether binary replies of one queue are decoded as a run even if their batches are large.
    in_runs: bool = False
    #: Whether the broker may send a run of small batches merged, as one batch.
    rebuilt: bool = True

    @property
    def is_filtered(self) -> bool:
        """Whether the broker filters the messages."""
        return self.tag is not None or self.filter is not None

    def params(self, wait_ms: int) -> dict[str, str | int]:
        """Return the options as a pull's query parameters."""
        return drop_none(
            max_messages=self.max_messages,
            max_bytes=self.max_bytes,
            wait_ms=wait_ms,
            tag=self.tag,
            filter=self.filter,
            skip_corrupt="true" if self.skip_corrupt else None,
        )
