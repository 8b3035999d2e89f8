"""Count a topic's messages by tag, in parallel.

    python examples/spark_count_by_tag.py --url http://127.0.0.1:8711 --topic weblog

Needs `pip install 'holdfast[spark]'` and Java 17 or newer.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession

from holdfast.spark import local_session


def count_by_tag(spark: SparkSession, url: str, topic: str) -> DataFrame:
    """Return the columns tag and count, the most frequent tag first."""
    messages = (
        spark.read.format("holdfast")
        .option("url", url)
        .option("topic", topic)
        .option("columns", "tag")  # Spark cannot leave out unused columns of a Python source
        .load()
    )
    return messages.groupBy("tag").count().orderBy("count", ascending=False)


def main() -> None:
    """Count once."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8711")
    parser.add_argument("--topic", required=True)
    given = parser.parse_args()
    spark = local_session()
    count_by_tag(spark, given.url, given.topic).show()
    spark.stop()


if __name__ == "__main__":
    main()
