"""The table of read leases compared with a list, and its limits one below, at and one above."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.consumequeue.errors import TooManyReadLeases, UnknownReadLease
from holdfast.consumequeue.maintenance.read_leases import LeaseLimits, Pinned, ReadLeases


def table(max_leases: int = 10, max_queues: int = 100, **of_client: int) -> ReadLeases:
    shares = {"max_read_leases_per_client": 1000, "max_leased_queues_per_client": 1000}
    return ReadLeases(LeaseLimits(max_leases, max_queues, **{**shares, **of_client}))


def test_the_lowest_start_of_all_leases_is_pinned() -> None:
    leases = table()
    leases.take("a", 1, {0: 12, 1: 5}, client="c", now_s=0, until_s=10)
    leases.take("b", 1, {0: 7, 2: 9}, client="c", now_s=0, until_s=20)
    leases.take("c", 2, {0: 0}, client="c", now_s=0, until_s=30)
    assert leases.pinned(1, now_s=0) == Pinned({0: 7, 1: 5, 2: 9}, 2, 20)
    assert leases.pinned(3, now_s=0) is None
    assert leases.queue_count == 5


def test_a_lease_lives_before_its_end_and_not_at_it() -> None:
    leases = table()
    leases.take("a", 1, {0: 12}, client="c", now_s=0, until_s=10)
    assert leases.pinned(1, now_s=9.999) is not None
    assert leases.pinned(1, now_s=10) is None
    assert (len(leases), leases.queue_count, leases.expired_total) == (0, 0, 1)


def test_extending_makes_a_lease_longer_and_never_shorter() -> None:
    leases = table()
    leases.take("a", 1, {0: 12}, client="c", now_s=0, until_s=10)
    assert leases.extend("a", 1, now_s=5, until_s=15) == 15
    assert leases.extend("a", 1, now_s=5, until_s=6) == 15
    with pytest.raises(UnknownReadLease):
        leases.extend("a", 1, now_s=15, until_s=20)


def test_a_lease_is_known_on_its_own_topic_alone() -> None:
    leases = table()
    leases.take("a", 1, {0: 12}, client="c", now_s=0, until_s=10)
    with pytest.raises(UnknownReadLease):
        leases.extend("a", 2, now_s=0, until_s=20)
    assert not leases.end("a", 2)
    assert leases.end("a", 1)
    assert not leases.end("a", 1)
    assert leases.pinned(1, now_s=0) is None


def test_a_topic_that_goes_takes_its_leases_along() -> None:
    leases = table()
    for lease_id, topic_id in (("a", 1), ("b", 1), ("c", 2)):
        leases.take(lease_id, topic_id, {0: 0, 1: 0}, client="c", now_s=0, until_s=10)
    leases.end_topic(1)
    assert (len(leases), leases.queue_count) == (1, 2)
    assert leases.pinned(2, now_s=0) is not None


def test_no_more_leases_than_are_allowed() -> None:
    leases = table(max_leases=2)
    leases.take("a", 1, {0: 0}, client="c", now_s=0, until_s=10)
    leases.take("b", 1, {0: 0}, client="c", now_s=0, until_s=20)
    with pytest.raises(TooManyReadLeases) as caught:
        leases.take("c", 1, {0: 0}, client="c", now_s=0, until_s=10)
    assert (caught.value.limit_name, caught.value.limit) == ("max_read_leases", 2)
    assert leases.refused_total == 1
    leases.take("c", 1, {0: 0}, client="c", now_s=10, until_s=20)  # the first lease has ended


@pytest.mark.parametrize(("queues", "fits"), [(6, True), (7, True), (8, False)])
def test_no_more_queues_than_are_allowed(queues: int, fits: bool) -> None:
    leases = table(max_queues=10)
    leases.take("a", 1, {0: 0, 1: 0, 2: 0}, client="c", now_s=0, until_s=10)
    starts = dict.fromkeys(range(queues), 0)
    if fits:
        leases.take("b", 1, starts, client="c", now_s=0, until_s=10)
    else:
        with pytest.raises(TooManyReadLeases, match=r"max_leased_queues \(10\)"):
            leases.take("b", 1, starts, client="c", now_s=0, until_s=10)
    assert leases.queue_count == 3 + (queues if fits else 0)


@pytest.mark.parametrize(("leases_taken", "fits"), [(1, True), (2, True), (3, False)])
def test_one_client_leaves_the_others_leases(leases_taken: int, fits: bool) -> None:
    # M4: one client took all leases for an hour
    leases = table(max_read_leases_per_client=2)

    def take(number: int, client: str) -> None:
        leases.take(f"{client}{number}", 1, {0: 0}, client=client, now_s=0, until_s=10)

    for number in range(leases_taken - 1):
        take(number, "greedy")
    if fits:
        take(leases_taken, "greedy")
    else:
        with pytest.raises(TooManyReadLeases) as caught:
            take(leases_taken, "greedy")
        assert caught.value.limit_name == "max_read_leases_per_client"
        assert leases.end("greedy0", 1)
        take(leases_taken, "greedy")
    take(0, "modest")


@pytest.mark.parametrize(("queues", "fits"), [(1, True), (2, True), (3, False)])
def test_one_client_leaves_the_others_queues(queues: int, fits: bool) -> None:
    leases = table(max_leased_queues_per_client=5)
    leases.take("a", 1, {0: 0, 1: 0, 2: 0}, client="greedy", now_s=0, until_s=10)
    starts = dict.fromkeys(range(queues), 0)
    if fits:
        leases.take("b", 1, starts, client="greedy", now_s=0, until_s=10)
    else:
        with pytest.raises(TooManyReadLeases, match=r"max_leased_queues_per_client \(5\)"):
            leases.take("b", 1, starts, client="greedy", now_s=0, until_s=10)
    leases.take("c", 1, dict.fromkeys(range(5), 0), client="modest", now_s=0, until_s=10)
    leases.expire(10)
    leases.take("d", 1, dict.fromkeys(range(5), 0), client="greedy", now_s=10, until_s=20)


_steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "extend", "end", "end_topic"]),
        st.integers(0, 4),  # lease
        st.integers(1, 2),  # topic
        st.dictionaries(st.integers(0, 2), st.integers(0, 9), min_size=1),
        st.integers(0, 3),  # time that passes
        st.integers(1, 6),  # how long the lease is
    ),
    max_size=40,
)


@settings(deadline=None)
@given(_steps)
def test_it_is_a_list_of_leases(
    steps: list[tuple[str, int, int, dict[int, int], int, int]],
) -> None:
    leases = table(max_leases=3, max_queues=5)
    model: list[tuple[str, int, dict[int, int], int]] = []
    now = 0
    for number, (verb, which, topic, starts, passed, length) in enumerate(steps):
        now += passed
        model = [each for each in model if each[3] > now]
        lease_id = f"{number}" if verb == "take" else model[which % len(model)][0] if model else "-"
        known = [each for each in model if each[:2] == (lease_id, topic)]
        match verb:
            case "take":
                size = sum(len(each[2]) for each in model) + len(starts)
                if len(model) < 3 and size <= 5:
                    leases.take(
                        lease_id, topic, starts, client="c", now_s=now, until_s=now + length
                    )
                    model.append((lease_id, topic, starts, now + length))
                else:
                    with pytest.raises(TooManyReadLeases):
                        leases.take(
                            lease_id, topic, starts, client="c", now_s=now, until_s=now + length
                        )
            case "extend" if known:
                until = leases.extend(lease_id, topic, now_s=now, until_s=now + length)
                assert until == max(known[0][3], now + length)
                at = model.index(known[0])
                model[at] = (*known[0][:3], now + length if until > known[0][3] else known[0][3])
            case "extend":
                with pytest.raises(UnknownReadLease):
                    leases.extend(lease_id, topic, now_s=now, until_s=now + length)
            case "end":
                assert leases.end(lease_id, topic) == bool(known)
                model = [each for each in model if each not in known]
            case _:
                leases.end_topic(topic)
                model = [each for each in model if each[1] != topic]
        for topic_id in (1, 2):
            mine = [each for each in model if each[1] == topic_id]
            pinned = leases.pinned(topic_id, now_s=now)
            assert (pinned is None) == (not mine)
            if pinned is not None:
                queues = {queue for each in mine for queue in each[2]}
                assert pinned.starts == {
                    queue: min(each[2][queue] for each in mine if queue in each[2])
                    for queue in queues
                }
                assert (pinned.lease_count, pinned.until_s) == (
                    len(mine),
                    max(each[3] for each in mine),
                )
        assert leases.queue_count == sum(len(each[2]) for each in model)
