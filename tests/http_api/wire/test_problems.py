import errno
import re

import pytest

from holdfast.commitlog import errors as log
from holdfast.commitlog.format.batch_check import LimitExceeded
from holdfast.consumequeue import errors as queues
from holdfast.groups import errors as groups
from holdfast.holdservice import errors as hold
from holdfast.http_api.wire.problems import (
    _RULES,
    KINDS,
    MAX_TEXT_CHARACTERS,
    Problem,
    problem_for,
)
from holdfast.http_api.wire.reply import problem_reply

ERRORS = [
    (queues.InvalidName("topic", "a/b"), 400, "invalid-name", {"kind": "topic", "name": "a/b"}),
    (queues.UnknownTopic("t"), 404, "unknown-topic", {"topic": "t"}),
    (groups.NotSubscribed("t", "g"), 404, "unknown-topic", {"topic": "t", "group": "g"}),
    (queues.UnknownQueue("t", 4, 2), 404, "unknown-queue", {"queue": 4, "queue_count": 2}),
    (queues.UnknownGroup("g"), 404, "unknown-group", {"group": "g"}),
    (queues.UnknownMessage("m"), 404, "unknown-message", {"message_id": "m"}),
    (
        queues.TopicConflict("t", "queues", 3, 2),
        409,
        "topic-conflict",
        {"field": "queues", "given": 3},
    ),
    (queues.TopicFull("t", 11, 10), 507, "topic-full", {}),
    (queues.KeyedBacklog("t", ["g"]), 409, "keyed-backlog", {"topic": "t", "groups": ["g"]}),
    (queues.InvalidTopicChange("t", "only more"), 422, "invalid-topic-change", {"topic": "t"}),
    (
        queues.LimitReached("max_topics", 9),
        409,
        "limit-reached",
        {"limit_name": "max_topics", "limit": 9},
    ),
    (
        groups.TooManyMembers("groups.max_members", 9, "g"),
        409,
        "limit-reached",
        {"group": "g", "limit": 9},
    ),
    (
        queues.OffsetTrimmed("t", 0, 1, 2, 6),
        410,
        "offset-trimmed",
        {"min_offset": 2, "max_offset": 6},
    ),
    (queues.OffsetBeyondEnd("t", 0, 7, 2, 6), 416, "offset-beyond-end", {"max_offset": 6}),
    (queues.QueueCorrupt("t", 0, 3, 5, 2, 6, "crc"), 500, "corrupt-record", {"next_offset": 5}),
    (log.CorruptRecord(64, "crc", "bits", 5), 500, "corrupt-record", {"next_offset": 5}),
    (queues.OffsetsChanged("g", "t", 4), 412, "offsets-changed", {"version": 4}),
    (queues.StateUnavailable("EIO"), 503, "storage-unavailable", {}),
    (queues.StateFull("no room"), 507, "disk-full", {}),
    (log.BatchTooLarge(9, 8), 413, "request-too-large", {"limit": 8}),
    (queues.IndexCorrupt("a checksum"), 500, "damaged-index", {}),
    (log.LogClosed(), 503, "draining", {}),
    (log.LogOverloaded(9, 8), 503, "overloaded", {"limit": 8}),
    (log.DiskFull(4096), 507, "disk-full", {"needed_bytes": 4096}),
    (log.DiskLow("d", 9, 10), 507, "disk-full", {"free_bytes": 9, "min_free_bytes": 10}),
    (log.MemoryLow(9, 8), 503, "overloaded", {"limit": 8, "limit_name": "max_memory_bytes"}),
    (log.IndexBehind(9, 8, None), 503, "overloaded", {"limit_name": "max_uncommitted_entries"}),
    (log.NoSegment("no descriptors"), 503, "storage-unavailable", {}),
    (log.SyncTimeout(5000), 503, "sync-timeout", {"stored": "unknown", "timeout_ms": 5000}),
    (log.LogPoisoned("EIO"), 503, "read-only", {}),
    (log.SequenceGap(3, 5), 409, "sequence-gap", {"expected": 3}),
    (log.SequenceTooOld(1, 4), 409, "sequence-too-old", {"oldest": 4}),
    (log.RoutedOtherwise(1), 409, "sequence-too-old", {"found": 1}),
    (log.TooManyProducers("max_producers", 5), 409, "too-many-producers", {"limit": 5}),
    (log.ProducerFenced(1, 2), 403, "producer-fenced", {"current_epoch": 2}),
    (LimitExceeded("max_key_bytes", 8, 9, 0), 413, "message-too-large", {"limit": 8}),
    (groups.ExclusiveHeld("b", "a"), 409, "group-exclusive", {"member": "b", "holder": "a"}),
    (groups.FilterNotAllowed("keyed"), 400, "filter-not-allowed", {"mode": "keyed"}),
    (groups.GroupsStopping(), 503, "draining", {}),
    (groups.NoDeadLetters("g"), 409, "no-dead-letters", {"group": "g"}),
    (groups.RedriveRunning("g"), 409, "redrive-running", {"group": "g"}),
    (groups.GroupBusy("g", 3), 409, "group-busy", {"group": "g", "in_flight": 3}),
    (groups.InvalidGroup("topics", "take one"), 422, "invalid-group", {"field": "topics"}),
    (groups.TooCostlyMandatory(9), 400, "limit-exceeded", {"limit": 9}),
    (hold.HoldLimitExceeded("max_held", 8), 429, "too-many-held", {"limit": 8}),
    (queues.TooManyReadLeases("max_read_leases", 8), 429, "too-many-read-leases", {"limit": 8}),
    (queues.UnknownReadLease("x"), 404, "unknown-read-lease", {"lease_id": "x"}),
    (
        hold.InvalidFilter("syntax", "no", 3),
        400,
        "invalid-filter",
        {"reason": "syntax", "position": 3},
    ),
]

