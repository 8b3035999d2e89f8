"""Checks the settings in a PUT of a group, and applies them to the group's record. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.consumequeue.topics import check_name
from holdfast.groups.config import (
    COSTS,
    FAIR_ENGINES,
    MAX_WEIGHT,
    MODES,
    SHORTEST_LEASE_MS,
    STARTS,
    GroupConfig,
    GroupsConfig,
    TopicSpec,
)
from holdfast.groups.core.subscribing import check_subscription
from holdfast.groups.service_types import (
    GroupSpec,
    GroupState,
    InvalidGroup,
)
from holdfast.groups.storage.group_records import GroupRecord

#: A backoff table may have at most this many entries.
MAX_BACKOFFS = 100
#: The longest delay in a backoff table: 7 days.
MAX_BACKOFF_MS = 7 * 86_400_000
MAX_ATTEMPTS = 60_000
MAX_MEMBER_TTL_MS = 86_400_000

_CHOICES: Mapping[str, Sequence[str]] = {
    "mode": MODES,
    "engine": FAIR_ENGINES,
    "cost": COSTS,
    "start": STARTS,
}
#: The fields that GroupSpec and GroupConfig have in common.
_CONFIG_FIELDS = (
    "mode",
    "engine",
    "cost",
    "lease_ms",
    "max_in_flight",
    "max_in_flight_per_member",
    "max_in_flight_per_key",
    "max_attempts",
    "strict_leases",
    "member_ttl_ms",
)


def changed_record(before: GroupRecord, spec: GroupSpec, owner: str) -> GroupRecord:
    """Return the record with the settings that the spec gives; other fields are unchanged. `topics`
    is unchanged, too: the caller must find the topics that match the new subscriptions. `owner` is
    the owner of the spec's subscriptions. The spec must have been checked (`check_spec`)."""
    given: dict[str, Any] = {
        name: value for name in _CONFIG_FIELDS if (value := getattr(spec, name)) is not None
    }
    if spec.backoff_ms is not None:
        given["backoff_ms"] = tuple(spec.backoff_ms)
    config = replace(before.config, **given)
    were_one = before.config.max_in_flight_per_member == before.config.max_in_flight
    if spec.max_in_flight is not None and spec.max_in_flight_per_member is None and were_one:
        # As long as only max_in_flight was given, it is also the limit of each member.
        config = replace(config, max_in_flight_per_member=config.max_in_flight)
    record = replace(before, start=spec.start or before.start)
    if spec.dead_letter_topic is not None:
        record = replace(record, dead_letter_topic=spec.dead_letter_topic or None)
    if spec.topics is not None:
        record = replace(record, subscriptions=dict(spec.topics), owner=owner)
    config = replace(
        config,
        has_dead_letters=record.dead_letter_topic is not None,
        longest_lease_ms=max(before.config.longest_lease_ms, config.lease_ms),
    )
    return replace(record, config=config)


def new_record(name: str, group_id: int, now_ms: int) -> GroupRecord:
    """Return the record of a new group, with default settings."""
    config = GroupConfig(longest_lease_ms=SHORTEST_LEASE_MS)
    return GroupRecord(name, group_id, config, created_timestamp_ms=now_ms)


def describe_settings(
    record: GroupRecord, topic_names: Mapping[int, str], limits: GroupsConfig
) -> GroupState:
    """Return the GroupState of a record, without topics that were deleted."""
    config = record.config
    return GroupState(
        record.name,
        record.group_id,
        {
            topic_names[topic_id]: each
            for topic_id, each in record.topics.items()
            if topic_id in topic_names
        },
        dict(record.subscriptions),
        start=record.start,
        longest_lease_ms=limits.max_lease_ms,
        backoff_ms=config.backoff_ms,
        dead_letter_topic=record.dead_letter_topic,
        created_timestamp_ms=record.created_timestamp_ms,
        **{name: getattr(config, name) for name in _CONFIG_FIELDS},
    )


def filter_texts(topics: Mapping[str, TopicSpec]) -> set[str]:
    """Return the filter texts of these topics, each once."""
    return {each.filter for each in topics.values() if each.filter is not None}


def bounds(limits: GroupsConfig) -> dict[str, tuple[int, int, str | None]]:
    """Return for each setting that is a number: its minimum, its maximum, and the setting of the
    configuration that is the maximum; None if the maximum is fixed."""
    return {
        "lease_ms": (SHORTEST_LEASE_MS, limits.max_lease_ms, "max_lease_ms"),
        "max_in_flight": (1, limits.max_in_flight, "max_in_flight"),
        "max_in_flight_per_member": (1, limits.max_in_flight, "max_in_flight"),
        "max_in_flight_per_key": (1, limits.max_in_flight, "max_in_flight"),
        "max_attempts": (0, MAX_ATTEMPTS, None),
        "member_ttl_ms": (SHORTEST_LEASE_MS, MAX_MEMBER_TTL_MS, None),
    }


def check_spec(spec: GroupSpec, limits: GroupsConfig) -> None:
    """Check all settings of a PUT, except the grammar of its filters. Raises InvalidGroup,
    InvalidName."""
    for name, choices in _CHOICES.items():
        value = getattr(spec, name)
        if value is not None and value not in choices:
            raise InvalidGroup(name, f"{value!r} is none of {', '.join(choices)}")
    for name, (low, high, _) in bounds(limits).items():
        value = getattr(spec, name)
        if value is not None and not low <= value <= high:
            raise InvalidGroup(name, f"{value} is not in {low} to {high}")
    if spec.backoff_ms is not None:
        if len(spec.backoff_ms) > MAX_BACKOFFS:
            raise InvalidGroup("backoff_ms", f"it has more than {MAX_BACKOFFS} entries")
        for delay_ms in spec.backoff_ms:
            if not 0 <= delay_ms <= MAX_BACKOFF_MS:
                raise InvalidGroup("backoff_ms", f"{delay_ms} is not in 0 to {MAX_BACKOFF_MS}")
    _check_topics(spec, limits)


def _check_topics(spec: GroupSpec, limits: GroupsConfig) -> None:
    topics = spec.topics
    if topics is not None:
        if not topics:
            raise InvalidGroup("topics", "a group needs at least one topic")
        if len(topics) > limits.max_topics:
            raise InvalidGroup("topics", f"more than max_topics ({limits.max_topics})")
        for name, each in topics.items():
            check_subscription(name)
            if not 0 <= each.weight <= MAX_WEIGHT:
                raise InvalidGroup("weight", f"{each.weight} is not in 0 to {MAX_WEIGHT}")
        most = limits.max_filter_characters_per_group
        if sum(map(len, filter_texts(topics))) > most:
            name = "max_filter_characters_per_group"
            raise InvalidGroup("topics", f"their filters have more characters than {name} ({most})")
    if spec.dead_letter_topic:
        check_name("topic", spec.dead_letter_topic)
