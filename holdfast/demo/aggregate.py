"""The demonstration's Spark job: count and average over an offset range of a topic."""

import json
from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text


def missing_for_spark() -> str | None:
    """Return a sentence that says what must be installed for Spark, or None."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed (pip install 'holdfast[spark]')."
    from holdfast.spark import JavaMissing, require_java

    try:
        require_java()
    except JavaMissing as error:
        return str(error)
    return None


def aggregate_with_spark(
    url: str, topic: str, starting_offsets: dict[int, int], *, is_reading: bool
) -> Table:
    """Read a topic from the given offsets to its end, and aggregate by key. The average is that of
    the field "value" if the messages are readings, otherwise that of the messages' sizes. Return
    the 12 keys with the most messages, beginning with the largest number."""
    from pyspark.sql import functions as f

    from holdfast.spark import local_session

    spark = local_session()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        messages = (
            spark.read.format("holdfast")
            .option("url", url)
            .option("topic", topic)
            .option("startingOffsets", json.dumps(starting_offsets))
            .load()
        )
        value = f.get_json_object(f.col("body").cast("string"), "$.value").cast("double")
        size = f.octet_length("body")
        rows = (
            messages.groupBy("key")
            .agg(
                f.count("*").alias("messages"),
                f.min("offset").alias("first"),
                f.max("offset").alias("last"),
                f.avg(value if is_reading else size).alias("average"),
            )
            .orderBy(f.desc("messages"), "key")
            .limit(12)
            .collect()
        )
        total = messages.count()
    finally:
        spark.stop()
    title = f"{total:,} messages from offsets {json.dumps(starting_offsets)} on"
    return make_table(rows, title, is_reading=is_reading)


def make_table(rows: Iterable[Any], title: str, *, is_reading: bool) -> Table:
    """Return Spark's rows as a table. Keys are shown without markup."""
    table = Table(
        "key",
        "messages",
        "first offset",
        "last offset",
        "average value" if is_reading else "average bytes",
        title=title,
        title_justify="left",
        box=None,
    )
    for row in rows:
        table.add_row(
            Text(row["key"] or ""),
            f"{row['messages']:,}",
            f"{row['first']:,}",
            f"{row['last']:,}",
            f"{row['average'] or 0:,.1f}",
        )
    return table
