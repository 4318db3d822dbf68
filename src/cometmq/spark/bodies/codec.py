"""Body codecs, and the functions that apply them to a column, one Arrow batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq.spark.errors import BadBodyError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"


def is_permissive(mode: str) -> bool:
    """Return True if an invalid body becomes null instead of failing the query. The modes are the same as in
    ``from_json``.

    :raises OptionError: the mode is neither PERMISSIVE nor FAILFAST.
    """
    folded = mode.upper()
    if folded == "DROPMALFORMED":
        raise OptionError(
            "mode DROPMALFORMED is not possible: a column cannot drop rows",
            next_step="use PERMISSIVE, and .where('… IS NOT NULL')",
        )
    if folded not in (PERMISSIVE, FAILFAST):
        raise OptionError(f"mode must be {PERMISSIVE} or {FAILFAST}, not {mode!r}")
    return folded == PERMISSIVE


class Codec(Protocol):
    """A codec for one schema in one format. It is pickled for the executors."""

    @property
    def name(self) -> str:
        """Return the format and the type, for example ``Avro shop.Order``."""

    @property
    def spark_type(self) -> DataType:
        """Return the Spark type of the decoded values."""

    def decode(self, body: bytes) -> Any:
        """Decode a body into a value that Arrow can convert.

        :raises Exception: the body does not match the schema.
        """

    def encode(self, value: Any) -> bytes:
        """Encode an Arrow value as a body.

        :raises Exception: the value does not match the schema.
        """


def decoded(codec: Codec, body: Column | str, *, called: str, mode: str, with_reason: bool) -> Column:
    """Decode a column into values or, with ``with_reason``, into ``struct<value, reason>``. Query plans show the name
    ``called``.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    permissive = is_permissive(mode)
    value_type = codec.spark_type

    def run(bodies: pa.Array) -> pa.Array:
        import pyarrow as pa

        decodings, reasons = _each(bodies, codec.decode)
        found, reasons = _converted(decodings, reasons, to_arrow_type(value_type, timezone="UTC"))
        _demand(permissive, codec, "decoded", reasons)
        if not with_reason:
            return found
        return pa.StructArray.from_arrays([found, pa.array(reasons, pa.string())], ["value", "reason"])

    result = value_type
    if with_reason:
        result = StructType([StructField("value", value_type), StructField("reason", StringType())])
    column = f.col(body) if isinstance(body, str) else body
    values: Column = arrow_udf(_named(run, called), result)(column.cast("binary"))  # type: ignore[call-overload]
    return values


def encoded(codec: Codec, value: Column | str, *, called: str, mode: str) -> Column:
    """Encode a column into bodies. Query plans show the name ``called``."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import BinaryType

    permissive = is_permissive(mode)

    def run(values: pa.Array) -> pa.Array:
        import pyarrow as pa

        encodings, reasons = _each(values, codec.encode)
        _demand(permissive, codec, "encoded", reasons)
        return pa.array(encodings, pa.binary())

    column = f.col(value) if isinstance(value, str) else value
    bodies: Column = arrow_udf(_named(run, called), BinaryType())(column)  # type: ignore[call-overload]
    return bodies


def _named(run: Callable[[pa.Array], pa.Array], called: str) -> Callable[[pa.Array], pa.Array]:
    """Set the function's name and its annotations, which Spark needs as types and not as text."""
    import pyarrow as pa

    run.__name__ = called
    run.__annotations__ = dict.fromkeys([*run.__annotations__], pa.Array)
    return run


def _each(column: pa.Array, convert: Callable[[Any], Any]) -> tuple[list[Any], list[str | None]]:
    values: list[Any] = []
    reasons: list[str | None] = []
    for item in column.to_pylist(maps_as_pydicts="strict"):
        value, reason = None, None
        if item is not None:
            try:
                value = convert(item)
            except Exception as error:  # codecs may raise any exception on bytes of another format
                reason = _reason(error)
        values.append(value)
        reasons.append(reason)
    return values, reasons


def _converted(values: list[Any], reasons: list[str | None], kind: pa.DataType) -> tuple[pa.Array, list[str | None]]:
    """Convert values to Arrow. A value that does not fit the type also counts as invalid."""
    import pyarrow as pa

    try:
        return pa.array(values, kind), reasons
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        values, reasons = list(values), list(reasons)
        for at, value in enumerate(values):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                values[at], reasons[at] = None, _reason(error)
        return pa.array(values, kind), reasons


def _demand(permissive: bool, codec: Codec, done: str, reasons: list[str | None]) -> None:
    reason = None if permissive else next((reason for reason in reasons if reason is not None), None)
    if reason is not None:
        raise BadBodyError(
            f"a row cannot be {done} as {codec.name}: {reason}", next_step="use mode PERMISSIVE to get null instead"
        )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
