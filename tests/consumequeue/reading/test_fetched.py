"""The limits of one poll, divided between its queues."""

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.reading.fetched import BatchSlice, Fetched, Shares, Wanted, reading_order


def found(messages: int, of: int) -> Fetched:
    """Return the first messages of a batch, 10 bytes each."""
    batch = Batch.decode(encode_batch([b"." * 10] * of))
    return Fetched([BatchSlice(batch, range(messages))], messages, 0, of, messages)


def shared(shares: Shares) -> tuple[int, int] | None:
    wanted = shares.next_share()
    return None if wanted is None else (wanted.max_messages, wanted.max_bytes)


def test_an_unused_share_goes_to_the_next_queue() -> None:
    shares = Shares(3, Wanted(30, 3000), whole_batches=False)
    assert shared(shares) == (10, 1000)
    shares.subtract(None)
    assert shared(shares) == (15, 1500)
    shares.subtract(found(5, of=5))
    assert shared(shares) == (25, 2950)


def test_no_share_is_left_at_a_limit() -> None:
    for wanted in (Wanted(5, 1000), Wanted(100, 50)):
        shares = Shares(2, wanted, whole_batches=False)
        shares.subtract(found(5, of=5))
        assert shared(shares) is None


def test_whole_batches_count_in_full() -> None:
    """Otherwise a poll over a hundred queues would return a hundred batches of any size."""
    for whole_batches, left in ((False, (98, 980)), (True, None)):
        shares = Shares(2, Wanted(100, 1000), whole_batches=whole_batches)
        shares.subtract(found(2, of=1000))
        assert shared(shares) == left


def test_queues_take_turns_to_be_first() -> None:
    firsts = {reading_order({0: 0, 1: 0, 2: at}, whole_batches=False)[0] for at in range(3)}
    assert firsts == {0, 1, 2}
    assert reading_order({4: 1, 7: 0}, whole_batches=False) == [7, 4]


def test_reads_of_round_numbers_reach_every_queue() -> None:
    """Each poll reads ten batches of a thousand messages: the sum of the offsets is a multiple of
    that."""
    at_start = dict.fromkeys(range(100), 0)
    firsts = {
        reading_order({**at_start, 0: 10_000 * poll}, whole_batches=True)[0] for poll in range(2000)
    }
    assert firsts == set(range(100))
