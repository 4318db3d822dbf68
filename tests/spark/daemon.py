"""Spark's Python daemon with what its workers need imported already: each is forked for one step of one query."""

import importlib

from pyspark.daemon import manager

for module in ("pandas", "pyarrow.parquet", "pyspark.worker", "cometmq.spark.data_source"):
    importlib.import_module(module)

if __name__ == "__main__":
    manager()
