from holdfast.amqp.nodes.delivery_ages import STEPS, DeliveryAges, runs


def test_an_age_is_at_most_one_step_too_small() -> None:
    longest_s = 64.0
    ages = DeliveryAges(longest_s)
    first = 2**32 - 500  # ids wrap
    for number in range(1_000):
        ages.add(number / 10, (first + number) % 2**32)
    for number in (400, 499, 500, 999):
        late_s = ages.sent_s((first + number) % 2**32) - number / 10
        assert 0 <= late_s <= longest_s / STEPS + 0.1


def test_runs_of_ids() -> None:
    assert list(runs([])) == []
    assert list(runs([5])) == [(5, 5)]
    assert list(runs([2**32 - 1, 0, 1, 3, 5, 6])) == [(2**32 - 1, 1), (3, 3), (5, 6)]
