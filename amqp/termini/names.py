"""Valid names of topics and groups, made of any text. Pure."""

import re
from base64 import b32encode
from hashlib import sha256

#: How much of the text remains readable.
_READABLE_CHARACTERS = 24


def hashed_name(prefix: str, readable: str, full: str) -> str:
    """Return a valid name with a readable start. Each value of `full` gives a different name."""
    start = re.sub(r"[^A-Za-z0-9]+", "-", readable)[:_READABLE_CHARACTERS].strip("-").lower()
    digest = b32encode(sha256(full.encode("utf-8", "surrogatepass")).digest())[:16].decode()
    return f"{prefix}{start}-{digest.lower()}" if start else f"{prefix}{digest.lower()}"
