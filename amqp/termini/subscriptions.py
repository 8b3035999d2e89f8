"""The subscription of a topic to which a link belongs, and the name of its group. Pure.

A subscription is a group that begins at the topic's end when it is created. The subscription has
the name of the link up to the first `|`. Clients of JMS add a suffix after the `|`, so that each
link has its own name:

| link name                       | subscription `sub`                                       |
|---------------------------------|----------------------------------------------------------|
| `sub`, `sub|2`                  | durable, of this container                               |
| `sub|global`, `sub|global2`     | durable, of all containers                               |
| `sub|volatile1`                 | of this container, until its last link ends              |
| `sub|global-volatile1`          | of all containers, until its last link ends              |

The source sets whether the subscription is durable (terminus-durability, or the expiry policy
`never`), and whether it is shared (capabilities `shared` and `global`). Only a link that looks up a
subscription has no source; then the link's name decides.
"""

import msgspec

from holdfast.amqp.termini.names import hashed_name
from holdfast.amqp.wire.performatives import Source

SHARED, GLOBAL = "shared", "global"
NEVER = "never"
#: The groups of durable subscriptions.
DURABLE_PREFIX = "amqp."
#: The groups that end with their last link. The broker removes them when it starts, too.
VOLATILE_PREFIX = "amqp.volatile."


class SubscriptionName(msgspec.Struct, frozen=True):
    """A subscription. Two links with equal values share it."""

    group: str
    is_volatile: bool


def subscription_of(container_id: str, link_name: str, source: Source) -> SubscriptionName | None:
    """Return the subscription of a link with this source; None for an ordinary link."""
    is_durable = bool(source.durable) or source.expiry_policy == NEVER
    is_global = GLOBAL in source.capabilities
    if not (is_durable or is_global or SHARED in source.capabilities):
        return None
    return _named(container_id, link_name, is_global=is_global, is_volatile=not is_durable)


def looked_up(container_id: str, link_name: str) -> SubscriptionName:
    """Return the durable subscription that a link without a source looks up."""
    is_global = link_name.partition("|")[2].startswith(GLOBAL)
    return _named(container_id, link_name, is_global=is_global, is_volatile=False)


def _named(
    container_id: str, link_name: str, *, is_global: bool, is_volatile: bool
) -> SubscriptionName:
    name = link_name.partition("|")[0]
    # `name` has no "|", so no two pairs of container and name give the same text.
    full = name if is_global else f"{container_id}|{name}"
    prefix = VOLATILE_PREFIX if is_volatile else DURABLE_PREFIX
    return SubscriptionName(hashed_name(prefix, name, full), is_volatile)
