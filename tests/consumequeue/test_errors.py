"""Each error carries values, and formats its own message."""

import copy

import pytest

from holdfast.consumequeue import errors

ALL = [
    errors.InvalidName("topic", "a/b"),
    errors.UnknownTopic("orders"),
    errors.UnknownQueue("orders", 7, 4),
    errors.UnknownGroup("billing"),
    errors.UnknownMessage("00" * 16),
    errors.TopicConflict("orders", "queues", 4, 8),
    errors.TopicFull("orders", 11, 10),
    errors.InvalidTopicChange("orders", "it has 4 queues"),
    errors.LimitReached("max_topics", 10),
    errors.OffsetTrimmed("orders", 1, 2, 3, 4),
    errors.OffsetBeyondEnd("orders", 1, 9, 3, 4),
    errors.QueueCorrupt("orders", 1, 2, 3, 0, 9, "payload-crc"),
    errors.OffsetsChanged("billing", "orders", 5),
    errors.TooManyReadLeases("max_read_leases", 1000),
    errors.UnknownReadLease("0f"),
    errors.StateUnavailable("EIO"),
    errors.StateFull("no room"),
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_errors_show_their_values_and_can_be_copied(error: errors.StoreError) -> None:
    sentence = str(error)
    assert sentence
    for value in error.args:
        if not isinstance(value, int):
            assert str(value) in sentence or repr(value) in sentence or value in {"topic"}
    assert str(copy.copy(error)) == sentence
    assert copy.copy(error).args == error.args


def test_a_keyed_backlog_names_the_groups() -> None:
    sentence = str(errors.KeyedBacklog("orders", ["billing", "audit"]))
    assert "keyed groups (billing, audit) have unsettled messages of topic 'orders'" in sentence


def test_every_error_of_the_module_is_tested() -> None:
    named = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.StoreError)
    }
    tried = {type(error) for error in ALL} | {errors.KeyedBacklog}
    assert named - tried == {errors.StoreError}
