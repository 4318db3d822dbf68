"""The data source that ``format("rocketmq_store")`` finds; light to import, since every Spark session imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from cometmq.spark.source import check_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from cometmq.spark.store_reader import StoreReader


class RocketMQStoreSource(DataSource):
    """The files of a broker's store as a table, with the columns of ``format("rocketmq")``; see ``docs/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq_store"

    def schema(self) -> str:
        """Return the columns that a read has unasked.

        :raises OptionError: an option is unknown or has a bad value.
        """
        from cometmq.spark.columns import default_ddl
        from cometmq.spark.store_options import parse_store_options

        return default_ddl(body=parse_store_options(self.options).include_body)

    def reader(self, schema: StructType) -> StoreReader:
        """Make the reader of ``spark.read``."""
        from cometmq.spark.store_options import parse_store_options
        from cometmq.spark.store_reader import StoreReader

        check_columns(schema)
        return StoreReader(parse_store_options(self.options), schema)
