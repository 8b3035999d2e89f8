"""Count a topic's messages by tag, in parallel.

    python examples/spark_count_by_tag.py http://127.0.0.1:8711 access-log

Needs `pip install 'holdfast[spark]'` and Java 17 or newer.
"""

import sys

from holdfast.spark import local_session

url, topic = sys.argv[1:]

spark = local_session()
messages = (
    spark.read.format("holdfast")
    .option("url", url)
    .option("topic", topic)
    .option("columns", "tag")  # Spark cannot prune columns of its own accord: ask for few
    .load()
)
messages.groupBy("tag").count().orderBy("count", ascending=False).show()
spark.stop()
