"""The rocketmq sink's options and columns. Their names follow the style of Spark's Kafka connector and use RocketMQ's
terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cometmq.limits import MAX_MESSAGE_BYTES
from cometmq.message.producer_sequence import is_producer_id
from cometmq.message.sysflag import CompressionType
from cometmq.options import nearest, option, options_of
from cometmq.options.forms import COUNT, Form, named
from cometmq.spark.errors import OptionError
from cometmq.spark.options import (
    DEFAULT_GROUP,
    GROUP,
    TOPIC,
    canonical_options,
    folded_names,
    parse_addresses,
    parse_declared,
)
from cometmq.spark.security_options import ACCESS_OPTION_NAMES, Access, parse_access

_MAX_ID_CHARS: Final = 128
"""Maximum length of a producer id. It leaves space for the partition number in the name that brokers receive."""
COMPRESSIONS: Final = {
    "none": None,
    "zlib": CompressionType.ZLIB,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}


class Guarantee(Enum):
    """Delivery guarantees; see ``docs/spark-sink.md``."""

    AT_LEAST_ONCE = "at-least-once"
    EFFECTIVELY_ONCE = "effectively-once"
    EXACTLY_ONCE = "exactly-once"


def _read_producer_id(text: str) -> str:
    if len(text) > _MAX_ID_CHARS or not is_producer_id(text):
        raise ValueError
    return text


_GUARANTEE: Final = named({kind.value: kind for kind in Guarantee}, fold=lambda text: text.lower().replace("_", "-"))
_PRODUCER_ID: Final = Form(
    f"1 to {_MAX_ID_CHARS} letters, digits and . _ : % | -", _read_producer_id, keeps_blanks=True
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """A writer's options, one field each (see ``docs/spark-sink.md``)."""

    namesrv_addr: tuple[str, ...]
    access: Access
    topic: str | None = option(None, form=TOPIC)
    producer_group: str = option(DEFAULT_GROUP, form=GROUP)
    guarantee: Guarantee = option(Guarantee.AT_LEAST_ONCE, key="deliveryGuarantee", form=_GUARANTEE)
    producer_id: str | None = option(None, form=_PRODUCER_ID)
    send_timeout_ms: int = option(120_000, form=COUNT)
    max_batch_bytes: int = option(1024 * 1024, form=COUNT)
    max_message_size: int = option(MAX_MESSAGE_BYTES, form=COUNT)
    compression: CompressionType | None = option(None, key="compressionType", form=named(COMPRESSIONS, fold=str.lower))
    compress_over: int = option(4096, key="compressMsgBodyOverHowmuch", form=COUNT)

    @property
    def send_timeout_s(self) -> float:
        """Maximum time until a chunk is acknowledged, in seconds."""
        return self.send_timeout_ms / 1000


