"""A message id: topic id, queue and offset as 32 hexadecimal digits. Pure."""

import re

_MESSAGE_ID = re.compile(r"[0-9A-F]{32}", re.IGNORECASE | re.ASCII)


def format_message_id(topic_id: int, queue: int, offset: int) -> str:
    """Return the id of one message: 8 digits of topic id, 8 of queue, 16 of offset."""
    return f"{topic_id:08X}{queue:08X}{offset:016X}"


def parse_message_id(text: str) -> tuple[int, int, int]:
    """Return (topic id, queue, offset). Raise ValueError if the text is not a message id."""
    if not _MESSAGE_ID.fullmatch(text):
        raise ValueError(f"a message id is 32 hexadecimal digits, not {text[:64]!r}")
    return int(text[:8], 16), int(text[8:16], 16), int(text[16:], 16)
