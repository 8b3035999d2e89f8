"""Turns an error of the broker into an error message for the command line. Pure.

The broker's messages are written for the sender of an HTTP request. If a message names a request or
a field, the message for the command line names the command or the option instead.
"""

import re
from collections.abc import Mapping
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
    "send it as 'Authorization: Bearer TOKEN'": "use --token-file, HOLDFAST_TOKEN or --token",
    "send the request again": "try again",
    "in one request": "at a time",
    "in a request": "at a time",
}
_FIELD = re.compile(rf"(?<![\w.\-])({'|'.join(_FIELDS)})\b")


def _explain_topic_conflict(members: Mapping[str, Any]) -> str:
    topic, option = members["topic"], _option(members["field"])
    advice = f"change it with 'holdfast topic change {topic} {option} ...', or omit {option}"
    if option == "--priority-levels":
        advice = "the number of levels cannot be changed: omit the option, or create another topic"
    return (
        f"the topic {topic!r} exists with {option} {members['existing']}, not "
        f"{members['given']}; {advice}"
    )


#: Type of a problem -> the message, with the members of the problem.
_MESSAGES = {
    "unknown-group": "there is no group {group!r}; create it with 'holdfast group create {group} "
    "TOPIC', or see 'holdfast group list'",
    "unknown-topic": "there is no topic {topic!r}; create it with 'holdfast topic create {topic}', "
    "or see 'holdfast topic list'",
    "offset-trimmed": "queue {queue} of {topic!r} no longer has offset {offset}; give --from "
    "{min_offset}, or --from earliest",
    "offset-beyond-end": "queue {queue} of {topic!r} ends at {max_offset}; give --from with an "
    "offset up to that, or --from latest",
    "group-without-leases": "the group {group!r} only stores offsets; 'holdfast group create "
    "{group} TOPIC' makes it a group with leases, which continues from these offsets",
}
_NOT_IN_GROUP = (
    "the group {group!r} does not have the topic {topic!r}; see 'holdfast group describe {group}'"
)


def explain_refusal(error: ApiError) -> str:
    """Return a sentence that says what the broker refused and how to fix this. The stable code of
    the problem follows in parentheses."""
    message = error.detail or error.title or "the broker refused"
    # If the reply (of a broker of another version) lacks a member, keep the broker's message.
    with suppress(KeyError):
        if error.type == "topic-conflict":
            message = _explain_topic_conflict(error.members)
        elif error.type == "unknown-topic" and "group" in error.members:
            message = _NOT_IN_GROUP.format_map(error.members)
        elif error.type in _MESSAGES:
            message = _MESSAGES[error.type].format_map(error.members)
    message = _FIELD.sub(lambda found: _option(found[1]), message)
    for asked, here in _WORDS.items():
        message = message.replace(asked, here)
    return f"{message} ({error.type})"


def _option(field: str) -> str:
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")
