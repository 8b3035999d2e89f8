"""Everything promised to users is as it was: compared with a recorded contract."""

import copy
import json
from typing import Any

import pytest

from tests.support.tree.contract import SNAPSHOT, contract, differences

#: What may be new. Anything else that is added, changed or removed is a change of a promise:
#: write the contract again (`python -m tests.support.tree.contract --write`) only if it is meant.
ADDITIONS = {
    "+ /python/holdfast.commitlog.batch/Batch/members/decode/rebuilt",
    "+ /python/holdfast.commitlog.batch/Batch/members/store_timestamp_us",
    "+ /python/holdfast.commitlog.batch/Batch/members/store_timestamps_us",
    "+ /python/holdfast.commitlog.batch/iter_batches/rebuilt",
    "+ /commands/holdfast backup/--keep",
    "+ /commands/holdfast restore/--backup",
    # A folder, as before, or also a URL.
    "! /commands/holdfast backup/DEST/type/param_type: 'Path' -> 'FolderOrUrl'",
    "! /commands/holdfast restore/SRC/type/param_type: 'Path' -> 'FolderOrUrl'",
    # More patience with a busy machine.
    "! /python/holdfast.testing/RunningBroker/constructor: '(data_dir: Path | str, arguments: "
    "Sequence[str] = (), *, start_timeout_s: float = 30.0, stop_timeout_s: float = 15.0, program: "
    "Sequence[str] = (python, -m, holdfast))' -> '(data_dir: Path | str, arguments: Sequence[str] "
    "= (), *, start_timeout_s: float = 90.0, stop_timeout_s: float = 60.0, program: Sequence[str] "
    "= (python, -m, holdfast))'",
    "+ /commands/holdfast demo/--no-wait",
    "+ /python/holdfast.client/Instrumentation",
    "+ /commands/holdfast group create/--last-value --all-values",
    "+ /commands/holdfast serve/--groups-max-last-value-keys",
    "+ /http/schemas/schemas/GroupConfigReply/properties/last_value",
    "+ /http/schemas/schemas/GroupSettings/properties/last_value",
    "+ /http/schemas/schemas/QueueLagReply/properties/superseded",
    "+ /python/holdfast.client.descriptions/GroupConfig/members/last_value",
    "+ /python/holdfast.client.descriptions/GroupQueue/members/superseded",
    "+ /python/holdfast.client/GroupConfig/members/last_value",
    "+ /python/holdfast.client/GroupQueue/members/superseded",
    "+ /settings/groups.max_last_value_keys",
    "+ /commands/holdfast group create/--auto-delete-after-ms",
    "+ /http/schemas/schemas/GroupConfigReply/properties/auto_delete_after_ms",
    "+ /http/schemas/schemas/GroupSettings/properties/auto_delete_after_ms",
    "+ /http/schemas/schemas/HolderReply",
    "+ /python/holdfast.client.descriptions/GroupConfig/members/auto_delete_after_ms",
    "+ /python/holdfast.client/GroupConfig/members/auto_delete_after_ms",
    "+ /http/schemas/schemas/LeasedMessage/properties/holder",
    "+ /http/schemas/schemas/ReceiveReply/properties/outcomes",
    "+ /http/schemas/schemas/ReceiveRequest/properties/include_leased",
    "+ /http/schemas/schemas/ReceiveRequest/properties/no_local",
    "+ /http/schemas/schemas/ReceiveRequest/properties/settle",
    "+ /http/schemas/schemas/SettleRequest",
    "+ /metrics/holdfast_reput_behind_messages",
    "+ /metrics/holdfast_groups_without_leases",
    "+ /settings/consumequeue.eager_tail",
    "+ /commands/holdfast serve/--consumequeue-eager-tail",
    "+ /commands/holdfast top/--once",
    *(
        f"+ /python/{module}/{client}/members/overview"
        for module in ("holdfast", "holdfast.client")
        for client in ("AsyncClient", "Client")
    ),
    "+ /settings/commitlog.append_on_loop_bytes",
    "+ /commands/holdfast serve/--commitlog-append-on-loop-bytes",
    "+ /settings/commitlog.newest_blocks_bytes",
    "+ /commands/holdfast serve/--commitlog-newest-blocks-bytes",
    "+ /golden_files/golden/batch_envelopes.bin",
    "+ /python/holdfast.commitlog.batch/Batch/members/envelope",
    "+ /python/holdfast.commitlog.batch/Batch/members/envelope_offsets",
    "+ /python/holdfast.commitlog.batch/Batch/members/envelopes",
    "+ /python/holdfast/AsyncClient/members/session",
    "+ /python/holdfast/Client/members/session",
    "+ /python/holdfast.client/AsyncClient/members/session",
    "+ /python/holdfast.client/AsyncReceiver",
    "+ /python/holdfast.client/AsyncSender",
    "+ /python/holdfast.client/AsyncSession",
    "+ /python/holdfast.client/Client/members/session",
    "+ /python/holdfast.client/LinkMessage",
    "+ /python/holdfast.client/Receiver",
    "+ /python/holdfast.client/Sender",
    "+ /python/holdfast.client/Session",
    "+ /python/holdfast.client.errors/MessageReleased",
    "+ /commands/holdfast publish/--mandatory",
    "+ /commands/holdfast serve/--groups-max-mandatory-match-ms",
    "+ /http/paths//v1/topics/{topic}/messages/post/parameters/mandatory",
    "+ /http/paths//v1/topics/{topic}/messages/post/responses/422",
    "+ /http/problems/POST /v1/topics/{topic}/messages 422",
    "+ /http/schemas/schemas/Problem/properties/type/enum//problems/unroutable",
    "+ /python/holdfast.client.errors/Unroutable",
    "+ /settings/groups.max_mandatory_match_ms",
    "+ /http/schemas/schemas/FairnessReply/properties/cost/enum/given",
    "+ /http/schemas/schemas/FairnessSettings/properties/cost/enum/given",
    "+ /python/holdfast.client/Fairness/constructor/given",
    *(
        f"+ /python/{module}/{client}/members/create_group/given"
        for module in ("holdfast", "holdfast.client")
        for client in ("AsyncClient", "Client")
    ),
    *(
        f"+ /python/{module}/{client}/members/{method}/mandatory"
        for module in ("holdfast", "holdfast.client")
        for client in ("AsyncClient", "Client")
        for method in ("publish", "producer")
    ),
    "+ /commands/holdfast export",
    "+ /commands/holdfast import",
    "+ /python/holdfast.client.errors/FilesUnreadable",
    "+ /python/holdfast.client.errors/PackageMissing",
    "+ /python/holdfast.client.errors/UndecodableBody",
    *(
        f"+ /python/{module}/{client}/members/{method}"
        for module in ("holdfast", "holdfast.client")
        for client in ("AsyncClient", "Client")
        for method in ("iter_arrow", "read_arrow")
    ),
    "+ /http/schemas/schemas/RedriveReply/properties/discarded",
    "+ /http/schemas/schemas/RedriveRequest/properties/discard",
    "+ /python/holdfast.client.errors/ChannelClosed",
    "+ /python/holdfast.client.errors/StaleDelivery",
    "+ /python/holdfast.client.errors/TooManyChannels",
    *(
        f"+ /python/{package}/{name}"
        for package, names in {
            "holdfast": ("Channel", "ChannelMessage", "Connection", "connect"),
            "holdfast.client": (
                "Channel",
                "ChannelMessage",
                "Confirmation",
                "Connection",
                "connect",
            ),
        }.items()
        for name in names
    ),
    *(
        f"+ /http/{area}/{name}"
        for area, names in {
            "paths": (
                "/v1/access",
                "/v1/access/audit",
                "/v1/access/tokens",
                "/v1/connections",
                "/v1/connections/sessions",
                "/v1/groups/{group}/leases",
                "/v1/messages/{message_id}/groups",
                "/v1/names",
                "/v1/overview",
                "/v1/topics/{topic}/groups",
                "/v1/topics/{topic}/messages/browse",
            ),
            "schemas/schemas": (
                "AccessReply",
                "AmqpLinkReply",
                "AmqpSessionReply",
                "AmqpSessionsReply",
                "AuditReply",
                "BrowseReply",
                "BrowsedQueue",
                "ClientReply",
                "ConnectionsReply",
                "HeldBackReply",
                "DiskReply",
                "GroupFiguresReply",
                "LeaseReply",
                "LeasesReply",
                "MessageStateReply",
                "MessageStatesReply",
                "NamesReply",
                "OverviewReply",
                "ReadersReply",
                "TokenReply",
                "TokensReply",
            ),
        }.items()
        for name in names
    ),
}
#: Additions that begin so are new, too.
ADDED_AREAS = (
    "+ /commands/holdfast serve/--amqp-",
    "+ /commands/holdfast serve/--console-",
    "+ /metrics/holdfast_amqp_",
    "+ /settings/amqp.",
    "+ /settings/console.",
    # The problems of the new paths.
    "+ /http/problems/GET /v1/access ",
    "+ /http/problems/GET /v1/access/audit ",
    "+ /http/problems/GET /v1/access/tokens ",
    "+ /http/problems/GET /v1/connections ",
    "+ /http/problems/GET /v1/connections/sessions ",
    "+ /http/problems/GET /v1/groups/{group}/leases ",
    "+ /http/problems/GET /v1/messages/{message_id}/groups ",
    "+ /http/problems/GET /v1/names ",
    "+ /http/problems/GET /v1/overview ",
    "+ /http/problems/GET /v1/topics/{topic}/groups ",
    "+ /http/problems/GET /v1/topics/{topic}/messages/browse ",
)
#: New optional parameters of functions in Python.
ADDED_PARAMETERS = (
    ", auto_delete_after_ms: int | None = None",
    ", auto_delete_after_ms: int = 0",
    ", no_local: bool = False",
    ", born_timestamp_ms: int | float | datetime | None = None",
    ", last_value: bool | None = None",
    ", last_value: bool = False",
    ", superseded: int | None = None",
    ", instrumentation: Instrumentation | None = None",
)


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(SNAPSHOT.read_text())


