from typing import Any

import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import BatchFlag
from tests.commitlog.golden.make import examples, golden


@pytest.mark.parametrize("name", sorted(examples()))
def test_the_examples_are_encoded_as_they_were_pinned(name: str) -> None:
    assert examples()[name] == golden(name)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"bodies": []}, "at least one"),
        ({"bodies": [b"a"], "keys": []}, "column of 0"),
        ({"bodies": [b"a"], "keys": ["k", "l"]}, "column of 2"),
        ({"bodies": [b"a"], "tags": ["k", "l"]}, "column of 2"),
        ({"bodies": [b"a"], "properties": [{}, {}]}, "column of 2"),
        ({"bodies": [b"a"], "born_timestamps_us": [1, 2]}, "column of 2"),
        ({"bodies": [b"a"], "expires_timestamps_us": [1, 2]}, "column of 2"),
        ({"bodies": [b"a", b"b"], "keys": ["", "k"]}, "an empty key"),
        ({"bodies": [b"a", b"b"], "tags": ["t", ""]}, "an empty tag"),
        ({"bodies": [b"a"], "properties": [{"": "v"}]}, "an empty property name"),
        ({"bodies": [b"a"], "keys": ["\ud800"]}, "surrogates not allowed"),
    ],
)
def test_what_cannot_be_encoded_is_refused(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        encode_batch(**arguments)


@pytest.mark.parametrize("counts_requests", [True, False])
def test_the_producer_is_in_the_header(counts_requests: bool) -> None:
    raw = encode_batch(
        [b"a"],
        producer_id=2**63 - 1,
        producer_epoch=7,
        sequence=9,
        request_sequence=counts_requests,
    )
    header = Batch.decode(raw).header
    assert (header.producer_id, header.producer_epoch, header.sequence) == (2**63 - 1, 7, 9)
    assert bool(header.flags & BatchFlag.REQUEST_SEQUENCE) == counts_requests
