r"""Count a web server's responses by hour and status; each run counts only new messages.

    holdfast publish weblog access.log --key-regex '^(\S+)' --tag-regex '" (\d{3}) '
    python examples/spark_hourly_status.py --url http://127.0.0.1:8711 --topic weblog --out hourly

The messages are lines of an access log in Apache's format, tagged with their status. A run begins
at the offsets that the group --group has stored, and stores new offsets after its counts are on the
disk. If a run fails before it stores them, the next run begins at the same offsets and replaces the
counts of the failed run, so each line is counted once. Needs `pip install 'holdfast[spark]'` and
Java 17 or newer.
"""

import argparse
import hashlib
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from holdfast.spark import bind, local_session

TIME = r"to_timestamp(regexp_extract(string(body), '\\[([^]]+)]', 1), 'dd/MMM/yyyy:HH:mm:ss Z')"


def count_new_lines(spark: SparkSession, url: str, topic: str, group: str, out: Path) -> int:
    """Count the lines that are new to the group, add the counts to `out`, and return the number of
    lines."""
    bound = bind(url, topic, group=group, columns="tag,body")
    (bound_topic,) = bound.topics
    ranges = bound_topic.ranges
    new = sum(end - start for start, end in ranges.values())
    if new:
        # The name contains the offsets where the run begins: a repeated run writes to the same
        # folder. The topic's id distinguishes the topic from a later topic of the same name, whose
        # offsets begin at 0, too.
        starts = {queue: start for queue, (start, _) in sorted(ranges.items())}
        begins = f"{group} {bound_topic.topic_id} {starts}"
        run = hashlib.sha256(begins.encode()).hexdigest()[:16]
        counts = by_hour_and_status(bound.load(spark))
        counts.coalesce(1).write.mode("overwrite").parquet(str(out / f"run={run}"))
        bound.save()  # only now: if a run fails before this, the next run repeats it
    return new


def by_hour_and_status(lines: DataFrame) -> DataFrame:
    """Return the number of lines by hour and status; `lines` has the columns tag and body."""
    return (
        lines.selectExpr(f"date_trunc('HOUR', {TIME}) as hour", "tag as status")
        .groupBy("hour", "status")
        .count()
    )


def totals(spark: SparkSession, out: Path) -> DataFrame:
    """Return the sums of the counts of all runs, by hour and status."""
    runs = spark.read.option("basePath", str(out)).parquet(str(out))
    return runs.groupBy("hour", "status").agg({"count": "sum"}).toDF("hour", "status", "count")


def main() -> None:
    """Run once, and show the counts by hour."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8711")
    parser.add_argument("--topic", default="weblog")
    parser.add_argument("--group", default="hourly")
    parser.add_argument("--out", type=Path, default=Path("hourly"), help="folder for the counts")
    given = parser.parse_args()
    spark = local_session()
    new = count_new_lines(spark, given.url, given.topic, given.group, given.out)
    print(f"{new} new lines")
    if given.out.exists():
        totals(spark, given.out).orderBy("hour", "status").show(100, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
