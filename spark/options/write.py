"""The options of a write, parsed and checked. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.address import ADDRESS_OPTIONS, Address, parse_address
from holdfast.spark.options.parser import OptionParser, parse_list

#: Every option and what it does; docs/spark.md lists the same.
WRITE_OPTIONS: Mapping[str, str] = {
    **ADDRESS_OPTIONS,
    "topic": "topic that all rows go to, whatever a column topic says",
    "durability": "fsync (default): acknowledged once the disk has it; or written",
    "maxBatchBytes": "rows are cut into batches of at most so much (default 4m, at most 12m)",
    "maxBatchRows": "and of at most so many rows (default 20000, at most 100000)",
    "createTopic": "true creates a topic that is not there (default false)",
    "sortBy": "columns by which each task sorts its rows before it sends any, commas between",
    "idempotent": "false stores again what is sent again (default true)",
    "txnAppId": "name of a batch write that may be run again; goes with txnVersion",
    "txnVersion": "which of its runs this is, a number that grows; the same one is stored once",
    "checkpointLocation": "Spark's own",
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
        raise InvalidOption("txnAppId", "is for batch writes; a stream has its checkpoint for that")
    if transaction is not None and not is_idempotent:
        raise InvalidOption("txnAppId", "and idempotent=false contradict each other; leave one out")
    return WriteOptions(
        address=parse_address(options),
        topic=options.text("topic"),
        durability=options.one_of("durability", _DURABILITIES, "fsync"),
        max_batch_bytes=options.size("maxBatchBytes", DEFAULT_BATCH_BYTES, maximum=MAX_BATCH_BYTES),
        max_batch_rows=_parse_rows(options),
        create_topic=options.flag("createTopic", False),
        sort_by=tuple(parse_list("sortBy", options.text("sortBy") or "")),
        is_idempotent=is_idempotent,
        transaction=transaction,
    )


def _parse_rows(options: OptionParser) -> int:
    rows = options.count("maxBatchRows") or DEFAULT_BATCH_ROWS
    if rows > MAX_BATCH_ROWS:
        raise InvalidOption("maxBatchRows", f"{rows} is more than {MAX_BATCH_ROWS}")
    return rows


def _parse_transaction(options: OptionParser) -> Transaction | None:
    app_id, version = options.text("txnAppId"), options.number("txnVersion", minimum=0)
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        raise InvalidOption(
            "txnAppId" if app_id is None else "txnVersion",
            "is missing; txnAppId and txnVersion go together",
        )
    if version > MAX_EPOCH:
        raise InvalidOption("txnVersion", f"{version} is more than {MAX_EPOCH}")
    return Transaction(app_id, version)
