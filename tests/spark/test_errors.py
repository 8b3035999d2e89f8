import pickle
from dataclasses import Field, fields, is_dataclass
from typing import Any

import pytest

import holdfast.spark
from holdfast.spark import errors, reason
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


def test_every_error_is_exported_by_the_package() -> None:
    assert {kind.__name__ for kind in CLASSES} - {"OutOfRange"} <= set(holdfast.spark.__all__)
    assert all(hasattr(holdfast.spark, name) for name in holdfast.spark.__all__)


TRACEBACK = """[PYTHON_DATA_SOURCE_ERROR] Failed to do it: Traceback (most recent call last):
  File "/x/stream_source.py", line 72, in initialOffset
    raise holdfast.spark.errors.InvalidOption: not me
holdfast.spark.errors.BrokerRefused: the broker refused (410): gone

During handling of the above exception, another exception occurred:

holdfast.spark.errors.DataLost: queue 1: set it to "false"
 SQLSTATE: 38000

Logical Plan:
~StreamingDataSourceV2ScanRelation[queue#36] holdfast"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TRACEBACK, 'queue 1: set it to "false"'),
        ("holdfast.spark.errors.DataLost: at the end", "at the end"),
        ("holdfast.commitlog.errors.UnknownFormatVersion: newer", "newer"),
        ("holdfast.spark.broker.catalog.OutOfRange: not there", "not there"),
        ("theirs.holdfast.errors.DataLost: not ours", None),
        ("holdfast.spark.read.reading: no error", None),
        ("java.lang.NullPointerException", None),
        ("", None),
    ],
)
def test_the_last_sentence_of_ours_is_the_reason(text: str, sentence: str | None) -> None:
    assert reason(RuntimeError(text)) == sentence