#: Words that tell the reader how to fix the problem.
MEND = re.compile(
    r"\b(use|create|take|change|leave|delete|raise|continue|run|read|free|send|wait|do not|stop|"
    r"try|restart|storing|queues are|only more|give|ask|plan again|receive again)\b"
)


@pytest.mark.parametrize(("error", "status", "slug", "members"), ERRORS, ids=lambda each: str(each))
def test_an_exception_becomes_its_problem(
    error: Exception, status: int, slug: str, members: dict[str, object]
) -> None:
    problem = problem_for(error)
    body = problem.body()
    assert (body["status"], body["type"]) == (status, f"/problems/{slug}")
    assert body.items() >= members.items()
    assert MEND.search(problem.detail), problem.detail


def test_every_rule_has_an_example() -> None:
    assert {type(error) for error, *_ in ERRORS} == set(_RULES)


def test_every_refusal_of_the_store_has_a_rule() -> None:
    assert set(queues.StoreError.__subclasses__()) <= set(_RULES)


def test_every_rule_names_a_kind() -> None:
    assert {rule.slug for rule in _RULES.values()} <= set(KINDS)


def test_a_request_without_memory_may_be_sent_again() -> None:
    problem = problem_for(MemoryError())
    assert (problem.slug, problem.kind.status) == ("overloaded", 503)
    assert problem.kind.retry_after_s


def test_an_unexpected_error_reveals_no_details() -> None:
    problem = problem_for(KeyError("/secret/path"))
    assert problem.slug == "internal-error"
    assert b"secret" not in problem.encode()


def test_a_transient_problem_has_a_retry_after_header() -> None:
    assert ("Retry-After", "10") in problem_for(log.DiskFull(1)).all_headers()
    assert problem_for(queues.UnknownTopic("t")).all_headers() == []


def test_bytes_that_are_not_utf8_can_be_encoded() -> None:
    problem = Problem("not-found", "there is no \udcff", path="\udcff")
    assert b"\\\\udcff" in problem.encode()


def test_the_reply_of_a_stopping_broker_closes_its_connection() -> None:
    assert problem_reply(problem_for(log.LogClosed())).closes
    assert not problem_reply(problem_for(queues.UnknownTopic("t"))).closes


def test_a_failed_read_from_the_disk_may_be_sent_again() -> None:
    problem = problem_for(OSError(errno.EIO, "Input/output error", "/secret/path"))
    assert (problem.slug, problem.kind.status) == ("storage-unavailable", 503)
    assert "secret" not in problem.encode().decode()
    assert problem_for(OSError(errno.EBADF, "Bad file descriptor")).kind.status == 500


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (MAX_TEXT_CHARACTERS - 1, "x" * (MAX_TEXT_CHARACTERS - 1)),
        (MAX_TEXT_CHARACTERS, "x" * MAX_TEXT_CHARACTERS),
        (MAX_TEXT_CHARACTERS + 1, "x" * (MAX_TEXT_CHARACTERS - 3) + "..."),
    ],
)
def test_a_long_text_is_shortened(size: int, shown: str) -> None:
    body = Problem("invalid-parameter", "x" * size, found="x" * size).body()
    assert (body["detail"], body["found"]) == (shown, shown)
