"""The data source that ``format("rocketmq")`` finds; light to import, since Spark imports it with every session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from cometmq.spark.readers import RocketMQReader
    from cometmq.spark.sink.writers import RocketMQStreamWriter, RocketMQWriter
    from cometmq.spark.stream_reader import RocketMQStreamReader


class RocketMQDataSource(DataSource):
    """Topics of CometMQ or Apache RocketMQ to read and to write; options and columns are in ``docs/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq"

    def schema(self) -> str:
        """Return the columns that a read has unasked.

        :raises OptionError: an option is unknown or has a bad value.
        """
        from cometmq.spark.columns import default_ddl
        from cometmq.spark.options import parse_options

        return default_ddl(body=parse_options(self.options).include_body)

    def reader(self, schema: StructType) -> RocketMQReader:
        """Make the reader of ``spark.read``; one with ``pushFilters`` where it is asked for and Spark allows it."""
        from cometmq.spark.options import parse_options
        from cometmq.spark.pushdown import asked_for_filters
        from cometmq.spark.readers import FilteringReader, RocketMQReader

        check_columns(schema)
        options = parse_options(self.options)
        kind = FilteringReader if options.push_filters and asked_for_filters() else RocketMQReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802 (Spark's name)
        """Make the reader of ``spark.readStream``."""
        from cometmq.spark.options import parse_options
        from cometmq.spark.stream_reader import RocketMQStreamReader

        check_columns(schema)
        return RocketMQStreamReader(parse_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:
        """Make the writer of ``df.write``."""
        from cometmq.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: N802 (Spark's name)
        """Make the writer of ``df.writeStream``."""
        from cometmq.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)


def check_columns(schema: StructType) -> None:
    """Demand that every column of a schema is one of a message.

    :raises OptionError: one is not, or has another type.
    """
    from cometmq.spark.columns import check_schema

    check_schema((field.name, field.dataType.simpleString()) for field in schema.fields)
