"""Collects the frames that a connection sends. Pure."""

from typing import Any

from holdfast.amqp.wire.frames import AMQP_FRAME, frame
from holdfast.amqp.wire.performatives import encode_composite


class FrameWriter:
    """The output of one connection, shared by its sessions and links."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        #: The largest frame that the peer accepts; 512 until its open has arrived.
        self.max_frame_bytes = 512

    def write(self, channel: int, performative: tuple[Any, ...], kind: int = AMQP_FRAME) -> None:
        """Add a frame without a payload."""
        self._parts.append(frame(channel, encode_composite(performative), kind))

    def write_bytes(self, octets: bytes) -> None:
        """Add bytes that are whole frames or a protocol header."""
        self._parts.append(octets)

    def write_all(self, frames: list[bytes]) -> None:
        """Add several whole frames, each in one part or more."""
        self._parts += frames

    @property
    def has_output(self) -> bool:
        """Whether `take` would return bytes."""
        return bool(self._parts)

    def take(self) -> bytes:
        """Return all bytes that were added since the last call."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)
