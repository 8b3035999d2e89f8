"""The table of all groups with leases, made from the records of the broker's state.

The table is changed on the event loop only, after the change is durable. Any thread may read it.
"""

import secrets
from collections.abc import Mapping

from holdfast.consumequeue.state.records import (
    NEXT_GROUP_ID,
    RECEIPT_KEY,
    decode_number,
    encode_number,
    group_key,
    parse_key,
)
from holdfast.groups.storage.group_records import GroupRecord, decode_group, encode_group

_KEY_BYTES = 32


class GroupTable:
    """All groups, by name and by id."""

    def __init__(self, records: Mapping[bytes, bytes]) -> None:
        """Read the groups in the records. Raises MalformedRecord."""
        self._by_name: dict[str, GroupRecord] = {}
        self._by_id: dict[int, GroupRecord] = {}
        self.receipt_key = records.get(RECEIPT_KEY)
        """The key that signs receipts; None if no group was ever created."""
        self.next_group_id = decode_number(records.get(NEXT_GROUP_ID, b"\x01"))
        for key, value in records.items():
            kind, *rest = parse_key(key)
            if kind == "group":
                self.put(decode_group(rest[0], value))

    def find(self, name: str) -> GroupRecord | None:
        """Return the group of this name, or None."""
        return self._by_name.get(name)

    def by_id(self, group_id: int) -> GroupRecord | None:
        """Return the group of this id, or None."""
        return self._by_id.get(group_id)

    def all(self) -> list[GroupRecord]:
        """Return every group, sorted by name."""
        return sorted(self._by_id.values(), key=lambda group: group.name)

    def __len__(self) -> int:
        return len(self._by_id)

    def changes_of(self, group: GroupRecord) -> dict[bytes, bytes]:
        """Return the records to store for a new or changed group. For the first group ever, they
        include a new receipt key. The caller must call `mark_stored` when they are durable."""
        changes = {group_key(group.name): encode_group(group)}
        if group.group_id >= self.next_group_id:
            changes[NEXT_GROUP_ID] = encode_number(group.group_id + 1)
        if self.receipt_key is None:
            changes[RECEIPT_KEY] = secrets.token_bytes(_KEY_BYTES)
        return changes

    def mark_stored(self, group: GroupRecord, changes: Mapping[bytes, bytes | None]) -> None:
        """Add or replace a group whose records are durable."""
        self.receipt_key = changes.get(RECEIPT_KEY) or self.receipt_key
        self.put(group)

    def put(self, group: GroupRecord) -> None:
        """Add or replace a group."""
        self._by_name[group.name] = self._by_id[group.group_id] = group
        self.next_group_id = max(self.next_group_id, group.group_id + 1)

    def remove(self, group: GroupRecord) -> None:
        """Remove a group whose record was deleted."""
        del self._by_name[group.name]
        del self._by_id[group.group_id]
