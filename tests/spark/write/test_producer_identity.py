import pytest

from holdfast.spark.errors import IdentityMissing
from holdfast.spark.write.producer_identity import (
    BATCH_PROPERTY,
    QUERY_PROPERTY,
    Producer,
    WriterRun,
    identify_stream_run,
)


def test_attempts_at_a_partition_are_one_producer_and_no_others_are() -> None:
    writers = [WriterRun("stream\na", 3), WriterRun("stream\nb", 3), WriterRun("job\na", 3)]
    producers = [Producer(writer, part) for writer in writers for part in range(20)]
    ids = {producer.producer_id(generation) for producer in producers for generation in range(3)}
    assert len(ids) == 180
    assert Producer(WriterRun("stream\na", 3), 0).producer_id() in ids
    assert all(0 < each < 2**63 for each in ids)


def test_a_later_batch_is_the_same_producer_in_a_higher_epoch() -> None:
    first, second = (Producer(WriterRun("stream\na", batch), 1) for batch in (3, 4))
    assert first.producer_id() == second.producer_id()
    assert (first.epoch, second.epoch) == (3, 4)


def test_identities_are_pinned() -> None:
    """A query that restarts with a later version of this code must keep its producer ids."""
    assert Producer(WriterRun("stream\n1a2b", 7), 0).producer_id(0) == 5716529252459073670
    assert Producer(WriterRun("stream\n1a2b", 7), 3).producer_id(2) == 4894839141295830733


def test_without_a_writer_there_is_no_producer() -> None:
    assert (Producer(None, 4).producer_id(), Producer(None, 4).epoch) == (0, 0)


def test_a_stream_is_named_by_its_query() -> None:
    properties = {QUERY_PROPERTY: "1a2b", BATCH_PROPERTY: "17"}
    assert identify_stream_run(properties.get) == WriterRun("stream\n1a2b", 17)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {QUERY_PROPERTY: "1a2b"},
        {BATCH_PROPERTY: "1"},
        {QUERY_PROPERTY: "", BATCH_PROPERTY: "1"},
        {QUERY_PROPERTY: "1a2b", BATCH_PROPERTY: str(2**32)},
        {QUERY_PROPERTY: "1a2b", BATCH_PROPERTY: "x"},
    ],
)
def test_a_missing_query_id_or_batch_number_is_an_error(properties: dict[str, str]) -> None:
    with pytest.raises(IdentityMissing, match="idempotent=false"):
        identify_stream_run(properties.get)
