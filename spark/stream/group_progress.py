"""Also store a stream's progress as a group's offsets, for tools that monitor groups.

The stream itself uses the offsets in its checkpoint. The group's offsets are only a copy, stored a
little later. The copy never lowers a group's offsets. A failure to store the copy is only logged.
"""

import logging

from holdfast.log_files.descriptions import NO_STORED_OFFSETS, StoredOffsets
from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import BrokerUnavailable, InvalidOption, OffsetsMoved, SparkError
from holdfast.spark.stream.offsets import StreamOffsets, TopicOffsets

_log = logging.getLogger("holdfast.spark")

_ATTEMPTS = 3


class ProgressReporter:
    """Stores progress in `group`. Use it from one thread. The caller closes `client`."""

    def __init__(self, client: BrokerClient, group: str) -> None:
        self._client = client
        self._group = group
        #: (topic name, topic id) -> the stored offsets. The id is needed because a topic that is
        #: deleted and created again has other offsets.
        self._stored: dict[tuple[str, int], StoredOffsets] = {}

    def check(self) -> None:
        """Raise InvalidOption if the group leases messages, because storing its offsets would
        change which messages it delivers. If the broker does not answer, only log that."""
        try:
            has_leases = self._client.has_leases(self._group)
        except SparkError as error:
            _log.warning("group %r cannot be checked: %s", self._group, error)
            return
        if has_leases:
            raise InvalidOption(
                "groupId",
                f"group {self._group!r} leases messages to its members; give another group",
            )

    def store(self, progress: StreamOffsets) -> None:
        """Store the progress in each queue of each topic, unless the group's offset is already at
        least as high. Skip a topic that was deleted and created again."""
        for name, topic in progress.items():
            try:
                self._store(name, topic)
            except SparkError as error:
                self._stored.pop((name, topic.topic_id), None)
                _log.warning("progress not stored in group %r: %s", self._group, error)
                if isinstance(error, BrokerUnavailable):
                    return  # the next topics would fail, too; the next call of `store` stores them

    def _store(self, name: str, topic: TopicOffsets) -> None:
        key = name, topic.topic_id
        for attempt in range(1, _ATTEMPTS + 1):
            stored = self._stored.get(key)
            if stored is None:
                self._client.check_topic(*key)
                stored = self._client.stored_offsets(self._group, name) or NO_STORED_OFFSETS
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
                del self._stored[key]  # the stored offsets have changed: read them again
                if attempt == _ATTEMPTS:
                    raise
