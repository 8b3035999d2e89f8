"""The progress of browsing members; it is kept for a limited number of members and queues."""

from typing import cast

import pytest

from holdfast.groups.core.group import Group
from holdfast.groups.serving import browsers as browsers_module
from holdfast.groups.serving.browsers import Browsers
from holdfast.groups.serving.head_source import StoreHeads
from holdfast.groups.serving.receive_flow import ReceiveFlow


@pytest.fixture
def browsers(monkeypatch: pytest.MonkeyPatch) -> Browsers:
    monkeypatch.setattr(browsers_module, "MAX_BROWSERS", 4)
    monkeypatch.setattr(browsers_module, "MAX_PLACES", 10)
    return Browsers(cast(Group, None), cast(StoreHeads, None), cast(ReceiveFlow, None))


def keep(browsers: Browsers, member: str, queues: int) -> list[str]:
    browsers._places.pop(member, None)
    browsers._keep(member, {(1, queue): 0 for queue in range(queues)})
    return list(browsers._places)


def test_the_most_recent_browsers_are_kept(browsers: Browsers) -> None:
    for number in range(4):
        keep(browsers, f"m{number}", 1)
    assert keep(browsers, "m0", 1) == ["m1", "m2", "m3", "m0"]
    assert keep(browsers, "m4", 1) == ["m2", "m3", "m0", "m4"]


@pytest.mark.parametrize(("queues", "kept"), [(5, "ab"), (6, "ab"), (7, "b")])
def test_places_of_a_limited_number_of_queues_are_kept(
    browsers: Browsers, queues: int, kept: str
) -> None:
    # M1: the progress of a thousand members in ten thousand queues each took a gigabyte
    keep(browsers, "a", 4)
    assert "".join(keep(browsers, "b", queues)) == kept


def test_one_member_is_kept_whatever_it_looks_at(browsers: Browsers) -> None:
    assert keep(browsers, "a", 100) == ["a"]
    assert keep(browsers, "b", 100) == ["b"]
