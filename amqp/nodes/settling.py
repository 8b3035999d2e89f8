"""The effect of a delivery's outcome on its message in a group. Pure.

| outcome                                     | the message                                       |
|---------------------------------------------|---------------------------------------------------|
| accepted                                    | is acknowledged                                   |
| rejected(error)                             | becomes a dead letter, with the error's condition |
| released, modified without its two flags    | is available again, in place; no failure          |
| modified(undeliverable-here)                | becomes a dead letter                             |
| modified(delivery-failed)                   | has failed: it is available again after a delay   |

The broker keeps the message-annotations of the outcome for later deliveries
(modified_annotations.py), if the message is available again.

The delay of a failed message is the annotation `x-opt-delay-ms` of the outcome. Without the
annotation, `amqp.modified_backoff` decides: no delay, or the delays of the group.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.amqp.nodes.terminus import Outcome
from holdfast.amqp.wire.performatives import Accepted, Error, Modified, Rejected, Released
from holdfast.groups.service_types import Verb
from holdfast.groups.settings import MAX_BACKOFF_MS

DELAY = "x-opt-delay-ms"


#: At most this many characters of an error's condition are stored with a dead letter.
MAX_REASON_CHARACTERS = 255


class Settlement(NamedTuple):
    """How to settle messages. If `delay_ms` is None, the group's own delays apply. `reason` is the
    client's reason for a dead letter, if it gave a reason."""

    verb: Verb
    delay_ms: int | None = None
    reason: str | None = None


_SETTLEMENTS = {
    Accepted: Settlement(Verb.ACK),
    Rejected: Settlement(Verb.REJECT),
    Released: Settlement(Verb.RELEASE),
}


def settlement_of(outcome: Outcome, modified_backoff: str) -> Settlement:
    """Return what an outcome does. `modified_backoff` is the setting of this name."""
    if isinstance(outcome, Rejected) and isinstance(outcome.error, Error):
        return Settlement(Verb.REJECT, reason=outcome.error.condition[:MAX_REASON_CHARACTERS])
    if not isinstance(outcome, Modified):
        return _SETTLEMENTS[type(outcome)]
    if outcome.undeliverable_here:
        return Settlement(Verb.REJECT)
    if not outcome.delivery_failed:
        return Settlement(Verb.RELEASE)
    delay = (outcome.message_annotations or {}).get(DELAY)
    if isinstance(delay, int) and not isinstance(delay, bool) and delay >= 0:
        return Settlement(Verb.NACK, min(int(delay), MAX_BACKOFF_MS))
    return Settlement(Verb.NACK, None if modified_backoff == "group" else 0)


def annotations_of(outcome: Outcome) -> Mapping[Any, Any]:
    """Return the annotations of an outcome that later deliveries of the message have. The delay is
    left out: it is for the broker."""
    given = outcome.message_annotations if isinstance(outcome, Modified) else None
    return {key: each for key, each in given.items() if key != DELAY} if given else {}
