"""What the source of an attach asks for, and how the attach is answered. Pure.

| address        | distribution-mode `move`, or none     | distribution-mode `copy` |
|----------------|---------------------------------------|--------------------------|
| NAME, exchange | leases of group NAME (1)              | browses group NAME (1)   |
| group          | leases of the group                   | browses the group        |
| topic          | copies of the topic                   | copies of the topic      |
| topic, durable or shared | leases of the subscription's group, in either mode |   |

(1) The broker creates the group if it does not exist. NAME with the capability `topic` is the
topic. The source in the answer has the values that the broker applies, which may differ from the
values that the client asked for.
"""

from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.amqp.nodes.addresses import Address, Kind
from holdfast.amqp.nodes.filters import NEXT, Filters, Start, read_filters
from holdfast.amqp.termini.subscriptions import GLOBAL, NEVER, SHARED, SubscriptionName
from holdfast.amqp.wire.conditions import INVALID_FIELD, NOT_IMPLEMENTED, LinkFailed
from holdfast.amqp.wire.performatives import Accepted, Modified, Rejected, Released, Source
from holdfast.amqp.wire.types import Symbol

Outcome = Accepted | Rejected | Released | Modified

QUEUE, TOPIC = "queue", "topic"
MOVE, COPY = "move", "copy"
OUTCOMES = (
    "amqp:accepted:list",
    "amqp:rejected:list",
    "amqp:released:list",
    "amqp:modified:list",
)
_Wanted = TypeVar("_Wanted", "FromGroup", "FromTopic")


class FromGroup(msgspec.Struct, frozen=True):
    """Messages of a group: under leases, as a member of the group, or only shown (browsed)."""

    group: str
    topics: tuple[str, ...] | None
    """Only messages of these topics; None means all topics of the group."""
    is_made_by_need: bool
    """If the group does not exist, make it: a competing group on the topic of the same name."""
    is_browsed: bool
    condition: str | None
    """Only messages for which this condition of the filter language is true."""
    is_no_local: bool
    """No messages that the same client (container) published."""
    default_outcome: Outcome
    answer: Source


class FromTopic(msgspec.Struct, frozen=True):
    """Messages of a topic by offset, of all queues or of one."""

    topic: str
    queue: int | None
    is_made_by_need: bool
    """If the topic does not exist, make it."""
    start: Start
    tags: str | None
    selector: str | None
    is_no_local: bool
    """No messages that the same client (container) published."""
    default_outcome: Outcome
    answer: Source


class FromSubscription(FromGroup, frozen=True):
    """Messages of a topic from when the subscription was made, under leases of its group.

    `condition` and `is_no_local` are of the subscription: the group applies them, not the link.
    """

    topic: str
    subscription: SubscriptionName


Wanted = FromGroup | FromTopic


def without_answer(wanted: _Wanted) -> _Wanted:
    """Return what a link needs while it is attached. A client may make the answer and the outcome
    large, and the broker does not need them after it has sent the answer."""
    outcome = wanted.default_outcome
    if isinstance(outcome, Modified):
        outcome = outcome._replace(message_annotations=None)
    elif isinstance(outcome, Rejected):
        outcome = Rejected()
    return replace(wanted, default_outcome=outcome, answer=Source())


def read_source(
    source: Source, address: Address, subscription: SubscriptionName | None = None
) -> Wanted:
    """Return what a source asks for. `address` is its parsed address; `subscription` is that of the
    link, which matters only for topics.

    Raises LinkFailed: amqp:not-implemented for what is not supported, amqp:invalid-field for a
    value that is not valid.
    """
    is_topic = address.kind is Kind.TOPIC or TOPIC in source.capabilities
    if address.kind in (Kind.TEMP, Kind.MANAGER):
        raise LinkFailed(NOT_IMPLEMENTED, f"this broker has no {address.kind.value} sources")
    if is_topic and address.kind is not Kind.GROUP:
        if subscription is not None:
            return _read_subscription(source, address, subscription)
        return _read_topic(source, address)
    is_browsed = source.distribution_mode == COPY
    filters = read_filters(source.filter, is_copied=False)
    made = address.kind is not Kind.GROUP
    topics = None if address.topic is None else (address.topic,)
    answer = _answer(source, filters, COPY if is_browsed else MOVE, QUEUE)
    condition = _condition(filters, address.tag)
    return FromGroup(
        address.name,
        topics,
        made,
        is_browsed,
        condition,
        filters.is_no_local,
        answer.default_outcome,
        answer,
    )


def _read_subscription(
    source: Source, address: Address, subscription: SubscriptionName
) -> FromSubscription:
    if address.queue is not None:
        raise LinkFailed(NOT_IMPLEMENTED, "a subscription is of a topic, not of one queue")
    filters = read_filters(source.filter, is_copied=False)
    answer = _answer(source, filters, COPY, TOPIC)
    shared = tuple(Symbol(each) for each in (SHARED, GLOBAL) if each in source.capabilities)
    answer = answer._replace(capabilities=answer.capabilities + shared)
    if not subscription.is_volatile:
        answer = answer._replace(durable=source.durable, expiry_policy=NEVER)
    return FromSubscription(
        subscription.group,
        None,
        False,
        False,
        _condition(filters, address.tag),
        filters.is_no_local,
        answer.default_outcome,
        answer,
        address.name,
        subscription,
    )


def _read_topic(source: Source, address: Address) -> FromTopic:
    filters = read_filters(source.filter, is_copied=True)
    answer = _answer(source, filters, COPY, TOPIC)
    start = filters.start or NEXT
    selector = _and(filters.selector, _tag_condition(address.tag))
    is_made = not str(source.address).startswith("/topics/")
    return FromTopic(
        address.name,
        address.queue,
        is_made,
        start,
        filters.tags,
        selector,
        filters.is_no_local,
        answer.default_outcome,
        answer,
    )


def _answer(source: Source, filters: Filters, mode: str, capability: str) -> Source:
    """Return the source of the answer: nothing of a link is kept after its detach."""
    return Source(
        source.address,
        durable=0,
        expiry_policy="link-detach",
        distribution_mode=mode,
        filter=dict(filters.in_force) or None,
        default_outcome=_default_outcome(source.default_outcome),
        outcomes=OUTCOMES,
        capabilities=(Symbol(capability),),
    )


def _default_outcome(given: Any) -> Outcome:
    if given is None:
        return Released()
    if isinstance(given, Outcome):
        return given
    raise LinkFailed(INVALID_FIELD, "the default-outcome is not an outcome")


def _condition(filters: Filters, tag: str | None) -> str | None:
    """Return the filters as one condition of the filter language."""
    tags = None
    if filters.tags is not None:
        names = [each.strip() for each in filters.tags.split(",")]
        if "*" not in names:
            tags = " OR ".join(f"({_tag_condition(each)})" for each in names if each)
    return _and(_and(filters.selector, tags), _tag_condition(tag))


def _tag_condition(tag: str | None) -> str | None:
    if tag is None:
        return None
    quoted = tag.replace("'", "''")
    return f"TAGS = '{quoted}'"


def _and(first: str | None, second: str | None) -> str | None:
    if first is None or second is None:
        return second if first is None else first
    return f"({first}) AND ({second})"
