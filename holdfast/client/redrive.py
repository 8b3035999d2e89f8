"""Putting dead letters back where they came from.

How far that went is kept by a group of its own on the dead-letter topic, `GROUP.redrive`. A letter
is acknowledged there once its message is stored and synced; what was put back just before a crash
is put back again with the same identity, so the broker stores it once. Many are under way at once,
of one key or, without a key, of one queue one after the other.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, NamedTuple, Protocol

import msgspec

from holdfast.client import group_requests
from holdfast.client.consumer import AsyncConsumer
from holdfast.client.delivery import Delivery
from holdfast.client.errors import HoldfastError, UnknownTopic
from holdfast.client.message import Message
from holdfast.client.new_message import NewMessage
from holdfast.client.publishing import PublishRequest
from holdfast.client.requests import Requests, checked_name
from holdfast.client.sender import ProducerIdentity

#: The properties with which a dead letter says what it was.
PREFIX = "holdfast-dead-"
#: The member that puts letters back: a second one takes over from a first that was killed.
MEMBER = "redrive"
#: Letters that are put back at once; the broker syncs them together.
AT_ONCE = 64
#: A letter that cannot go back is kept back for so long, until it is tried again.
STUCK_MS = 60_000


class NoDeadLetters(HoldfastError):
    """The group has no dead-letter topic, or no leases at all."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return (
            f"{self.group} has no dead-letter topic; give it one with "
            f"`holdfast group create {self.group} --dead-letter-topic NAME`"
        )


class NoLetter(HoldfastError):
    """A message that does not say of which topic and queue it was."""

    def __init__(self, message_id: str) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"message {self.message_id} does not say which topic and queue it came from"


class Redriven(NamedTuple):
    """How many letters were put back, by topic; `stuck` are those whose topic is gone, and what
    does not say where it came from."""

    dead_letter_topic: str
    topics: dict[str, int]
    stuck: int

    @property
    def total(self) -> int:
        """How many were put back."""
        return sum(self.topics.values())


@dataclass(frozen=True, slots=True)
class Letter:
    """What a dead letter says of the message that it was."""

    message: Message
    topic: str
    queue: int
    properties: dict[str, str]

    @classmethod
    def of(cls, message: Message) -> "Letter":
        """Read a dead letter. Raises NoLetter for what is none: anybody who may publish to the
        topic can have put it there."""
        properties = message.properties
        try:
            topic = checked_name("topic", properties[f"{PREFIX}topic"])
            queue = int(properties[f"{PREFIX}queue"])
        except (KeyError, ValueError) as error:
            raise NoLetter(message.message_id) from error
        if queue < 0:
            raise NoLetter(message.message_id)
        return cls(
            message,
            topic,
            queue,
            {name: text for name, text in properties.items() if not name.startswith(PREFIX)},
        )

    def original(self, queue_count: int, priority_levels: int) -> NewMessage:
        """Return the message as it was, to be published again.

        Its key chooses its queue, as ever. One without a key, and one that has a level of
        priority, goes to its own queue, while the topic has it.
        """
        message = self.message
        keeps_queue = message.key is None or priority_levels > 1
        queue = self.queue if keeps_queue and self.queue < queue_count else None
        return NewMessage(
            message.body, message.key, message.tag, self.properties or None, queue=queue
        )

    @property
    def unit(self) -> tuple[str, str | int]:
        """What it has to stay in order with."""
        key = self.message.key
        return self.topic, self.queue if key is None else key

    def identity(self, group: str) -> ProducerIdentity:
        """Return under whom it is put back: always the same, and nobody else's."""
        digest = sha256(f"{group} {self.message.message_id}".encode()).digest()
        identity = ProducerIdentity()
        identity.producer_id = int.from_bytes(digest[:8], "big") >> 1 or 1
        return identity


class _TopicConfig(msgspec.Struct):
    priority_levels: int = 1


class _Topic(msgspec.Struct):
    queue_count: int
    config: _TopicConfig


class MakesConsumers(Protocol):
    """Who makes the consumer of the dead letters: the client."""

    def consume(
        self,
        topic: str,
        group: str,
        *,
        member: str,
        follow: bool,
        max_in_flight: int,
        concurrency: int,
        serial_by: Literal["nothing"],
    ) -> AsyncConsumer:
        """Return a consumer of a topic, as AsyncClient.consume does."""
        ...


