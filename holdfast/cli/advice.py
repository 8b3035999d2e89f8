"""Turns an error of the broker into an error message for the command line. Pure.

The broker's messages are written for the sender of an HTTP request. Where a message names a request
or a field, the message for the command line names the command or the option instead. All other
messages are shown unchanged.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from holdfast.client.errors import ApiError

#: Fields of requests whose option has a different name.
_OPTIONS = {"queue_count": "--queues"}
#: Fields of requests that the broker's messages name, and whose option has the same name.
_FIELDS = (
    "priority_levels",
    "retention_ms",
    "retention_bytes",
    "max_message_bytes",
    "lease_ms",
    "max_in_flight",
    "max_attempts",
    "backoff_ms",
    "dead_letter_topic",
)
#: For each phrase in the broker's messages, the phrase for the command line.
_WORDS = {
    "send it as 'Authorization: Bearer TOKEN'": (
        "give one with --token-file, HOLDFAST_TOKEN or --token"
    ),
    "send the request again": "try again",
    "in one request": "at a time",
    "in a request": "at a time",
}
_FIELD = re.compile(rf"(?<![\w.\-])({'|'.join(_FIELDS)})\b")

_Members = Mapping[str, Any]


def _unknown_topic(members: _Members) -> str:
    topic = members["topic"]
    if "group" in members:
        group = members["group"]
        return f"the group {group!r} does not have the topic {topic!r}; see 'holdfast group list'"
    return (
        f"there is no topic {topic!r}; make it with 'holdfast topic create {topic}', or see "
        "'holdfast topic list'"
    )


def _unknown_group(members: _Members) -> str:
    group = members["group"]
    return (
        f"there is no group {group!r}; make it with 'holdfast group create {group} TOPIC', or see "
        "'holdfast group list'"
    )


def _topic_conflict(members: _Members) -> str:
    topic, field = members["topic"], members["field"]
    option = _OPTIONS.get(field, f"--{field.replace('_', '-')}")
    mend = f"change it with 'holdfast topic change {topic} {option} ...', or leave {option} out"
    if field == "priority_levels":
        mend = "its levels stay as they are: leave the option out, or make another topic"
    return (
        f"the topic {topic!r} exists with {option} {members['existing']}, not "
        f"{members['given']}; {mend}"
    )


def _offset_trimmed(members: _Members) -> str:
    return (
        f"queue {members['queue']} of {members['topic']!r} no longer has offset "
        f"{members['offset']}; give --from {members['min_offset']}, or --from earliest"
    )


def _offset_beyond_end(members: _Members) -> str:
    return (
        f"queue {members['queue']} of {members['topic']!r} ends at {members['max_offset']}; "
        f"give --from with an offset up to that, or --from latest"
    )


def _group_without_leases(members: _Members) -> str:
    group = members["group"]
    return (
        f"the group {group!r} only stores offsets; 'holdfast group create {group} TOPIC' makes it "
        "one that leases messages, from these offsets on"
    )


_SENTENCES: Mapping[str, Callable[[_Members], str]] = {
    "unknown-topic": _unknown_topic,
    "unknown-group": _unknown_group,
    "topic-conflict": _topic_conflict,
    "offset-trimmed": _offset_trimmed,
    "offset-beyond-end": _offset_beyond_end,
    "group-without-leases": _group_without_leases,
}


def sentence_of(error: ApiError) -> str:
    """Return a sentence that says what the broker refused and how to fix this. The stable code of
    the problem follows in parentheses."""
    said = error.detail or error.title or "the broker refused"
    sentence = _SENTENCES.get(error.type)
    if sentence is not None:
        # If the reply (of a broker of another version) lacks a field, keep the broker's message.
        with suppress(KeyError):
            said = sentence(error.members)
    said = _FIELD.sub(lambda found: _option(found[1]), said)
    for asked, here in _WORDS.items():
        said = said.replace(asked, here)
    return f"{said} ({error.type})"


def _option(field: str) -> str:
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")
