"""An exception carries values; its message says how to fix the problem where that is possible."""

import pickle

import pytest

from holdfast.commitlog import errors
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.format.batch_check import LimitExceeded

EXAMPLES: list[tuple[LogError, str]] = [
    (errors.CorruptBatch("bad-size", "7 bytes"), "(bad-size): 7 bytes"),
    (errors.CorruptRecord(4096, "header-crc", "of a block", 12), "damaged at 4096 (header-crc)"),
    (errors.UnknownFormatVersion("batch", 2, 1), "version 2; this Holdfast reads 1"),
    (errors.BatchTooLarge(11, 10), "11 bytes does not fit in a segment; the limit is 10"),
    (errors.LogClosed(), "closed"),
    (errors.LogOverloaded(11, 10), "11 bytes are waiting"),
    (errors.DiskFull(1024), "free space or lower the retention"),
    (errors.DiskLow("/d", 1, 2), "has 1 free bytes, but min_free_bytes (2) must stay free"),
    (errors.DiskLow("/d", 9, 2, 8), "(2) must stay free, and the next segment needs "),
    (errors.MemoryLow(3, 2), "uses 3 bytes of memory (max_memory_bytes 2)"),
    (errors.IndexBehind(3, 2, "no room"), "3 entries wait to be committed to the index"),
    (errors.NoSegment("EMFILE"), "cannot be created now (EMFILE)"),
    (errors.SyncTimeout(5000), "within sync_timeout_ms (5000)"),
    (errors.LogPoisoned("EIO"), "restart the broker"),
    (errors.SequenceGap(3, 5), "sequence 5 leaves a gap; the next one is 3"),
    (errors.SequenceTooOld(1, 3), "sequence 1 was stored before"),
    (errors.RoutedOtherwise(1), "sequence 1 was stored before, in other queues"),
    (errors.ProducerFenced(1, 2), "epoch 1 is fenced"),
    (errors.TooManyProducers("max_producers_per_topic", 9), "max_producers_per_topic (9)"),
    (LimitExceeded("max_key_bytes", 10, 11, 3), "message 3: 11 bytes exceed max_key_bytes (10)"),
]


@pytest.mark.parametrize(("error", "sentence"), EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_has_its_values_in_its_text(error: LogError, sentence: str) -> None:
    assert sentence in str(error)
    again = pickle.loads(pickle.dumps(error))  # Spark raises them in another process
    assert (type(again), str(again), again.args) == (type(error), str(error), error.args)


def test_every_error_has_its_example() -> None:
    classes = {value for value in vars(errors).values() if isinstance(value, type)}
    assert classes - {type(error) for error, _ in EXAMPLES} == {LogError}


def test_a_corrupt_record_is_a_corrupt_batch() -> None:
    error = errors.CorruptRecord(1, "r")
    assert isinstance(error, errors.CorruptBatch)
    assert error.next_offset is None
