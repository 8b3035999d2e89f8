from holdfast.commitlog.format.batch import Batch
from holdfast.groups.serving.head_source import RecentBatches
from tests.support.stored import batch


def _batch(base: int, count: int = 2) -> Batch:
    made = batch([b"x" * 100] * count)
    made.header.base_offset = base
    return made


def test_a_batch_is_found_by_any_of_its_offsets() -> None:
    recent = RecentBatches(1 << 20)
    for base in (10, 4, 20):
        recent.put((1, 0), _batch(base))
    found = {at: recent.find((1, 0), at) for at in (3, 4, 5, 6, 10, 11, 12, 21, 22)}
    bases = {at: None if each is None else each.header.base_offset for at, each in found.items()}
    assert bases == {3: None, 4: 4, 5: 4, 6: None, 10: 10, 11: 10, 12: None, 21: 20, 22: None}
    assert recent.find((1, 1), 4) is None


def test_the_oldest_go_when_there_is_no_room_and_the_newest_always_stays() -> None:
    size = _batch(0).total_size
    recent = RecentBatches(2 * size)
    for base in (0, 2, 4):
        recent.put((1, 0), _batch(base))
    assert [recent.find((1, 0), at) is not None for at in (0, 2, 4)] == [False, True, True]
    recent.put((1, 0), _batch(2))
    recent.put((1, 0), _batch(6))
    assert [recent.find((1, 0), at) is not None for at in (2, 4, 6)] == [True, False, True]
    recent.put((2, 0), _batch(0, 1000))
    assert len(recent) == 1
    assert recent.find((2, 0), 999) is not None


def test_a_topic_is_forgotten_with_its_bytes() -> None:
    recent = RecentBatches(1 << 20)
    for topic_id in (1, 2):
        for base in (0, 2):
            recent.put((topic_id, 0), _batch(base))
    recent.forget_topic(1)
    assert recent.find((1, 0), 0) is None
    assert recent.find((2, 0), 2) is not None
    assert recent.size_bytes == 2 * _batch(0).total_size
    recent.forget_topic(2)
    assert recent.size_bytes == 0
