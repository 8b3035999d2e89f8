"""Reads the producer of an idempotent publish from the Holdfast-Producer headers."""

import hashlib
import re
from dataclasses import dataclass

from multidict import MultiMapping, istr

from holdfast.commitlog.append.producer_sequences import BROKER_EPOCH
from holdfast.http_api.routing.params import MAX_OFFSET, invalid, whole_number
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.request import single_header

# These are istr objects, so that a case-insensitive look-up need not convert them each time.
ID = istr("Holdfast-Producer-Id")
EPOCH = istr("Holdfast-Producer-Epoch")
SEQUENCE = istr("Holdfast-Producer-Sequence")
_HEADERS = (ID, EPOCH, SEQUENCE)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}", re.ASCII)


@dataclass(slots=True)
class Producer:
    """A producer, and the number of its request. `sequence` counts its requests to a topic.

    Treat as immutable.
    """

    producer_id: int
    epoch: int
    sequence: int


def request_producer(headers: MultiMapping[str]) -> Producer | None:
    """Return the producer in the three headers; None if all three are missing.

    Raises Problem: missing-parameter if only some are present, or invalid-parameter.
    """
    if ID not in headers and EPOCH not in headers and SEQUENCE not in headers:
        return None
    producer_id, epoch, sequence = (single_header(headers, name) for name in _HEADERS)
    if producer_id is None or epoch is None or sequence is None:
        missing = next(name for name in _HEADERS if name not in headers)
        raise Problem(
            "missing-parameter",
            f"the header {missing} is missing; send {', '.join(_HEADERS)} together, or none",
            parameter=missing,
        )
    return Producer(
        _producer_id(producer_id),
        _number(EPOCH, epoch, BROKER_EPOCH - 1),
        _number(SEQUENCE, sequence, MAX_OFFSET),
    )


def refuse_producer(headers: MultiMapping[str]) -> None:
    """Raise Problem if a request has one of the headers.

    This is for binary batches, which contain the producer themselves.
    """
    for name in _HEADERS:
        if name in headers:
            raise invalid(
                name,
                headers[name],
                "no such header: put producer, epoch and sequence into the batches",
                f"{name} does not go with binary batches",
            )


def _producer_id(given: str) -> int:
    number = whole_number(given)
    if number is not None and 1 <= number <= MAX_OFFSET:
        return number
    if given.isdigit() or not _NAME.fullmatch(given):
        raise invalid(ID, given, "a number from 1 to 2^63-1, or a name of A-Z a-z 0-9 . _ -")
    digest = hashlib.sha256(given.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1 or 1


def _number(name: str, given: str, maximum: int) -> int:
    number = whole_number(given)
    if number is None or number > maximum:
        raise invalid(name, given, f"a whole number from 0 to {maximum}")
    return number
