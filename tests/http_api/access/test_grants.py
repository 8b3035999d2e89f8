import pytest

from holdfast.http_api.access.grants import (
    ANONYMOUS,
    EVERYTHING,
    NO_ACCESS,
    VERBS,
    InvalidGrant,
    Names,
    Principal,
    parse_grants,
    require,
)

BAD = [
    "", ":", "read:orders", "PUBLISH:orders", " publish:orders", "publish", "publish:",
    "publish:orders:billing", "publish:orders:", "consume", "consume:", "consume:orders:",
    "consume:orders:a:b", "admin", "operate:", "operate:orders", "all:", "all:orders",
    "publish:*x", "publish:x*", "publish:**", "publish:=", "publish:==x", "publish:=*",
    "publish:a/b", "publish:a b", "publish:a\n", "publish:é", "publish:" + 128 * "a",
    "publish,consume:orders", "consume::billing",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_an_invalid_grant_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(InvalidGrant, match=r"write publish:TOPICS, consume:TOPICS\[:GROUPS\]"):
        parse_grants(text)


@pytest.mark.parametrize(
    "text",
    ["publish:orders.", "publish:*", "consume:=orders", "consume:orders.:billing-", "consume:*:*",
     "admin:a:=b", "operate", "publish:" + 127 * "a", "publish:=" + 127 * "a"],
)  # fmt: skip
def test_a_grant_is_written_as_it_was_read(text: str) -> None:
    (grant,) = parse_grants(text)
    assert str(grant) == text
    assert parse_grants(str(grant)) == (grant,)


def test_all_is_every_verb_on_everything() -> None:
    assert parse_grants("all") == EVERYTHING
    assert {grant.verb for grant in EVERYTHING} == set(VERBS)
    assert all(ANONYMOUS.may((verb,)) for verb in VERBS)
    assert ANONYMOUS.may(("consume",), "any.topic", "any-group")


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("*", ["orders", "a", "=orders"], []),
        ("orders.", ["orders.", "orders.eu"], ["orders", "order", "Orders.eu", "my.orders."]),
        ("=orders", ["orders"], ["orders.", "orders2", "=orders", "order", ""]),
    ],
)
def test_names_cover_a_beginning_a_whole_name_or_all(
    text: str, inside: list[str], outside: list[str]
) -> None:
    names = Names(text)
    assert [name for name in inside + outside if names.cover(name)] == inside


def principal(*grants: str) -> Principal:
    return Principal("token:1", [each for text in grants for each in parse_grants(text)])


def test_topic_and_group_count_together() -> None:
    who = principal("consume:orders:billing", "consume:other:*", "admin:*")
    assert who.may(("consume",), "orders", "billing")
    assert not who.may(("consume",), "orders", "reports")
    assert who.may(("consume",), "orders")
    assert not who.may(("consume",), "third")
    assert not who.may(("admin",), "orders", "billing"), "no groups are granted with it"
    assert who.may(("publish", "admin"), "orders")
    assert not who.may(("publish",))
    assert not who.may(("operate",))


def test_a_group_alone_needs_a_grant_with_groups() -> None:
    assert not principal("consume:*").may(("consume",), group="billing")
    assert principal("consume:orders:billing").may(("consume",), group="billing")


def test_no_access_refuses_also_callers_with_every_grant() -> None:
    assert not NO_ACCESS.is_met_by(ANONYMOUS, {})
    assert require("consume").is_met_by(ANONYMOUS, {"topic": "orders", "group": "billing"})
    assert not require("consume").is_met_by(None, {})
    assert not require().is_met_by(ANONYMOUS, {})
