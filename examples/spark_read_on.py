"""Read what a consumer group has not read yet, and remember how far that was.

    python examples/spark_read_on.py http://127.0.0.1:8711 access-log nightly

Run it again and it reads only what was published in between. If it fails before `save`, the
next run reads the same messages once more.
"""

import sys

from holdfast.spark import bind, local_session

url, topic, group = sys.argv[1:]

spark = local_session()
bound = bind(url, topic, group=group, columns="queue,key,body")
for name, queues in bound.offsets.items():
    print(name, dict(queues))  # noqa: T201  an example may

messages = bound.load(spark)
messages.selectExpr("count(*) as messages", "count(distinct key) as keys").show()

bound.save()  # after the work is done, never before
spark.stop()
