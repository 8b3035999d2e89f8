r"""Count a web server's answers by hour and status, each run only what is new since the last.

    holdfast publish weblog access.log --key-regex '^(\S+)' --tag-regex '" (\d{3}) '
    python examples/spark_hourly_status.py --url http://127.0.0.1:8711 --topic weblog --out hourly

The messages are lines of an access log in Apache's format, tagged with their status. Where a run
begins is what the group --group has stored; it is moved once the run's counts are on the disk. A
run that fails before that is made again from the same offsets, and its counts replace what it
left: each line is counted once. Needs `pip install 'holdfast[spark]'` and Java 17 or newer.
"""

import argparse
import hashlib
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from holdfast.spark import bind, local_session

TIME = r"to_timestamp(regexp_extract(string(body), '\\[([^]]+)]', 1), 'dd/MMM/yyyy:HH:mm:ss Z')"


def count_new_lines(spark: SparkSession, url: str, topic: str, group: str, out: Path) -> int:
    """Add the counts of what the group has not seen to `out`; return how many lines that was."""
    bound = bind(url, topic, group=group, columns="tag,body")
    (bound_topic,) = bound.topics
    ranges = bound_topic.ranges
    new = sum(end - start for start, end in ranges.values())
    if new:
        # Named by where the run begins: if it fails below and is repeated, it writes here again.
        # The topic's id tells it from one that is made under the name later, and begins at 0, too.
        starts = {queue: start for queue, (start, _) in sorted(ranges.items())}
        begins = f"{group} {bound_topic.topic_id} {starts}"
        run = hashlib.sha256(begins.encode()).hexdigest()[:16]
        counts = by_hour_and_status(bound.load(spark))
        counts.coalesce(1).write.mode("overwrite").parquet(str(out / f"run={run}"))
        bound.save()  # after the work is done, never before
    return new


def by_hour_and_status(lines: DataFrame) -> DataFrame:
    """Return the counts of a DataFrame with the columns tag and body."""
    return (
        lines.selectExpr(f"date_trunc('HOUR', {TIME}) as hour", "tag as status")
        .groupBy("hour", "status")
        .count()
    )


def totals(spark: SparkSession, out: Path) -> DataFrame:
    """Return the counts of all runs together, by hour and status."""
    runs = spark.read.option("basePath", str(out)).parquet(str(out))
    return runs.groupBy("hour", "status").agg({"count": "sum"}).toDF("hour", "status", "count")


def main() -> None:
    """Run once, and show the hours so far."""
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
