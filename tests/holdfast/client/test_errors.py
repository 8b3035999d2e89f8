import pickle

import pytest

from holdfast.client import errors
from holdfast.client.errors import ApiError, OffsetTrimmed, TopicConflict, api_error


def test_a_problem_becomes_the_error_of_its_type_with_its_members() -> None:
    error = api_error(
        410,
        {
            "type": "/problems/offset-trimmed",
            "title": "Offset trimmed",
            "status": 410,
            "detail": "offset 3 is below 7; start at 7",
            "min_offset": 7,
            "max_offset": 12,
        },
    )
    assert isinstance(error, OffsetTrimmed)
    assert (error.status, error.type) == (410, "offset-trimmed")
    assert (error.min_offset, error.max_offset) == (7, 12)
    assert set(error.members) == {"min_offset", "max_offset"}
    assert str(error) == "offset 3 is below 7; start at 7 (410 offset-trimmed)"


def test_an_unknown_type_is_a_plain_api_error() -> None:
    error = api_error(418, {"type": "/problems/teapot", "title": "Teapot", "handle": "left"})
    assert type(error) is ApiError
    assert error.members == {"handle": "left"}
    assert str(error) == "Teapot (418 teapot)"


def test_a_conflict_names_field_and_values() -> None:
    error = api_error(
        409, {"type": "/problems/topic-conflict", "field": "queues", "given": 4, "existing": 8}
    )
    assert isinstance(error, TopicConflict)
    assert (error.field, error.given, error.existing) == ("queues", 4, 8)


@pytest.mark.parametrize(
    "error",
    [
        api_error(410, {"type": "/problems/offset-trimmed", "min_offset": 7}, 1.5),
        errors.ProducerBufferFull(5),
        errors.BadReply("http://x", "html"),
        errors.ClientClosed(),
        errors.PublishFailed("orders", 3, errors.ClientClosed()),
        errors.ConnectionFailed("http://x", "refused", maybe_executed=False),
    ],
)
def test_errors_can_be_pickled(error: errors.HoldfastError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_the_tree_in_the_docstring_names_every_error() -> None:
    assert errors.__doc__ is not None
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.HoldfastError):
            assert name in errors.__doc__
