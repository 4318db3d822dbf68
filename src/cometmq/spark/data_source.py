"""The data sources of ``format("rocketmq")`` and ``format("rocketmq_store")``.

Every Spark session imports this module, so it imports few other modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from cometmq.spark.errors import OptionError, sentence_first

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from cometmq.spark.sink.writer import RocketMQStreamWriter, RocketMQWriter
    from cometmq.spark.source.reader import RocketMQReader
    from cometmq.spark.store.reader import StoreReader


class RocketMQDataSource(DataSource):
    """Reads and writes topics of CometMQ or Apache RocketMQ. ``docs/spark.md`` documents the options and columns."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq"

    @sentence_first()
    def schema(self) -> str:
        """Return the columns that a read returns by default.

        :raises OptionError: an option is unknown or has an invalid value.
        """
        from cometmq.spark.records.columns import default_ddl
        from cometmq.spark.source.options import parse_options

        return default_ddl(body=parse_options(self.options).include_body)

    @sentence_first()
    def reader(self, schema: StructType) -> RocketMQReader:
        """Create the reader for ``spark.read``. The reader pushes down filters if the options and the session
        allow it.
        """
        from cometmq.spark.records.columns import check_schema
        from cometmq.spark.source.options import parse_options
        from cometmq.spark.source.pushdown import asked_for_filters
        from cometmq.spark.source.reader import FilteringReader, RocketMQReader

        check_schema(schema)
        options = parse_options(self.options)
        kind = FilteringReader if options.push_filters and asked_for_filters() else RocketMQReader
        return kind(options, schema)

    @sentence_first()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Create the reader for ``spark.readStream``. Invalid options raise an error when the reader is first used.

        Spark 4.3 would replace any error raised here with an ``UnboundLocalError``.
        """
        from cometmq.spark.records.columns import check_schema
        from cometmq.spark.source.options import parse_options
        from cometmq.spark.source.stream_reader import RocketMQStreamReader, WrongStreamReader

        try:
            check_schema(schema)
            return RocketMQStreamReader(parse_options(self.options), schema)
        except OptionError as error:
            return WrongStreamReader(error)

    @sentence_first()
    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:
        """Create the writer for ``df.write``."""
        from cometmq.spark.sink.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @sentence_first()
    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: N802 (Spark's name)
        """Create the writer for ``df.writeStream``."""
        from cometmq.spark.sink.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


class RocketMQStoreSource(DataSource):
    """Reads the files of a broker's store. The columns are the same as in ``format("rocketmq")``; see
    ``docs/spark.md``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq_store"

    @sentence_first()
    def schema(self) -> str:
        """Return the columns that a read returns by default.

        :raises OptionError: an option is unknown or has an invalid value.
        """
        from cometmq.spark.records.columns import default_ddl
        from cometmq.spark.store.options import parse_store_options

        return default_ddl(body=parse_store_options(self.options).include_body)

    @sentence_first()
    def reader(self, schema: StructType) -> StoreReader:
        """Create the reader for ``spark.read``."""
        from cometmq.spark.records.columns import check_schema
        from cometmq.spark.store.options import parse_store_options
        from cometmq.spark.store.reader import StoreReader

        check_schema(schema)
        return StoreReader(parse_store_options(self.options), schema)
