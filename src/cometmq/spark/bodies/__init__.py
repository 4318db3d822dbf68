"""Column functions that decode and encode bodies as text, JSON, Avro and Protobuf; no jars are needed.

``frame.select(from_avro("body", schema).alias("order"))``. See ``docs/spark-bodies.md``. Text and JSON use Spark's own
expressions, which run in the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.spark.bodies.avro import from_avro, to_avro
from cometmq.spark.bodies.codec import FAILFAST, PERMISSIVE, is_permissive
from cometmq.spark.bodies.protobuf import from_protobuf, to_protobuf

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import ArrayType, MapType, StructType

__all__ = ["as_json", "as_text", "from_avro", "from_protobuf", "to_avro", "to_protobuf"]


def as_text(body: Column | str, *, mode: str = PERMISSIVE) -> Column:
    """Decode bodies as UTF-8. An invalid body becomes null. With ``mode="FAILFAST"``, it fails the query.

    :raises OptionError: the mode is unknown.
    """
    from pyspark.sql import functions as f

    permissive = is_permissive(mode)
    text = (f.col(body) if isinstance(body, str) else body).cast("string")
    return f.try_validate_utf8(text) if permissive else f.validate_utf8(text)


def as_json(
    body: Column | str, schema: StructType | ArrayType | MapType | str | None = None, *, mode: str = PERMISSIVE
) -> Column:
    """Parse bodies as JSON. The result is a VARIANT or, with a schema (DDL or a Spark type), a value of that type.

    A body that is not JSON becomes null (if there is a schema, null in every field). With ``mode="FAILFAST"``, it fails
    the query.

    :raises OptionError: the mode is unknown.
    """
    from pyspark.sql import functions as f

    permissive = is_permissive(mode)
    text = as_text(body, mode=mode)
    if schema is not None:
        return f.from_json(text, schema, {"mode": PERMISSIVE if permissive else FAILFAST})
    return f.try_parse_json(text) if permissive else f.parse_json(text)
