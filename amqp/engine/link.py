"""What both kinds of links have in common: names, handles, and attaching and detaching. Pure."""

from enum import Enum
from typing import Any, NamedTuple

from holdfast.amqp.engine.frame_writer import FrameWriter
from holdfast.amqp.engine.resumption import fit_unsettled
from holdfast.amqp.engine.windows import Windows
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.performatives import Attach, Detach, Error, Source, Target
from holdfast.amqp.wire.types import Symbol

#: A description may quote what the client sent. As in the HTTP API, it has at most this many
#: characters, so that it fits in a frame, and so that little memory is needed for a kept outcome.
MAX_DESCRIPTION_CHARACTERS = 1000


class LinkState(Enum):
    """Where a link is between its two attaches and its two detaches.

    | state           | this end sent | the peer sent | messages and credit |
    |-----------------|---------------|---------------|---------------------|
    | ATTACH_SENT     | attach        |               | no                  |
    | ATTACH_RECEIVED |               | attach        | no                  |
    | ATTACHED        | attach        | attach        | yes                 |
    | DETACH_SENT     | detach        |               | arriving: ignored   |
    | DETACH_RECEIVED |               | detach        | no                  |
    | DETACHED        | detach        | detach        | no                  |
    """

    ATTACH_SENT = "attach sent"
    ATTACH_RECEIVED = "attach received"
    ATTACHED = "attached"
    DETACH_SENT = "detach sent"
    DETACH_RECEIVED = "detach received"
    DETACHED = "detached"


class HeldBytes:
    """Counts the bytes of one connection's deliveries that have not arrived or left completely."""

    __slots__ = ("arriving", "waiting")

    def __init__(self) -> None:
        self.arriving = 0
        """The bytes of deliveries whose last frames have not arrived."""
        self.waiting = 0
        """The frames that wait for the peer's window."""


class Wiring(NamedTuple):
    """What a link uses of its session: the channel, the windows, the output and the counter."""

    channel: int
    windows: Windows
    writer: FrameWriter
    held: HeldBytes


def error_of(error: AmqpError) -> Error:
    """Return the error as it is sent: its description has at most MAX_DESCRIPTION_CHARACTERS."""
    info: dict[str, object] | None = {Symbol(key): error.info[key] for key in error.info} or None
    description = error.description
    if len(description) > MAX_DESCRIPTION_CHARACTERS:
        description = f"{description[: MAX_DESCRIPTION_CHARACTERS - 3]}..."
    return Error(error.condition, description or None, info)


class Link:
    """One link of a session. IncomingLink and OutgoingLink add messages and credit."""

    #: The role of this end in attach frames: True for a receiver.
    role: bool

    def __init__(self, name: str, handle: int, wiring: Wiring, remote: Attach | None) -> None:
        self.name = name
        self.handle = handle
        self.remote = remote
        """The attach of the peer; None until it has arrived."""
        self.state = LinkState.ATTACH_RECEIVED if remote else LinkState.ATTACH_SENT
        self.context: Any = None
        """Whatever the owner keeps with the link."""
        self.address: str | None = None
        """The address of the node, for operators. The owner sets it."""
        self._wiring = wiring
        self._owes_flow = False

    @property
    def is_attached(self) -> bool:
        """Whether messages and credit may be sent."""
        return self.state is LinkState.ATTACHED

    def send_attach(self, attach: Attach) -> None:
        """Send the attach of this end; `attach` has the link's name, handle and role. States of
        unsettled deliveries that do not fit in the frame are left out."""
        writer = self._wiring.writer
        writer.write(self._wiring.channel, fit_unsettled(attach, writer.max_frame_bytes))
        if self.state is LinkState.ATTACH_RECEIVED:
            self.state = LinkState.ATTACHED
            if self._owes_flow:
                self.send_flow()

    def send_flow(self) -> None:
        """Send the state of the link and of the session's windows."""
        raise NotImplementedError

    def answer_echo(self) -> None:
        """Send the flow that the peer asked for, at the latest once the link is attached."""
        if self.state is LinkState.ATTACH_RECEIVED:
            self._owes_flow = True
        elif self.is_attached:
            self.send_flow()

    def refuse(self, error: AmqpError | None = None) -> None:
        """Answer the peer's attach with a null source or target, and detach with the error.

        This is how the specification refuses a link (part 2.6.3).
        """
        self.send_null_attach()
        self.detach(error)

    def send_null_attach(self) -> None:
        """Answer the peer's attach with a null source or target."""
        remote = self.remote
        assert remote is not None
        source, target = (None, remote.target) if self.role is False else (remote.source, None)
        initial = None if self.role else 0
        self.send_attach(
            Attach(
                self.name, self.handle, self.role, remote.snd_settle_mode, remote.rcv_settle_mode,
                source if isinstance(source, Source) else None,
                target if isinstance(target, Target) else None,
                initial_delivery_count=initial,
            )
        )  # fmt: skip

    def detach(self, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """Detach the link, with an error if there is one. Do nothing if it was detached before."""
        if self.state in (LinkState.DETACH_SENT, LinkState.DETACHED):
            return
        detach = Detach(self.handle, closed, error_of(error) if error else None)
        self._wiring.writer.write(self._wiring.channel, detach)
        is_last = self.state is LinkState.DETACH_RECEIVED
        self.state = LinkState.DETACHED if is_last else LinkState.DETACH_SENT
        self.discard()

    def discard(self) -> None:
        """Free the parts of a delivery that will not be completed."""

    def remote_attached(self, attach: Attach) -> None:
        """Apply the attach of the peer that answers ours."""
        self.remote = attach
        if self.state is LinkState.ATTACH_SENT:
            self.state = LinkState.ATTACHED

    def remote_detached(self) -> None:
        """Apply the detach of the peer."""
        is_last = self.state is LinkState.DETACH_SENT
        self.state = LinkState.DETACHED if is_last else LinkState.DETACH_RECEIVED
