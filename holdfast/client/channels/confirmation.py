"""What `publish_nowait` returns. Thread-safe."""

from concurrent.futures import Future


class Confirmation:
    """The broker's answer to one publish, now or later."""

    def __init__(self, future: "Future[None]") -> None:
        self._future = future

    @property
    def is_done(self) -> bool:
        """Whether `wait` returns or raises at once."""
        return self._future.done()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once the broker has stored the message. May be repeated, by any thread.

        Raises TimeoutError after `timeout_s`; the message may still be stored. Raises
        ConnectionFailed if the connection was lost: with `maybe_executed` the message may be
        stored or not. Raises ApiError if the broker refuses the message, and ChannelClosed.
        """
        self._future.result(timeout_s)
