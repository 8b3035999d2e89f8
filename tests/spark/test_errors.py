import pickle
from dataclasses import Field, fields, is_dataclass
from typing import Any

import pytest

from holdfast.spark import errors
from holdfast.spark.broker.catalog import OutOfRange

REFUSED = errors.BrokerRefused(404, {"type": "/problems/unknown-topic", "detail": "none"})
SAMPLES: dict[str, object] = {
    "str": "text",
    "int": 7,
    "float": 1.5,
    "int | None": None,
    "object": {"version": 2},
    "tuple[int, ...]": (1, 2),
    "Mapping[str, object]": REFUSED.problem,
    "BrokerRefused": REFUSED,
}
CLASSES = [
    each
    for each in (*vars(errors).values(), OutOfRange)
    if isinstance(each, type) and issubclass(each, errors.SparkError)
]


def name_of(kind: object) -> str:
    """Return a type as it is written."""
    if type(kind) is type:
        return kind.__name__
    return str(kind).rpartition("abc.")[2].rpartition("errors.")[2]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_in_another_process(kind: type[errors.SparkError]) -> None:
    declared: tuple[Field[Any], ...] = fields(kind) if is_dataclass(kind) else ()
    values = {field.name: SAMPLES[name_of(field.type)] for field in declared}
    made = (kind(*values.values()), kind(**values)) if declared else (kind("what differs"),)
    for error in made:
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert str(copy) == str(error)
        assert {name: str(getattr(copy, name)) for name in values} == {
            name: str(value) for name, value in values.items()
        }


def test_a_refusal_has_the_type_of_its_problem() -> None:
    assert pickle.loads(pickle.dumps(REFUSED)).type == "/problems/unknown-topic"
    assert errors.BrokerRefused(500, {}).type == "about:blank"
