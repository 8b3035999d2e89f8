"""The condition that leaves out the messages of one session (no-local). Pure."""

from holdfast.commitlog.format.session_ids import producer_ids_of, publisher_hash


def not_published_by(session: str, condition: str | None = None) -> str:
    """Return a condition for the messages that match `condition` and were published by other
    sessions.

    A session is the name or number of a producer over HTTP, a range of such numbers, or a
    container-id of AMQP. Messages without a session always match. A message of another container is
    left out, too, if the hashes of the two names are equal (one in four billion).
    """
    first, last = producer_ids_of(session)
    others = (
        f"($publisher IS NULL OR $publisher <> {publisher_hash(session)}) AND "
        f"($producer IS NULL OR $producer < {first} OR $producer > {last})"
    )
    return others if condition is None else f"({condition}) AND {others}"
