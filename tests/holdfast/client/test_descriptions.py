"""The broker's descriptions of topics and groups, as the client returns them."""

import dataclasses
import inspect
import json
from typing import Any

import pytest

from holdfast.client import (
    Client,
    GroupDescription,
    GroupSummary,
    OffsetsReset,
    Split,
    TopicDescription,
    TopicSummary,
    descriptions,
)
from holdfast.client.async_client import AsyncClient
from holdfast.client.descriptions import Description, QueueDescription, parse_description
from holdfast.client.errors import BadReply
from holdfast.groups import descriptions as group_descriptions
from holdfast.groups import settings
from holdfast.http_api.schemas import groups, messages
from holdfast.testing import RunningBroker

QUEUE = {
    "queue": 3,
    "min_offset": 1,
    "max_offset": 9,
    "bytes": 70,
    "newest_timestamp_ms": None,
    "added_later": [1],
}


def test_a_description_has_attributes_and_is_a_mapping_of_its_reply() -> None:
    # C5
    queue = parse_description(QueueDescription, QUEUE)
    assert (queue.queue, queue.max_offset, queue.newest_timestamp_ms) == (3, 9, None)
    assert queue == QUEUE == dict(queue)
    assert queue["added_later"] == [1]
    assert queue.get("nothing") is None
    assert json.loads(json.dumps(queue.to_dict())) == QUEUE
    assert "added_later" not in repr(queue)
    with pytest.raises(dataclasses.FrozenInstanceError):
        queue.queue = 4  # type: ignore[misc]


def test_a_reply_without_a_member_is_a_bad_reply() -> None:
    with pytest.raises(BadReply, match="max_offset"):
        parse_description(QueueDescription, {"queue": 3, "min_offset": 1})


@pytest.mark.parametrize(
    ("ours", "theirs", "left_out"),
    [
        (descriptions.QueueDescription, messages.QueueStateReply, set()),
        (descriptions.TopicConfig, messages.TopicConfigReply, set()),
        (descriptions.TopicSummary, messages.TopicSummary, set()),
        (descriptions.TopicDescription, messages.TopicReply, {"read_leases"}),
        (descriptions.Split, messages.SplitReply, {"physical_offset", "end_physical_offset"}),
        (descriptions.GroupQueue, group_descriptions.QueueLagReply, set()),
        (descriptions.GroupTopic, group_descriptions.TopicLagReply, set()),
        (descriptions.GroupMember, group_descriptions.MemberReply, set()),
        (descriptions.GroupConfig, settings.GroupConfigReply, set()),
        (descriptions.GroupSummary, groups.GroupSummary, set()),
        (descriptions.GroupDescription, group_descriptions.GroupReply, set()),
        (descriptions.OffsetsReset, groups.ResetReply, set()),
    ],
)
def test_descriptions_have_the_members_of_the_api(
    ours: type[Description], theirs: Any, left_out: set[str]
) -> None:
    # C5
    names = {each.name for each in dataclasses.fields(ours)} - {"reply"}
    assert names == set(theirs.__struct_fields__) - left_out


def test_every_description_of_a_broker_is_typed(shared_broker: RunningBroker, topic: str) -> None:
    # C5: the descriptions were dicts
    with shared_broker.client() as client:
        made = client.create_topic(topic, queues=2, durability="written")
        assert isinstance(made, TopicDescription)
        assert made.config.durability == "written"
        client.publish(topic, "one", queue=1)
        assert client.describe_topic(topic).queues[1].max_offset == 1
        assert client.describe_topic(topic)["queues"][1]["max_offset"] == 1
        (listed,) = [each for each in client.topics() if each.topic == topic]
        assert type(listed) is TopicSummary
        (split,) = client.splits(topic)
        assert isinstance(split, Split) and split.end_offset == 1
        assert client.info().auto_create_topics

        group = client.create_group(f"g-{topic}", {topic: 3}, mode="keyed")
        assert isinstance(group, GroupDescription)
        assert group.config is not None
        assert (group.config.mode, group.config.topics[topic].weight) == ("keyed", 3)
        assert group.config.fairness.engine == "sfq"
        assert group.topics[0].queues[1].available == 1
        client.receive(group.group, "m")
        assert client.describe_group(group.group).members[0].in_flight == 1
        client.store_offsets(f"o-{topic}", topic, {0: 0})
        plain = client.describe_group(f"o-{topic}")
        assert (plain.config, plain.members, plain.topics[0].queues[0].floor) == (None, (), None)
        kinds = {each.group: each for each in client.groups()}
        assert isinstance(kinds[f"o-{topic}"], GroupSummary)
        assert (kinds[f"g-{topic}"].mode, kinds[f"o-{topic}"].mode) == ("keyed", None)
        moved = client.reset_offsets(f"o-{topic}", topic, "latest")
        assert isinstance(moved, OffsetsReset) and moved.after == {"0": 0, "1": 1}


def test_the_fields_of_a_message_except_its_body_are_given_by_name() -> None:
    # C5: the third positional argument of publish was the key
    for method in (AsyncClient.publish, Client.publish):
        parameters = list(inspect.signature(method).parameters.values())
        by_place = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
        assert by_place == ["self", "topic", "body"]


@pytest.mark.parametrize("name", ["publish", "create_topic", "ack", "pull", "consume", "producer"])
def test_errors_about_arguments_name_the_class_that_was_called(name: str) -> None:
    # C5: errors of Client named AsyncClient, or a class unknown to users
    client = Client("http://127.0.0.1:9")
    with client, pytest.raises(TypeError, match=rf"^Client\.{name}\(\) "):
        getattr(client, name)("t", "x", nothing=1)
