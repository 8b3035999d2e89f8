"""Room for unsettled deliveries on two levels."""

from holdfast.amqp.engine.delivery_room import DeliveryRoom


def test_the_smaller_room_counts_and_the_end_of_a_full_room_is_reported() -> None:  # T18
    reports: list[str] = []
    connection = DeliveryRoom(5, on_room=lambda: reports.append("connection"))
    one = DeliveryRoom(3, connection, lambda: reports.append("one"))
    other = DeliveryRoom(4, connection, lambda: reports.append("other"))
    assert (one.left, other.left) == (3, 4)
    one.take(3)
    assert (one.left, other.left) == (0, 2)
    other.take(2)
    assert (one.left, other.left) == (0, 0)
    other.give(0)
    assert reports == []
    other.give(1)  # its own room was not full, but the room of the connection was
    assert (reports, one.left, other.left) == (["connection"], 0, 1)
    one.give(2)
    assert (reports, one.left, other.left) == (["connection", "one"], 2, 3)
    one.close()
    one.take(2)
    one.give(3)
    assert reports == ["connection", "one"]
