"""Collects the rows of all cursors as they were read from the disk. Pure."""

import struct
from dataclasses import dataclass, field

from holdfast.groups.cursor import rows
from holdfast.groups.cursor.cursor import CursorKey
from holdfast.groups.cursor.rows import ACK, ACTIVE, ATT, CUR, StoredCursor


@dataclass(slots=True)
class StoredCursors:
    """All rows that were read, by cursor."""

    cursors: dict[CursorKey, StoredCursor] = field(default_factory=dict)
    #: Cursors that have rows, but no intact `cur` row.
    headless: set[CursorKey] = field(default_factory=set)
    #: group id -> the active member, for groups that serve one member at a time.
    active: dict[int, str] = field(default_factory=dict)
    #: The keys of damaged rows as stored; the first byte is the table.
    damaged: list[bytes] = field(default_factory=list)

    def add(self, table: str, key: bytes, value: bytes) -> None:
        """Add a row whose checksum is correct. The `cur` rows must be added before all others.
        Raises ValueError or struct.error if the row is malformed."""
        if table == ACTIVE:
            self.active[rows.parse_group(key)] = value.decode()
            return
        cursor_key = rows.parse_prefix(key)
        if table == CUR:
            self.cursors[cursor_key] = StoredCursor(rows.decode_cursor(value))
            return
        stored = self.cursors.get(cursor_key)
        number = rows.key_number(key)
        if table == ACK:
            bits = rows.decode_chunk(value)
            if stored is not None:
                stored.chunks[number] = bits
        elif table == ATT:
            attempts = rows.decode_attempts(value)
            if stored is not None:
                stored.attempts[number] = attempts
        else:
            settled = rows.decode_settled(value)
            if stored is not None and settled is None:
                stored.has_old_rows = True
            elif stored is not None and settled is not None:
                stored.settled[number] = settled
        if stored is None:
            self.headless.add(cursor_key)

    def damaged_cursors(self) -> set[CursorKey | None]:
        """Return the cursors that have damaged rows. None in the result means a damaged row whose
        cursor is unknown."""
        return {_owner(key) for key in self.damaged}


def _owner(key: bytes) -> CursorKey | None:
    try:
        return rows.parse_prefix(key[1:])
    except struct.error:
        return None
