"""Sessions for callers without an event loop: the asynchronous ones, run by the client's loop
thread. All methods may be called from any thread."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from holdfast.client.session.links import AsyncReceiver, AsyncSender
from holdfast.client.session.messages import LinkMessage
from holdfast.client.session.session import AsyncSession
from holdfast.client.transport.loop_thread import LoopThread

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound="_Blocking")


class _Blocking:
    """Something asynchronous, and the thread whose loop runs it."""

    def __init__(self, inner: Any, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def close(self) -> None:
        """Close it. May be repeated."""
        self._thread.run(self._inner.close())

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait(method: Callable[Concatenate[Any, P], Awaitable[R]]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls the asynchronous one and waits for its result."""

    @functools.wraps(method)
    def waiting(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def call() -> R:
            return await method(self._inner, *args, **kwargs)

        return self._thread.run(call())

    return waiting


def _call(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls the plain one on the loop."""

    @functools.wraps(method)
    def calling(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def call() -> R:
            return method(self._inner, *args, **kwargs)

        return self._thread.run(call())

    return calling


class Sender(_Blocking):
    """A link on which the program sends: see AsyncSender."""

    send = _wait(AsyncSender.send)


class Receiver(_Blocking):
    """A link on which the program receives: see AsyncReceiver. Iterate over it."""

    drain = _wait(AsyncReceiver.drain)
    accept = _wait(AsyncReceiver.accept)
    reject = _wait(AsyncReceiver.reject)
    release = _wait(AsyncReceiver.release)
    modify = _wait(AsyncReceiver.modify)
    set_credit = _call(AsyncReceiver.set_credit)
    pause = _call(AsyncReceiver.pause)
    resume = _call(AsyncReceiver.resume)

    @property
    def address(self) -> str:
        """The address from which the receiver gets its messages, such as "/temp/ID"."""
        return str(self._inner.address)

    @property
    def credit(self) -> int:
        """How many messages the broker may send at the moment."""
        return int(self._inner.credit)

    @property
    def buffered(self) -> int:
        """How many messages have arrived and wait for the program."""
        return int(self._inner.buffered)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LinkMessage:
        message: LinkMessage | None = self._thread.run(_next_of(self._inner))
        if message is None:
            raise StopIteration
        return message


def _attach(
    method: Callable[Concatenate[Any, P], Awaitable[Any]], kind: type[E]
) -> Callable[Concatenate[Any, P], E]:
    """Return a method that waits for a link and returns its blocking form."""
    wait = _wait(method)

    @functools.wraps(method)
    def attaching(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> E:
        return kind(wait(self, *args, **kwargs), self._thread)

    return attaching


class Session(_Blocking):
    """Senders and receivers over one connection: see AsyncSession. Use it in `with`."""

    sender = _attach(AsyncSession.sender, Sender)
    receiver = _attach(AsyncSession.receiver, Receiver)


async def _next_of(receiver: AsyncReceiver) -> LinkMessage | None:
    return await anext(receiver, None)
