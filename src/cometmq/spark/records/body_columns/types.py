"""Types of columns: as text in Spark's notation (``bigint``, ``struct<sku:string>``), and as Arrow types."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from cometmq.archive.commits import BodyColumn
from cometmq.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

_TOKEN: Final = re.compile(r"\s*(?:`([^`]+)`|([\w.$-]+)|([<>(),:]))")
_NAMES: Final = {
    "boolean": "bool_",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "float": "float32",
    "real": "float32",
    "double": "float64",
    "string": "string",
    "binary": "binary",
    "date": "date32",
}
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_PRECISION_MAX: Final = 38
DEPTH_MAX: Final = 16
"""Maximum number of types inside each other."""
COLUMNS_MAX: Final = 1000
"""Maximum number of columns and nested fields of a table. More of them make every reader slow."""
NAME_MAX: Final = 200
"""Maximum number of characters in a column's name."""


def parse_columns(ddl: str) -> tuple[BodyColumn, ...]:
    """Parse columns such as ``id bigint, items array<struct<sku:string>>``.

    :raises OptionError: the text is not a list of columns, or a type is unknown.
    """
    reader = _Reader(ddl)
    fields = reader.fields("")
    names = [field.name.casefold() for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise reader.error(f"column {name} appears twice")
    return columns_of(fields)


@lru_cache(maxsize=4096)
def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type for a type's text.

    :raises OptionError: the type is unknown.
    """
    reader = _Reader(text)
    found = reader.type(0)
    reader.expect("")
    return found


def type_text(kind: pa.DataType) -> str:
    """Return the text of an Arrow type."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{_quoted(field.name)}:{type_text(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)},{type_text(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    return next(name for name, factory in _NAMES.items() if kind == getattr(pa, factory)())


def columns_of(fields: Iterable[pa.Field]) -> tuple[BodyColumn, ...]:
    """Return columns from Arrow fields."""
    return tuple(BodyColumn(field.name, type_text(field.type)) for field in fields)


def arrow_fields(columns: Iterable[BodyColumn]) -> list[pa.Field]:
    """Return the Arrow fields of columns."""
    import pyarrow as pa

    return [pa.field(column.name, arrow_type(column.type)) for column in columns]


def ddl_of(columns: Iterable[BodyColumn]) -> str:
    """Return columns as Spark DDL."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def leaves(kind: pa.DataType) -> int:
    """Return the number of fields in a type that contain no other fields."""
    if not kind.num_fields:
        return 1
    return sum(leaves(kind.field(index).type) for index in range(kind.num_fields))


def is_usable_name(name: str) -> bool:
    """Return True if all catalogs and engines can use a name."""
    return 0 < len(name) <= NAME_MAX and not {"`", "."} & {*name} and name.isprintable() and name.strip() == name


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name}`"


class _Reader:
    """Reads the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._quoted = False

    def error(self, reason: str) -> OptionError:
        return OptionError(
            f"invalid columns: {reason}",
            next_step="write them as in: id bigint, paid boolean, items array<struct<sku:string,count:int>>; types are "
            f"{', '.join(sorted(set(_NAMES) - {'integer', 'long', 'real'}))}, timestamp, timestamp_ntz, decimal(p,s), "
            "array<…>, map<string,…> and struct<…>",
        )

    def fields(self, end: str, depth: int = 0) -> list[pa.Field]:
        import pyarrow as pa

        found: list[pa.Field] = []
        while True:
            name = self._next()
            if (not self._quoted and not _PLAIN_NAME.fullmatch(name)) or not is_usable_name(name):
                raise self.error(f"{name or 'the end'} is not a name" if name != end else "a column is missing")
            if self._peek() == ":":
                self._next()
            found.append(pa.field(name, self.type(depth)))
            if len(found) > COLUMNS_MAX:
                raise self.error(f"there are more than {COLUMNS_MAX:,}")
            following = self._next()
            if following == end:
                return found
            if following != ",":
                raise self.error(f"{following or 'the end'} follows column {name}")

    def type(self, depth: int) -> pa.DataType:
        import pyarrow as pa

        if depth > DEPTH_MAX:
            raise self.error(f"there are more than {DEPTH_MAX} types inside each other")
        name = self._next().lower()
        if name in _NAMES:
            return getattr(pa, _NAMES[name])()
        if name == "timestamp":
            return pa.timestamp("us", tz="UTC")
        if name == "timestamp_ntz":
            return pa.timestamp("us")
        if name == "decimal":
            return self._decimal()
        if name in ("array", "map", "struct"):
            self.expect("<")
            if name == "struct":
                return pa.struct(self.fields(">", depth + 1))
            first = self.type(depth + 1)
            if name == "map":
                if first != pa.string():
                    raise self.error("the keys of a map must be strings")
                self.expect(",")
                first = pa.map_(first, self.type(depth + 1))
            else:
                first = pa.list_(first)
            self.expect(">")
            return first
        raise self.error(f"there is no type {name or 'at the end'}")

    def _decimal(self) -> pa.DataType:
        import pyarrow as pa

        self.expect("(")
        precision = self._next()
        self.expect(",")
        scale = self._next()
        self.expect(")")
        if not (precision.isdecimal() and scale.isdecimal() and int(scale) <= int(precision) <= _PRECISION_MAX):
            raise self.error(f"decimal({precision},{scale}) has no such digits")
        return pa.decimal128(int(precision), int(scale))

    def expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise self.error(f"{found or 'the end'} stands in place of {token or 'the end'}")

    def _peek(self) -> str:
        at, found = self._at, self._next()
        self._at = at
        return found

    def _next(self) -> str:
        if not self._text[self._at :].strip():
            self._quoted = False
            return ""
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self.error(f"{self._text[self._at :][:20]!r} is not part of a column")
        self._at = match.end()
        self._quoted = match[1] is not None
        return match[1] or match[2] or match[3]
