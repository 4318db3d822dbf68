"""The data sources of ``format("rocketmq")`` and ``format("rocketmq_store")``.

This module imports little, since every Spark session imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from cometmq.spark.sink.writer import RocketMQStreamWriter, RocketMQWriter
    from cometmq.spark.source.reader import RocketMQReader
    from cometmq.spark.source.stream_reader import RocketMQStreamReader
    from cometmq.spark.store.reader import StoreReader


class RocketMQDataSource(DataSource):
    """Reads and writes topics of CometMQ or Apache RocketMQ; options and columns are in ``docs/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq"

    def schema(self) -> str:
        """Return the columns that a read has by default.

        :raises OptionError: an option is unknown or has a bad value.
        """
        from cometmq.spark.records.columns import default_ddl
        from cometmq.spark.source.options import parse_options

        return default_ddl(body=parse_options(self.options).include_body)

    def reader(self, schema: StructType) -> RocketMQReader:
        """Make the reader of ``spark.read``; it takes filters where option and session allow that."""
        from cometmq.spark.records.columns import check_schema
        from cometmq.spark.source.options import parse_options
        from cometmq.spark.source.pushdown import asked_for_filters
        from cometmq.spark.source.reader import FilteringReader, RocketMQReader

        check_schema(schema)
        options = parse_options(self.options)
        kind = FilteringReader if options.push_filters and asked_for_filters() else RocketMQReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802 (Spark's name)
        """Make the reader of ``spark.readStream``."""
        from cometmq.spark.records.columns import check_schema
        from cometmq.spark.source.options import parse_options
        from cometmq.spark.source.stream_reader import RocketMQStreamReader

        check_schema(schema)
        return RocketMQStreamReader(parse_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:
        """Make the writer of ``df.write``."""
        from cometmq.spark.sink.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: N802 (Spark's name)
        """Make the writer of ``df.writeStream``."""
        from cometmq.spark.sink.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


class RocketMQStoreSource(DataSource):
    """Reads the files of a broker's store, with the columns of ``format("rocketmq")``; see ``docs/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq_store"

    def schema(self) -> str:
        """Return the columns that a read has by default.

        :raises OptionError: an option is unknown or has a bad value.
        """
        from cometmq.spark.records.columns import default_ddl
        from cometmq.spark.store.options import parse_store_options

        return default_ddl(body=parse_store_options(self.options).include_body)

    def reader(self, schema: StructType) -> StoreReader:
        """Make the reader of ``spark.read``."""
        from cometmq.spark.records.columns import check_schema
        from cometmq.spark.store.options import parse_store_options
        from cometmq.spark.store.reader import StoreReader

        check_schema(schema)
        return StoreReader(parse_store_options(self.options), schema)
