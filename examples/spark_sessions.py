r"""Follow an access log and publish each visitor's sessions to another topic, as they end.

    holdfast publish weblog access.log --key-regex '^(\S+)' --tag-regex '" (\d{3}) '
    python examples/spark_sessions.py --url http://127.0.0.1:8711 --topic weblog --to sessions \
        --checkpoint sessions-checkpoint
    holdfast pull sessions --max 5

The messages are lines of an access log in Apache's format, keyed by the visitor's address. A
session ends when no line follows for --gap, by the times in the log. It is published as JSON under
the visitor's key. The stream ends when it has read all messages; with --follow it waits for more.
A second run with the same --checkpoint continues where the first run ended, and publishes no
session twice: Spark repeats an interrupted batch, and the broker detects the repetition.
Needs `pip install 'holdfast[spark]'` and Java 17 or newer.
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import session_window
from pyspark.sql.streaming import StreamingQuery

from holdfast.spark import local_session

TIME = r"to_timestamp(regexp_extract(string(body), '\\[([^]]+)]', 1), 'dd/MMM/yyyy:HH:mm:ss Z')"


def publish_sessions(
    spark: SparkSession,
    url: str,
    topic: str,
    to: str,
    checkpoint: Path,
    *,
    gap: str = "30 minutes",
    follow: bool = False,
) -> StreamingQuery:
    """Start the stream and return it. Without `follow`, the stream ends when it has read all
    messages."""
    lines = (
        spark.readStream.format("holdfast")
        .option("url", url)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("columns", "key,body")
        .load()
    )
    writer = (
        sessions(lines, gap)
        .writeStream.format("holdfast")
        .option("url", url)
        .option("topic", to)
        .option("createTopic", True)
        # groupBy leaves the order undefined, and a repeated batch must have the same order.
        .option("sortBy", "key,body")
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
    )
    trigger = {"processingTime": "5 seconds"} if follow else {"availableNow": True}
    return writer.trigger(**trigger).start()


def sessions(lines: DataFrame, gap: str) -> DataFrame:
    """Return the sessions, with the columns key and body. `lines` has the columns key and body,
    too."""
    timed = lines.selectExpr("key", f"{TIME} as time").where("key is not null")
    by_visitor = timed.withWatermark("time", gap).groupBy(
        "key", session_window("time", gap).alias("session")
    )
    return by_visitor.count().selectExpr(
        "key", "to_json(struct(session.start, session.end, count as lines)) as body"
    )


def main() -> None:
    """Run the stream."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8711")
    parser.add_argument("--topic", default="weblog")
    parser.add_argument("--to", default="sessions", help="topic for the sessions")
    parser.add_argument("--gap", default="30 minutes", help="silence that ends a session")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder that remembers")
    parser.add_argument("--follow", action="store_true", help="wait for more lines")
    given = parser.parse_args()
    spark = local_session(settings={"spark.sql.shuffle.partitions": "4"})
    publish_sessions(
        spark,
        given.url,
        given.topic,
        given.to,
        given.checkpoint,
        gap=given.gap,
        follow=given.follow,
    ).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