def test_the_contract_is_as_recorded(recorded: Any) -> None:
    text = json.dumps(contract())
    for parameter in ADDED_PARAMETERS:
        text = text.replace(parameter, "")
    now = json.loads(text)
    found = {each for each in differences(recorded, now) if not each.startswith(ADDED_AREAS)}
    assert found <= ADDITIONS


def test_a_change_is_reported(recorded: Any) -> None:
    changed = copy.deepcopy(recorded)
    del changed["http"]["paths"]["/v1/topics"]["get"]
    changed["exit_codes"]["USAGE"] = 3
    changed["metrics"]["holdfast_new"] = {}
    parameters = changed["http"]["paths"]["/v1/topics/{topic}/messages"]["post"]["parameters"]
    parameters.append({"name": "new"})
    connect = changed["python"]["holdfast"]["Client"]
    connect["constructor"] = connect["constructor"][:-1] + ", new: int = 1)"
    create = connect["members"]["create_group"]
    connect["members"]["create_group"] = create.replace("[sfq, dwrr]", "[sfq, dwrr, new]")
    publish = connect["members"]["publish"]
    needed = connect["members"]["publish"] = publish[:-1] + ", needed: int)"
    assert list(differences(recorded, changed)) == [
        "! /exit_codes/USAGE: 2 -> 3",
        "- /http/paths//v1/topics/get",
        "+ /http/paths//v1/topics/{topic}/messages/post/parameters/new",
        "+ /metrics/holdfast_new",
        "+ /python/holdfast/Client/constructor/new",
        "+ /python/holdfast/Client/members/create_group/new",
        f"! /python/holdfast/Client/members/publish: {publish!r} -> {needed!r}",
    ]
