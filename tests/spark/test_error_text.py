import pytest

from holdfast.spark import reason

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
