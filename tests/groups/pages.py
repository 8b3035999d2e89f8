"""Read a page's record of a cursor from the page's bytes."""

import os

from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.cursor.page_records import (
    Progress,
    encode_record,
    progress_by_epoch,
    read_records,
)
from holdfast.groups.storage.progress_page import ProgressPage


def progress_of(cursor: Cursor) -> Progress:
    """Return the content of a page that recorded all leases of a cursor."""
    key, leases = (1, 1, 0), list(cursor.leases)
    content = encode_record(key, cursor, 1, [])
    for sequence, lease in enumerate(leases, 2):
        content += encode_record(key, cursor, sequence, [lease])
    return progress_by_epoch(read_records(content, 0))[key][cursor.epoch]


def abandon(page: ProgressPage) -> None:
    """Leave a page in the state that a kill leaves."""
    if page._file >= 0:
        os.close(page._file)
        page._file = -1
