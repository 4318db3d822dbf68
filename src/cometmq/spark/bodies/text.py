"""Bodies that are text or JSON: expressions of Spark itself, which run in the JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.spark.bodies.modes import FAILFAST, PERMISSIVE, is_permissive

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import ArrayType, MapType, StructType


def as_text(body: Column | str, *, mode: str = PERMISSIVE) -> Column:
    """The text of bodies in UTF-8; what is no UTF-8 gives null, with ``mode="FAILFAST"`` it fails the query.

    :raises OptionError: the mode is unknown.
    """
    from pyspark.sql import functions as f

    permissive = is_permissive(mode)
    text = (f.col(body) if isinstance(body, str) else body).cast("string")
    return f.try_validate_utf8(text) if permissive else f.validate_utf8(text)


def as_json(
    body: Column | str, schema: StructType | ArrayType | MapType | str | None = None, *, mode: str = PERMISSIVE
) -> Column:
    """The value of bodies in JSON: a VARIANT or, with a schema (DDL or a type of Spark), columns of these types.

    What is no JSON gives null (with a schema: null in every field), with ``mode="FAILFAST"`` it fails the query.

    :raises OptionError: the mode is unknown.
    """
    from pyspark.sql import functions as f

    permissive = is_permissive(mode)
    text = as_text(body, mode=mode)
    if schema is not None:
        return f.from_json(text, schema, {"mode": PERMISSIVE if permissive else FAILFAST})
    return f.try_parse_json(text) if permissive else f.parse_json(text)
