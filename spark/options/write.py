"""The options of a write, parsed and checked. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.location import ADDRESS_OPTIONS, Address, parse_address
from holdfast.spark.options.parser import OptionParser

#: Every option and what it does; docs/spark.md lists the same.
WRITE_OPTIONS: Mapping[str, str] = {
    **ADDRESS_OPTIONS,
    "topic": "topic for all rows; overrides a column topic",
    "durability": "fsync (default): acknowledged after the sync to disk; or written",
    "maxBatchBytes": "most bytes of one batch (default 4m, at most 12m)",
    "maxBatchRows": "most rows of one batch (default 20000, at most 100000)",
    "createTopic": "true creates a topic that does not exist (default false)",
    "sortBy": "columns, separated by commas, by which each task sorts its rows before sending",
    "idempotent": "false stores rows again that Spark sends again (default true)",
    "txnAppId": "name of a batch write that may be repeated; needs txnVersion",
    "txnVersion": "number of a run of txnAppId, which must increase; each number is stored once",
    "checkpointLocation": "used by Spark itself",
}

DEFAULT_BATCH_BYTES = 4 * 1024 * 1024
#: Below the broker's 16 MiB per request, because a batch also has offsets, hashes and padding.
MAX_BATCH_BYTES = 12 * 1024 * 1024
DEFAULT_BATCH_ROWS = 20_000
MAX_BATCH_ROWS = 100_000  # the broker's default limit for one request
MAX_EPOCH = 2**32 - 1  # the batch format stores the epoch in 32 bits
_DURABILITIES = ("fsync", "written")


@dataclass(frozen=True, slots=True)
class Transaction:
    """The name and version of a batch write. Repeating the same version stores nothing twice."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of one write, batch or stream. `topic` is None if a column names the topic."""

    address: Address
    topic: str | None
    durability: str
    max_batch_bytes: int
    max_batch_rows: int
    create_topic: bool
    sort_by: tuple[str, ...]
    is_idempotent: bool
    transaction: Transaction | None


def parse_write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Return the options of one write. Names are not case-sensitive. Raises InvalidOption."""
    options = OptionParser(given, WRITE_OPTIONS)
    is_idempotent = options.flag("idempotent", True)
    transaction = _parse_transaction(options)
    if transaction is not None and streaming:
        raise InvalidOption("txnAppId", "is for batch writes; a stream uses its checkpoint instead")
    if transaction is not None and not is_idempotent:
        raise InvalidOption("txnAppId", "contradicts idempotent=false; omit one of them")
    return WriteOptions(
        address=parse_address(options),
        topic=options.text("topic"),
        durability=options.one_of("durability", _DURABILITIES, "fsync"),
        max_batch_bytes=options.size("maxBatchBytes", DEFAULT_BATCH_BYTES, maximum=MAX_BATCH_BYTES),
        max_batch_rows=options.number(
            "maxBatchRows", DEFAULT_BATCH_ROWS, minimum=1, maximum=MAX_BATCH_ROWS
        ),
        create_topic=options.flag("createTopic", False),
        sort_by=options.words("sortBy"),
        is_idempotent=is_idempotent,
        transaction=transaction,
    )


def _parse_transaction(options: OptionParser) -> Transaction | None:
    app_id = options.text("txnAppId")
    version = options.number("txnVersion", None, maximum=MAX_EPOCH)
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        missing = "txnAppId" if app_id is None else "txnVersion"
        raise InvalidOption(missing, "is missing; give both txnAppId and txnVersion")
    return Transaction(app_id, version)
