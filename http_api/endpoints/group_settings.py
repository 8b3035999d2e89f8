"""Converts a group's settings between the API's form and the group service's form. Pure."""

from collections.abc import Mapping
from typing import Any, cast

from msgspec import UNSET
from msgspec.structs import asdict

from holdfast.consumequeue.topics import check_name
from holdfast.groups.config import MAX_WEIGHT, GroupsConfig
from holdfast.groups.core.subscribing import check_subscription
from holdfast.groups.service_types import GroupSpec, GroupState, TopicSpec
from holdfast.groups.settings import (
    MAX_BACKOFF_MS,
    MAX_BACKOFFS,
    bounds,
    filter_texts,
)
from holdfast.http_api.routing.params import check_at_most, check_count_at_most
from holdfast.http_api.schemas.groups import (
    Cost,
    Engine,
    FairnessReply,
    GroupConfigReply,
    GroupSettings,
    Mode,
    Subscription,
    SubscriptionReply,
)


def group_spec(settings: GroupSettings, limits: GroupsConfig) -> GroupSpec:
    """Return the settings in the body of a PUT, for the group service.

    Raises InvalidName, Problem (limit-exceeded).
    """
    given: dict[str, Any] = {
        name: value for name, value in asdict(settings).items() if value is not UNSET
    }
    for name, (_, limit, limit_name) in bounds(limits).items():
        check_at_most(name, given.get(name), limit, limit_name)
    if "topics" in given:
        given["topics"] = _topics(given["topics"], limits)
    if "fairness" in given:
        fairness = asdict(given.pop("fairness"))
        given.update({name: value for name, value in fairness.items() if value is not UNSET})
    if "backoff_ms" in given:
        check_count_at_most("backoff_ms", "delays", len(given["backoff_ms"]), MAX_BACKOFFS)
        check_at_most("backoff_ms", max(given["backoff_ms"], default=0), MAX_BACKOFF_MS)
    if "dead_letter_topic" in given:
        name = given["dead_letter_topic"]
        given["dead_letter_topic"] = "" if name is None else check_name("topic", name)
    return GroupSpec(**given)


def _topics(given: Mapping[str, Subscription], limits: GroupsConfig) -> dict[str, TopicSpec]:
    check_count_at_most("topics", "topics", len(given), limits.max_topics, "max_topics")
    topics = {}
    for name, each in given.items():
        check_at_most(f"topics.{name}.weight"[:200], each.weight, MAX_WEIGHT)
        topics[check_subscription(name)] = TopicSpec(each.weight, each.filter)
    check_count_at_most(
        "topics",
        "characters of filters",
        sum(map(len, filter_texts(topics))),
        limits.max_filter_characters_per_group,
        "max_filter_characters_per_group",
    )
    return topics


def config_reply(state: GroupState, topics: Mapping[str, TopicSpec]) -> GroupConfigReply:
    """Return a group's settings for a reply. `topics` are the topics that the caller may see."""
    return GroupConfigReply(
        {name: SubscriptionReply(each.weight, each.filter) for name, each in topics.items()},
        FairnessReply(cast(Engine, state.engine), cast(Cost, state.cost)),
        cast(Mode, state.mode),
        state.start,
        state.lease_ms,
        state.max_in_flight,
        state.max_in_flight_per_member,
        state.max_in_flight_per_key,
        state.max_attempts,
        list(state.backoff_ms),
        state.dead_letter_topic,
        state.strict_leases,
        state.member_ttl_ms,
    )
