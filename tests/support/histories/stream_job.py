"""A streaming job in its own driver process, which tests end at chosen moments.

    stream_job.py URL SOURCE SINK CHECKPOINT now|on [STAYS]

It counts the messages of a topic by key, sums the numbers in their bodies, and writes the changes
into another topic. It prints its progress ("writing 3", "written 3", "done"). With "now" it ends
after the messages that exist at its start (availableNow). With "on" it runs until it reads a line
from standard input, and then finishes the existing messages. The batch STAYS never ends: after it
is written, the job waits to be killed, so that the checkpoint never contains this batch.
"""

import sys
import threading
from typing import TYPE_CHECKING

from holdfast.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_OFFSETS = 150_000


def main() -> None:
    url, source, sink, checkpoint, trigger, *stays = sys.argv[1:]
    spark = local_session(
        2,
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")

    def write(changed: "DataFrame", batch: int) -> None:
        print("writing", batch, flush=True)
        rows = changed.selectExpr("key", "concat_ws(' ', messages, total) as body")
        rows.repartition(2, "key").sortWithinPartitions("key").write.format("holdfast").mode(
            "append"
        ).options(url=url, topic=sink, txnAppId="counts", txnVersion=str(batch)).save()
        print("written", batch, flush=True)
        if str(batch) in stays:
            threading.Event().wait()

    counts = (
        spark.readStream.format("holdfast")
        .options(url=url, topic=source, columns="key,body", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", MAX_OFFSETS)
        .load()
        .selectExpr("key", "cast(cast(body as string) as bigint) as number")
        .groupBy("key")
        .agg({"number": "sum", "*": "count"})
        .selectExpr("key", "`count(1)` as messages", "`sum(number)` as total")
    )
    stream = counts.writeStream.outputMode("update").foreachBatch(write)
    stream = stream.option("checkpointLocation", checkpoint)
    if trigger == "now":
        query = stream.trigger(availableNow=True).start()
    else:
        query = stream.start()
        sys.stdin.readline()
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
