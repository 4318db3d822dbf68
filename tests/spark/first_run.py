"""A driver that does a little of everything, for the archive of classes that its JVM writes when it ends."""

from __future__ import annotations

import tempfile
from pathlib import Path


def main() -> None:
    """Run a batch and a stream, with Python workers, and wait for the end of the JVM."""
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as directory:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.eventLog.enabled", "true")
            .config("spark.eventLog.dir", Path(directory).as_uri())
            .getOrCreate()
        )
        numbers = spark.range(100).selectExpr(
            "id", "id % 7 AS rest", "CAST(CAST(id AS STRING) AS BINARY) AS body", "map('k', 'v') AS m"
        )
        numbers.write.partitionBy("rest").parquet(f"{directory}/batch")
        numbers.mapInArrow(lambda batches: batches, numbers.schema).groupBy("rest").count().orderBy("rest").collect()
        stream = spark.readStream.schema(numbers.schema).parquet(f"{directory}/batch").writeStream
        stream = stream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
        stream.start(f"{directory}/stream", format="parquet").awaitTermination()
        spark.read.parquet(f"{directory}/stream").join(numbers, "id").count()
        spark.sql("SELECT explode(array(1, 2)) AS n").createOrReplaceTempView("n")
        spark.sql("SELECT count(*), max(n) FROM n WHERE n > 1").toPandas()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    main()
