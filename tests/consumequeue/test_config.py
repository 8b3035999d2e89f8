"""The default settings have the values of the design."""

from holdfast.consumequeue.config import ConsumeQueueConfig, TopicsConfig


def test_topics_are_durable_and_kept_for_a_week_by_default() -> None:
    topics = TopicsConfig()
    assert topics.auto_create_topics
    assert topics.default_queues == 4
    assert topics.default_durability == "fsync"
    assert topics.default_retention_ms == 7 * 24 * 3600 * 1000
    assert topics.default_retention_bytes == 0
    assert topics.default_max_message_bytes == 4 * 1024 * 1024


def test_the_index_is_committed_every_100_ms() -> None:
    assert ConsumeQueueConfig().commit_interval_ms == 100
