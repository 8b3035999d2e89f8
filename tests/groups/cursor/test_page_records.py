import pytest

from holdfast.groups.cursor import page_records
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.leases import Lease
from holdfast.groups.cursor.page_records import encode_record, read_records


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_record_with_more_leases_than_one_receive_can_have_is_ignored(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_records, "_MOST_LEASES", 4)
    cursor = Cursor(boot=1, end=100)
    leases = [Lease(Head(at), "m", 1 + at, 1_000, 0, 1) for at in range(4 + more)]
    content = encode_record((1, 1, 0), cursor, 1, leases)
    found = [len(record.progress.leases) for record in read_records(content, 0)]
    assert found == ([] if more > 0 else [4 + more])
