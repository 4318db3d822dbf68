"""The Spark columns of a RocketMQ message: their names, types and meanings.

A reader decodes only the columns of its schema: ``.schema("topic string, queueOffset bigint")`` avoids decoding the
other columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cometmq.options import nearest
from cometmq.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BODY_COLUMNS: Final = frozenset({"body"})
"""Columns that need the decompressed body."""

MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type as Spark DDL, whether reads return it by default, and its meaning."""

    name: str
    type: str
    default: bool
    doc: str


COLUMNS: Final = (
    Column("topic", "string", True, "topic of the message"),
    Column("brokerName", "string", True, "broker that stores the message"),
    Column("queueId", "int", True, "queue within topic and broker"),
    Column("queueOffset", "bigint", True, "position in the queue; gaps are normal if messages are filtered"),
    Column("msgId", "string", True, "offset id: store host and position in the commit log, hex"),
    Column("uniqKey", "string", True, "id from the producer (property UNIQ_KEY)"),
    Column("tags", "string", True, "tag (property TAGS)"),
    Column("keys", "string", True, "index keys, separated by spaces (property KEYS)"),
    Column("body", "binary", True, "body, decompressed"),
    Column("properties", "map<string,string>", True, "all properties"),
    Column("flag", "int", True, "the application's own flag"),
    Column("sysFlag", "int", True, "RocketMQ's flag bits: compression, transaction, IPv6 hosts"),
    Column("bornTimestamp", "timestamp", True, "time when the producer created the message (UTC)"),
    Column("bornHost", "string", True, "address of the producer, ip:port"),
    Column("storeTimestamp", "timestamp", True, "time when the broker stored the message (UTC)"),
    Column("storeHost", "string", True, "address of the broker, ip:port"),
    Column("reconsumeTimes", "int", True, "number of times that consumers sent the message back"),
    Column("preparedTransactionOffset", "bigint", True, "commit log position of the half message, otherwise 0"),
    Column("physicalOffset", "bigint", True, "position in the broker's commit log, bytes"),
    Column("storeSize", "int", True, "size of the stored record, bytes"),
    Column("bodyCrc", "int", True, "CRC32 of the stored body, 31 bits"),
    Column("storedBody", "binary", False, "stored body if it is compressed, otherwise null"),
    Column("propertiesText", "string", False, "properties as stored: name 0x01 value 0x02 …"),
    Column("delayLevel", "int", False, "delay level of the message (property DELAY)"),
    Column("deliverTimestamp", "timestamp", False, "due time of a delayed message (property TIMER_DELIVER_MS)"),
    Column("priority", "int", False, "priority of the message (property _SYS_MSG_PRIORITY_)"),
    Column("expireTimestamp", "timestamp", False, "end of the message's life (property COMETMQ_EXPIRES_MS)"),
    Column("transactionType", "string", False, "COMMIT for a message of a transaction, otherwise null"),
    Column("producerGroup", "string", False, "group of a transaction's producer (property PGROUP)"),
)

DERIVED: Final = frozenset(
    {"delayLevel", "deliverTimestamp", "priority", "expireTimestamp", "transactionType", "producerGroup"}
)
"""Columns that can be derived from properties or sysFlag. An archive does not contain them."""

BY_NAME: Final = {column.name: column for column in COLUMNS}

ARCHIVE_COLUMNS: Final = tuple(column.name for column in COLUMNS if column.name not in DERIVED)
"""Columns from which a record can be rebuilt, byte for byte."""

ARCHIVE_DDL: Final = ", ".join(f"{name} {BY_NAME[name].type}" for name in ARCHIVE_COLUMNS)
"""The columns of an archive's files, as Spark DDL."""


def milliseconds(moment: datetime) -> int:
    """Convert a value of a timestamp column to ms since 1970."""
    return round(moment.timestamp() * 1000)


def default_ddl(*, body: bool = True) -> str:
    """Return the columns that a read returns by default, as Spark DDL; the body is left out if ``body`` is false."""
    return ", ".join(
        f"{column.name} {column.type}"
        for column in COLUMNS
        if column.default and (body or column.name not in BODY_COLUMNS)
    )


def check_schema(schema: StructType) -> None:
    """Check that every column in a schema is a message column.

    :raises OptionError: a column is unknown or has the wrong type. The error names the nearest known column or the
        right type.
    """
    for field in schema.fields:
        name, kind = field.name, field.dataType.simpleString()
        column = BY_NAME.get(name)
        if column is None:
            near = nearest(name, BY_NAME)
            raise OptionError(
                f"the rocketmq source has no column {name!r}",
                next_step=f"did you mean {near}?" if near else f"use {', '.join(BY_NAME)}",
            )
        if kind != column.type:
            raise OptionError(
                f"column {name} of the rocketmq source is {column.type}, not {kind}",
                next_step="read it with its own type and cast it with .withColumn",
            )


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """Return the Arrow schema for some columns, with the types that Spark expects from a Python source."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([(name, types[BY_NAME[name].type]) for name in names])
