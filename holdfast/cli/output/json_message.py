"""A message as a line of JSON, in the form that `holdfast pull` and `consume --json` print.

This is a separate module because the help and the shell completion must not import msgspec.
"""

import msgspec


class JsonMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to publish again. An unknown field is an error: it may be misspelt."""

    body: str | None = None
    body_base64: bytes | None = None
    key: str | None = None
    tag: str | None = None
    properties: dict[str, str] | None = None
    priority: int | None = None
    ttl_ms: int | None = None
    # The broker that stored or delivered the message has set the fields below. They are ignored
    # when the message is published again.
    topic: str | None = None
    queue: int | None = None
    offset: int | None = None
    message_id: str | None = None
    born_timestamp_ms: int | None = None
    store_timestamp_ms: int | None = None
    receipt: str | None = None
    attempt: int | None = None
    redelivered: bool | None = None