def group_of_redriving(group: str) -> str:
    """Return the name of the group that says how far redriving came."""
    return f"{group}.redrive"


def letters_of(group: str) -> str:
    """Return the condition that a group's dead letters fulfil."""
    return f"`{PREFIX}group` = '{group}'"


def dead_letter_topic(group: str, described: Mapping[str, object]) -> str:
    """Return a group's dead-letter topic by its description. Raises NoDeadLetters."""
    config = described.get("config")
    topic = config.get("dead_letter_topic") if isinstance(config, Mapping) else None
    if not isinstance(topic, str):
        raise NoDeadLetters(group)
    return topic


async def redrive(
    transport: Requests, client: MakesConsumers, group: str, most: int | None
) -> Redriven:
    """Put a group's dead letters back, those of a key in their order, at most so many. The first
    that cannot be put back ends it, and is raised once what was begun has ended."""
    dead = dead_letter_topic(group, await group_requests.describe_group(transport, group))
    redriving = group_of_redriving(group)
    settings = {
        "topics": {dead: {"filter": letters_of(group)}},
        "max_attempts": 0,
        "start": "earliest",
    }
    await group_requests.put_group(transport, redriving, settings)
    # What one that was killed had in hand is had at once.
    await group_requests.leave(transport, redriving, MEMBER)
    consumer = client.consume(
        dead,
        redriving,
        member=MEMBER,
        follow=False,
        max_in_flight=4 * AT_ONCE,
        concurrency=AT_ONCE,
        serial_by="nothing",
    )
    async with consumer:
        return await _Redriving(transport, consumer, group).put_back(dead, most)


class _Redriving:
    """One run over a group's dead letters."""

    def __init__(self, transport: Requests, consumer: AsyncConsumer, group: str) -> None:
        self._transport = transport
        self._consumer = consumer
        self._group = group
        self._topics: dict[str, _Topic | None] = {}
        #: The last of each unit that is under way.
        self._last: dict[tuple[str, str | int], asyncio.Task[None]] = {}
        self._failure: Exception | None = None
        self._done: Counter[str] = Counter()

    async def put_back(self, dead: str, most: int | None) -> Redriven:
        """Put letters back, at most so many; raise what kept one of them from it."""
        begun = stuck = 0
        try:
            # No more are given out than may be in hand at once, and none once it is stopped.
            while most is None or begun < most:
                delivery = await self._consumer.next()
                if delivery is None:
                    break
                found = await self._opened(delivery)
                if found is None:
                    delivery.nack(STUCK_MS)
                    stuck += 1
                    continue
                letter, topic = found
                begun += 1
                before = self._last.get(letter.unit)
                task = asyncio.create_task(self._put_back(delivery, letter, topic, before))
                self._last[letter.unit] = task
        finally:
            if self._last:
                await asyncio.wait(self._last.values())
        if self._failure is not None:
            raise self._failure
        return Redriven(dead, dict(self._done), stuck)

    async def _opened(self, delivery: Delivery) -> tuple[Letter, _Topic] | None:
        """Return a delivery's letter and the topic that it came from; None where either is none."""
        try:
            letter = Letter.of(delivery)
        except NoLetter:
            return None
        topic = await self._topic(letter.topic)
        return None if topic is None else (letter, topic)

    async def _put_back(
        self,
        delivery: Delivery,
        letter: Letter,
        topic: _Topic,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            if self._failure is None:  # what lies behind one that failed stays behind it
                message = letter.original(topic.queue_count, topic.config.priority_levels)
                request = PublishRequest(letter.topic, "fsync", [message.encode()])
                await request.send(self._transport, letter.identity(self._group))
                delivery.ack()
                self._done[letter.topic] += 1
        except Exception as error:
            self._failure = self._failure or error
            self._consumer.stop()
        if self._last.get(letter.unit) is asyncio.current_task():
            del self._last[letter.unit]

    async def _topic(self, name: str) -> _Topic | None:
        if name not in self._topics:
            try:
                found = await self._transport.request("GET", f"/v1/topics/{name}")
                self._topics[name] = found.json(_Topic)
            except UnknownTopic:
                self._topics[name] = None
        return self._topics[name]
