"""A stream's progress, stored as a group's offsets too, for whoever watches groups.

The stream's own offsets are those in its checkpoint; this is a copy that comes later. It never
moves a group back, and a failure to store it is said in the log and harms nothing else.
"""

import logging

from holdfast.spark.broker_client import BrokerClient
from holdfast.spark.catalog import NEVER_STORED, StoredOffsets
from holdfast.spark.errors import BrokerUnavailable, InvalidOption, OffsetsMoved, SparkError
from holdfast.spark.stream_offsets import StreamOffsets, TopicOffsets

_log = logging.getLogger("holdfast.spark")

_ATTEMPTS = 3


class GroupMirror:
    """Stores progress in `group` by `client`, which it does not close. For one thread."""

    def __init__(self, client: BrokerClient, group: str) -> None:
        self._client = client
        self._group = group
        #: By a topic's name and id: what is known of one says nothing of another of its name.
        self._stored: dict[tuple[str, int], StoredOffsets] = {}

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

    def store(self, progress: StreamOffsets) -> None:
        """Store how far each queue of each topic is, unless the group is as far already. A topic
        that is another one by now is left alone."""
        for name, topic in progress.items():
            try:
                self._store(name, topic)
            except SparkError as error:
                self._stored.pop((name, topic.topic_id), None)
                _log.warning("progress not stored in group %r: %s", self._group, error)
                if isinstance(error, BrokerUnavailable):
                    return  # nor is there anybody for the other topics: the next time tells theirs

    def _store(self, name: str, topic: TopicOffsets) -> None:
        key = name, topic.topic_id
        for attempt in range(1, _ATTEMPTS + 1):
            stored = self._stored.get(key)
            if stored is None:
                self._client.check_topic(*key)
                stored = self._client.stored_offsets(self._group, name) or NEVER_STORED
            ahead = {
                queue: offset
                for queue, offset in topic.queues.items()
                if offset > stored.offsets.get(queue, -1)
            }
            self._stored[key] = stored
            if not ahead:
                return
            try:
                self._stored[key] = self._client.store_offsets(
                    self._group, name, ahead, etag=stored.etag
                )
                return
            except OffsetsMoved:
                del self._stored[key]  # by somebody else: look where they are now
                if attempt == _ATTEMPTS:
                    raise