SINK_OPTION_NAMES: Final = ("namesrvAddr", *options_of(SinkOptions), *ACCESS_OPTION_NAMES)
_FOLDED: Final = folded_names(
    SINK_OPTION_NAMES, {"nameServer": "namesrvAddr", "delivery.guarantee": "deliveryGuarantee"}
)
_SPARKS_OWN: Final = frozenset({"checkpointlocation"})
"""Options that Spark passes to every streaming sink, and that this sink ignores."""


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse a writer's options.

    :raises OptionError: an option is unknown (the error suggests the nearest known option), is missing, is given twice
        or has an invalid value.
    """
    named = {name: value for name, value in given.items() if name.lower() not in _SPARKS_OWN}
    values = canonical_options("the rocketmq sink", named, _FOLDED)
    options = SinkOptions(parse_addresses(values), parse_access(values), **parse_declared(SinkOptions, values))
    if options.max_batch_bytes > MAX_MESSAGE_BYTES:
        raise OptionError(
            f"must be at most {MAX_MESSAGE_BYTES}, what brokers accept by default",
            option="maxBatchBytes",
            next_step="use about 1 MB: larger chunks only add delay",
        )
    if options.guarantee is Guarantee.EXACTLY_ONCE and options.compression is not None:
        raise OptionError(
            "deliveryGuarantee exactly-once sends batches, in which RocketMQ allows no compressed messages",
            next_step="leave out compressionType",
        )
    return options


_TEXT: Final = ("string",)
_BYTES: Final = ("binary", "string")


@dataclass(frozen=True, slots=True)
class SinkColumn:
    """One column: its name, the Spark types it may have, and its meaning."""

    name: str
    types: tuple[str, ...]
    doc: str


SINK_COLUMNS: Final = (
    SinkColumn("body", _BYTES, "body of the message; required, never null or empty"),
    SinkColumn("value", _BYTES, "body of the message, under the name that Kafka's sink uses"),
    SinkColumn("topic", _TEXT, "topic of the message; if null or absent, the option topic applies"),
    SinkColumn("tags", _TEXT, "tag (property TAGS)"),
    SinkColumn("keys", ("string", "array<string>"), "index keys: array elements, or separated by spaces"),
    SinkColumn("shardingKey", _TEXT, "messages with the same key are sent to one queue, in their order"),
    SinkColumn("brokerName", _TEXT, "broker with queueId; required if several brokers have the topic"),
    SinkColumn("queueId", ("int",), "queue to send to, instead of the sink's choice"),
    SinkColumn("properties", ("map<string,string>",), "the application's own properties"),
    SinkColumn("flag", ("int",), "the application's own flag"),
    SinkColumn("delayLevel", ("int",), "delay level (brokers have 1 to 18); 0 or null for none"),
    SinkColumn("delayMs", ("bigint",), "milliseconds before delivery (brokers with TIMER_DELAY_MS)"),
    SinkColumn("deliverAt", ("timestamp",), "time of delivery (brokers with TIMER_DELIVER_MS)"),
    SinkColumn("priority", ("int",), "priority, by which the broker chooses the queue (topics of type PRIORITY)"),
    SinkColumn("ttlMs", ("bigint",), "life time in milliseconds, after which consumers do not receive the message"),
)

SINK_BY_NAME: Final = {column.name: column for column in SINK_COLUMNS}
DELAY_COLUMNS: Final = ("delayLevel", "delayMs", "deliverAt")
PRIORITY_COLUMN: Final = "priority"
TTL_COLUMN: Final = "ttlMs"
_KAFKA_KEY: Final = "RocketMQ records have no key: use shardingKey for order, and keys for finding messages"


def check_sink_schema(
    fields: Iterable[tuple[str, str]], *, topic_given: bool, guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
) -> None:
    """Check that every ``(name, Spark type)`` is a column of the sink, and that all columns that a message needs are
    present.

    :param topic_given: True if the option ``topic`` names a topic for rows that have none.
    :param guarantee: delivery guarantee; the stronger guarantees do not allow delayed messages.
    :raises OptionError: a column is unknown, has a wrong type or is missing. The error names the column, and the
        nearest known column or the allowed types.
    """
    names = set()
    for name, kind in fields:
        column = SINK_BY_NAME.get(name)
        if column is None:
            near = nearest(name, SINK_BY_NAME)
            raise OptionError(
                f"the rocketmq sink has no column {name!r}",
                next_step=_KAFKA_KEY
                if name == "key"
                else f"did you mean {near}?"
                if near
                else f"it has {', '.join(SINK_BY_NAME)}; leave out other columns with .select(...)",
            )
        if kind not in column.types:
            raise OptionError(
                f"column {name} of the rocketmq sink is {' or '.join(column.types)}, not {kind}",
                next_step="cast it with .withColumn, or convert it to text with to_json(struct(...))",
            )
        names.add(name)
    if len(names & {"body", "value"}) != 1:
        raise OptionError(
            "the rocketmq sink needs exactly one of the columns body and value"
            + (", not both" if "body" in names else ", and both are missing"),
            next_step="as in .select(to_json(struct('*')).alias('body'))",
        )
    if not topic_given and "topic" not in names:
        raise OptionError("the topic is missing", next_step="set option topic, or add a column topic")
    delays = [name for name in DELAY_COLUMNS if name in names]
    if guarantee is not Guarantee.AT_LEAST_ONCE and delays:
        raise OptionError(
            f"deliveryGuarantee {guarantee.value} does not allow delayed messages: brokers first store them in another "
            "topic",
            next_step=f"leave out {', '.join(delays)}, or use at-least-once",
        )
    if guarantee is not Guarantee.AT_LEAST_ONCE and PRIORITY_COLUMN in names:
        raise OptionError(
            f"deliveryGuarantee {guarantee.value} does not allow priorities, because they choose the queues",
            next_step=f"leave out {PRIORITY_COLUMN}, or use at-least-once",
        )
    if "brokerName" in names and "queueId" not in names:
        raise OptionError("column brokerName requires column queueId")
