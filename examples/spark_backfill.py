r"""Copy what a topic stored in a range of time to Parquet, by day.

    python examples/spark_backfill.py --url http://127.0.0.1:8711 --topic weblog \
        --since 2026-11-01 --until 2026-11-08T12:00 --out weblog-parquet

Times are the broker's store timestamps, in UTC; the end is exclusive. The program first resolves
the range to offsets and saves them next to the output folder, in OUT.offsets.json. A second run
with the same --out writes the same rows, even if more messages were published meanwhile.
Needs `pip install 'holdfast[spark]'` and Java 17 or newer.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import Observation, SparkSession
from pyspark.sql.functions import expr

from holdfast.spark import bind, local_session


def backfill(
    spark: SparkSession, url: str, topic: str, since: datetime, until: datetime, out: Path
) -> int:
    """Write the rows stored from `since` (included) up to `until`, and return their number."""
    kept = Path(f"{out}.offsets.json")
    if not kept.exists():
        bound = bind(
            url,
            topic,
            startingTimestamp=int(since.timestamp() * 1000),
            endingTimestamp=int(until.timestamp() * 1000),
        )
        whole = Path(f"{kept}.new")  # so that an interrupted run leaves no half-written `kept`
        whole.write_text(json.dumps(dict(bound.options), indent=1))
        whole.replace(kept)
    options = json.loads(kept.read_text())
    rows = spark.read.format("holdfast").options(**options).load()
    copied = Observation()
    by_day = rows.selectExpr("*", "to_date(store_timestamp) as day")
    observed = by_day.observe(copied, expr("count(*) as rows"))
    observed.write.mode("overwrite").partitionBy("day").parquet(str(out))
    return int(copied.get["rows"])


def utc(text: str) -> datetime:
    """Parse a time in ISO format. If the text has no time zone, it is in UTC."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def main() -> None:
    """Copy one range."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8711")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--since", type=utc, required=True, help="such as 2026-11-01 or ...T12:00")
    parser.add_argument("--until", type=utc, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the Parquet files")
    given = parser.parse_args()
    spark = local_session()
    count = backfill(spark, given.url, given.topic, given.since, given.until, given.out)
    print(f"{count} rows in {given.out}")
    spark.stop()


if __name__ == "__main__":
    main()
