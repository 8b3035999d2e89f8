"""What was found on the disk of all cursors, row by row. Pure."""

import struct
from dataclasses import dataclass, field

from holdfast.groups import rows
from holdfast.groups.cursor_rows import StoredCursor
from holdfast.groups.rows import ACK, ATT, CUR, CursorKey


@dataclass(slots=True)
class StoredCursors:
    """The cursors that rows give."""

    cursors: dict[CursorKey, StoredCursor] = field(default_factory=dict)
    #: Cursors of which rows are left, but not the one that says where they stand.
    headless: set[CursorKey] = field(default_factory=set)
    #: Rows that are damaged: their keys as they are on the disk, the table first.
    damaged: list[bytes] = field(default_factory=list)

    def add(self, table: str, key: bytes, value: bytes) -> None:
        """Take in a row whose checksum fits; the `cur` rows come first. Raises ValueError and
        struct.error for what is no row all the same."""
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
            rows.decode_dead(value)
        if stored is None:
            self.headless.add(cursor_key)

    def damaged_cursors(self) -> set[CursorKey | None]:
        """Return whose rows are damaged; None among them: of some it cannot be told."""
        return {_owner(key) for key in self.damaged}


def _owner(key: bytes) -> CursorKey | None:
    try:
        return rows.parse_prefix(key[1:])
    except struct.error:
        return None
