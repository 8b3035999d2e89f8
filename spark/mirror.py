"""A stream's progress, stored as a group's offsets too, for whoever watches groups.

The stream's own offsets are those in its checkpoint; this is a copy that comes later. It never
moves a group back, and a failure to store it is said in the log and harms nothing else.
"""

import logging
from collections.abc import Mapping

from holdfast.spark.broker_client import BrokerClient
from holdfast.spark.catalog import NEVER_STORED, StoredOffsets
from holdfast.spark.errors import BrokerUnavailable, InvalidOption, OffsetsMoved, SparkError

_log = logging.getLogger("holdfast.spark")

_ATTEMPTS = 3


class GroupMirror:
    """Stores progress in `group` by `client`, which it does not close. For one thread."""

    def __init__(self, client: BrokerClient, group: str) -> None:
        self._client = client
        self._group = group
        self._stored: dict[str, StoredOffsets] = {}

    def check(self) -> None:
        """Raise InvalidOption for a group that leases messages: to store its offsets is to make it
        deliver from there. A broker that does not answer is said in the log."""
        try:
            has_leases = self._client.has_leases(self._group)
        except SparkError as error:
            _log.warning("group %r cannot be looked at: %s", self._group, error)
            return
        if has_leases:
            raise InvalidOption(
                "groupId", f"group {self._group!r} leases messages to its members; name another"
            )

    def store(self, progress: Mapping[str, Mapping[int, int]]) -> None:
        """Store how far each queue of each topic is, unless the group is as far already."""
        for topic, offsets in progress.items():
            try:
                self._store(topic, offsets)
            except SparkError as error:
                self._stored.pop(topic, None)
                _log.warning("progress not stored in group %r: %s", self._group, error)
                if isinstance(error, BrokerUnavailable):
                    return  # nor is there anybody for the other topics: the next time tells theirs

    def _store(self, topic: str, offsets: Mapping[int, int]) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            stored = self._stored.get(topic)
            if stored is None:
                stored = self._client.stored_offsets(self._group, topic) or NEVER_STORED
            ahead = {
                queue: offset
                for queue, offset in offsets.items()
                if offset > stored.offsets.get(queue, -1)
            }
            self._stored[topic] = stored
            if not ahead:
                return
            try:
                self._stored[topic] = self._client.store_offsets(
                    self._group, topic, ahead, etag=stored.etag
                )
                return
            except OffsetsMoved:
                del self._stored[topic]  # by somebody else: look where they are now
                if attempt == _ATTEMPTS:
                    raise
