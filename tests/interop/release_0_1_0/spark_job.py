"""A Spark job that uses the data source of 0.1.0, submitted with `--py-files`: arguments URL TOPIC.

It reads a range of offsets, writes it with changes to TOPIC.written, and prints what it saw.
"""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import holdfast
from holdfast.spark import register


def main(url: str, topic: str) -> dict[str, Any]:
    spark = SparkSession.builder.appName("0.1.0").getOrCreate()
    register(spark)
    count = spark.read.format("holdfast").options(url=url, topic=topic).load().count()
    part = (
        spark.read.format("holdfast")
        .options(url=url, topic=topic)
        .option("startingOffsets", json.dumps({"0": 10, "1": 20}))
        .option("endingOffsets", json.dumps({"0": 40, "1": 30}))
        .option("minPartitions", "2")
        .load()
    )
    rows = part.selectExpr("queue", "offset", "string(body) as body", "key", "tag").collect()
    (
        part.selectExpr("key", "concat('again ', string(body)) as body", "queue")
        .write.format("holdfast")
        .mode("append")
        .option("url", url)
        .option("topic", f"{topic}.written")
        .option("createTopic", "true")
        .save()
    )
    where = spark.sparkContext.parallelize([0], 1).map(_file_of_the_package).collect()
    return {
        "version": holdfast.__version__,
        "files": [holdfast.__file__, *where],
        "count": count,
        "rows": sorted([*row] for row in rows),
    }


def _file_of_the_package(_: int) -> str:
    import holdfast

    return holdfast.__file__


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
