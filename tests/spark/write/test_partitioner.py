import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.format.batch import key_hash, queue_for_key
from holdfast.commitlog.format.priority import queue_of
from holdfast.spark.write.partitioner import Partitioner, TargetTopic, UnroutableRow, key_hashes


def window(**columns: tuple[list[object], pa.DataType]) -> pa.RecordBatch:
    arrays = [pa.array(values, kind) for values, kind in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def target(queues: int, levels: int = 1) -> TargetTopic:
    return TargetTopic("orders", 7, queues * levels, levels)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.text("aé\u043a", min_size=1, max_size=4), st.none() | st.integers(0, 9)
        ),
        min_size=1,
        max_size=10,
    ),
    st.integers(1, 5),
    st.sampled_from([1, 2, 3, 10]),
)
def test_keys_and_priorities_choose_as_everywhere(
    rows: list[tuple[str | None, int | None]], queues: int, levels: int
) -> None:
    keys, priorities = map(list, zip(*rows, strict=True))
    batch = window(key=(keys, pa.string()), priority=(priorities, pa.int32()))
    hashes = key_hashes(batch.column("key"))
    assert hashes.tolist() == [key_hash(key) if key else 0 for key in keys]
    found = Partitioner(target(queues, levels), turn=1).queues(batch, hashes)
    assert found.tolist() == [
        queue_of(queue_for_key(key, queues) if key else 1 % queues, priority, levels)
        for key, priority in rows
    ]


def test_turns_pass_on_with_each_window_that_leaves_rows_to_us() -> None:
    partitioner = Partitioner(target(3), turn=5)
    free = window(body=([b"", b""], pa.binary()))
    keyed = window(key=(["k"], pa.string()))
    named = window(queue=([0], pa.int32()))
    assert partitioner.queues(free, None).tolist() == [2, 2]
    partitioner.queues(keyed, key_hashes(keyed.column("key")))
    partitioner.queues(named, None)
    assert partitioner.queues(free, None).tolist() == [0, 0]
    assert partitioner.queues(free, None).tolist() == [1, 1]


def test_a_queue_that_a_row_names_goes_before_its_key() -> None:
    batch = window(key=(["a", "a"], pa.string()), queue=([3, None], pa.int32()))
    found = Partitioner(target(4), 0).queues(batch, key_hashes(batch.column("key")))
    assert found.tolist() == [3, queue_for_key("a", 4)]


@pytest.mark.parametrize(("queue", "is_there"), [(2, True), (3, True), (4, False)])
def test_a_queue_has_to_be_there(queue: int, is_there: bool) -> None:
    batch = window(queue=([None, queue], pa.int32()))
    partitioner = Partitioner(target(4), 0)
    if is_there:
        assert partitioner.queues(batch, None).tolist() == [0, queue]
        return
    with pytest.raises(UnroutableRow, match="'orders' has queues 0 to 3") as refused:
        partitioner.queues(batch, None)
    assert (refused.value.row, refused.value.column) == (1, "queue")


def test_a_queue_of_another_level_than_the_priority_is_refused() -> None:
    partitioner = Partitioner(target(2, levels=2), 0)
    fits = window(queue=([3, 2, None, 1], pa.int32()), priority=([9, 0, 9, None], pa.int32()))
    assert np.array_equal(partitioner.queues(fits, None), [3, 2, 1, 1])
    other = window(queue=([3, 2], pa.int32()), priority=([9, 9], pa.int32()))
    with pytest.raises(UnroutableRow, match="another level") as refused:
        partitioner.queues(other, None)
    assert (refused.value.row, refused.value.column) == (1, "priority")
