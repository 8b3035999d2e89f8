import pytest

from holdfast.amqp.conditions_of import CONDITIONS, amqp_error, publish_outcome
from holdfast.amqp.wire import conditions
from holdfast.amqp.wire.conditions import (
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT_EXCEEDED,
    RESOURCE_LOCKED,
    UNAUTHORIZED_ACCESS,
    AmqpError,
    ConnectionFailed,
    LinkFailed,
    SessionFailed,
)
from holdfast.amqp.wire.performatives import Error, Modified, Rejected, Released
from holdfast.amqp.wire.types import Symbol
from holdfast.commitlog import errors as log
from holdfast.commitlog.format.batch_check import LimitExceeded
from holdfast.consumequeue import errors as queues
from holdfast.groups import errors as groups
from holdfast.holdservice import errors as hold
from holdfast.http_api.access.authorization import Denied
from holdfast.http_api.wire.problems import KINDS, problem_for
from tests.http_api.wire.test_problems import ERRORS


def test_every_problem_has_a_condition_of_the_specification() -> None:
    assert set(CONDITIONS) == set(KINDS)
    known = {
        getattr(conditions, name)
        for name in dir(conditions)
        if name.isupper() and str(getattr(conditions, name)).startswith("amqp:")
    }
    assert set(CONDITIONS.values()) <= known


@pytest.mark.parametrize(("error", "slug"), [(each[0], each[2]) for each in ERRORS])
def test_an_error_has_the_sentence_and_the_type_of_its_problem(error: Exception, slug: str) -> None:
    found = amqp_error(error, SessionFailed)
    assert type(found) is SessionFailed
    assert found.condition == CONDITIONS[slug]
    assert found.description == problem_for(error).detail
    assert found.info == {"problem": f"/problems/{slug}"}


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (queues.UnknownTopic("t"), NOT_FOUND),
        (queues.UnknownQueue("t", 2, 1), NOT_FOUND),
        (queues.UnknownGroup("g"), NOT_FOUND),
        (Denied("forbidden", "no", "p"), UNAUTHORIZED_ACCESS),
        (Denied("unauthenticated", "no", "p"), UNAUTHORIZED_ACCESS),
        (groups.ExclusiveHeld("b", "a"), RESOURCE_LOCKED),
        (LimitExceeded("max_message_bytes", 1, 2, 0), MESSAGE_SIZE_EXCEEDED),
        (queues.InvalidName("topic", "a b"), INVALID_FIELD),
        (hold.InvalidFilter("syntax", "no"), INVALID_FIELD),
        (groups.FilterNotAllowed("keyed"), NOT_IMPLEMENTED),
        (hold.HoldLimitExceeded("max_held", 1), RESOURCE_LIMIT_EXCEEDED),
        (groups.GroupsStopping(), CONNECTION_FORCED),
        (ZeroDivisionError(), INTERNAL_ERROR),
    ],
)
def test_the_conditions_of_errors(error: Exception, condition: str) -> None:
    assert amqp_error(error, LinkFailed).condition == condition


def test_an_error_of_amqp_keeps_its_condition() -> None:
    found = amqp_error(LinkFailed(NOT_FOUND, "gone", {"x": 1}), ConnectionFailed)
    assert type(found) is ConnectionFailed
    assert (found.condition, found.description, found.info) == (NOT_FOUND, "gone", {"x": 1})


@pytest.mark.parametrize(
    "error",
    [
        log.DiskFull(1),
        log.DiskLow("d", 9, 10),
        log.MemoryLow(9, 8),
        log.IndexBehind(9, 8, None),
        log.LogOverloaded(9, 8),
        log.LogPoisoned("EIO"),
        log.NoSegment("no descriptors"),
        log.LogClosed(),
        queues.TopicFull("t", 11, 10),
    ],
)
def test_messages_that_the_broker_may_accept_later_are_released(error: Exception) -> None:
    assert publish_outcome(error) == Released()


def test_messages_that_are_wrong_are_rejected_with_the_reason() -> None:
    assert publish_outcome(LimitExceeded("max_key_bytes", 8, 9, 0)) == Rejected(
        Error(
            MESSAGE_SIZE_EXCEEDED,
            "message 0: 9 bytes exceed max_key_bytes (8); send a smaller message, or raise the "
            "limit",
            {Symbol("problem"): "/problems/message-too-large"},
        )
    )
    assert publish_outcome(AmqpError(NOT_IMPLEMENTED, "no")) == Rejected(
        Error(NOT_IMPLEMENTED, "no", None)
    )


def test_a_long_description_is_shortened() -> None:
    error = AmqpError(NOT_FOUND, "x" * 1_001)
    assert publish_outcome(error) == Rejected(Error(NOT_FOUND, "x" * 997 + "...", None))
    exact = AmqpError(NOT_FOUND, "x" * 1_000)
    assert publish_outcome(exact) == Rejected(Error(NOT_FOUND, "x" * 1_000, None))


def test_a_message_that_may_be_stored_is_modified_as_failed() -> None:
    assert publish_outcome(log.SyncTimeout(5_000)) == Modified(delivery_failed=True)
