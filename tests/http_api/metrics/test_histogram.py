from holdfast.http_api.metrics.histogram import Durations


def test_a_bucket_counts_what_took_no_longer_than_its_end() -> None:
    durations = Durations()
    for seconds in (0.0, 0.0005, 0.0006, 10.0, 11.0):
        durations.observe(seconds)
    counts = dict(durations.buckets())
    assert counts["0.0005"] == 2
    assert counts["0.001"] == 3
    assert counts["5.0"] == 3
    assert counts["10.0"] == 4
    assert counts["+Inf"] == 5
    assert durations.sum_s == 21.0011


def test_nothing_noted_is_nothing_in_every_bucket() -> None:
    assert {count for _, count in Durations().buckets()} == {0}
