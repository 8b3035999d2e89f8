"""The options of a producer, and the types of what it sends. Pure."""

from dataclasses import dataclass

from holdfast.commitlog.format.priority import HIGHEST_PRIORITY

Body = bytes | bytearray | memoryview | str


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """The options of a producer; `Client.producer` documents each."""

    queue: int | None = None
    priority: int | None = None
    durability: str | None = None
    linger_ms: float = 5.0
    batch_bytes: int = 512 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    max_in_flight: int = 2
    delivery_timeout_ms: float = 120_000.0
    mandatory: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_bytes", "buffer_bytes", "max_in_flight", "delivery_timeout_ms"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is more than 0, not {getattr(self, name)}")
        if self.linger_ms < 0:
            raise ValueError(f"linger_ms is at least 0, not {self.linger_ms}")
        if self.priority is not None:
            check_priority(self.priority)


def check_priority(priority: int) -> None:
    if type(priority) is not int:
        raise TypeError(f"a priority is a whole number, not {type(priority).__name__}")
    if not 0 <= priority <= HIGHEST_PRIORITY:
        raise ValueError(f"a priority is 0 to {HIGHEST_PRIORITY}, not {priority}")
