"""Active members, and the time at which a silent member is removed."""

from holdfast.groups.core.members import Members
from holdfast.groups.core.settling import Verb
from tests.groups.queues import Stage, settle


def test_a_member_is_removed_after_its_time_to_live() -> None:
    members = Members(ttl_ms=100)
    members.mark_seen("a", 1_000)
    members.mark_seen("a", 1_050)
    assert members.find_silent(1_149) == []
    assert members.find_silent(1_150) == ["a"]


def test_a_member_that_joins_while_another_is_busy_is_removed_in_time() -> None:
    members = Members(ttl_ms=100)
    members.mark_seen("busy", 0, busy_until_ms=50_000)
    members.mark_seen("brief", 1_000)
    assert members.next_deadline() == 1_100
    assert members.find_silent(1_100) == ["brief"]


def test_long_leases_of_an_earlier_member_do_not_keep_a_silent_member() -> None:
    stage = Stage(mode="exclusive", member_ttl_ms=1_000)
    stage.publish(1)
    held = stage.take("long", lease_ms=3_600_000)
    stage.later(1_000)
    settle(stage, Verb.ACK, held)
    stage.group.leave("long", stage.now)
    assert stage.ask("brief").is_active
    stage.later(1_000)
    assert stage.ask("next").is_active, "who held the group is silent"


def test_a_bound_member_is_never_silent() -> None:
    members = Members(ttl_ms=100)
    members.bind("link")
    assert members.next_deadline() is None
    members.mark_seen("link", 1_000)
    members.mark_seen("brief", 1_000)
    assert members.find_silent(1_000_000) == ["brief"]
    members.forget("brief")
    assert members.next_deadline() is None
    assert [*members] == ["link"]
