"""The columns that a row to be sent may have, and the check of a schema when the query is planned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cometmq.options import nearest
from cometmq.spark.errors import OptionError
from cometmq.spark.sink.options import Guarantee

_TEXT: Final = ("string",)
_BYTES: Final = ("binary", "string")


@dataclass(frozen=True, slots=True)
class SinkColumn:
    """One column: its name, the Spark types it may have, and what it means."""

    name: str
    types: tuple[str, ...]
    doc: str


SINK_COLUMNS: Final = (
    SinkColumn("body", _BYTES, "body of the message; needed, never null or empty"),
    SinkColumn("value", _BYTES, "the same, under the name that Kafka's sink has for it"),
    SinkColumn("topic", _TEXT, "topic of this message; option topic where null or absent"),
    SinkColumn("tags", _TEXT, "tag (property TAGS)"),
    SinkColumn("keys", ("string", "array<string>"), "index keys, one array element each or separated by blanks"),
    SinkColumn("shardingKey", _TEXT, "messages with equal ones go to one queue, in their order"),
    SinkColumn("brokerName", _TEXT, "broker of queueId, needed where the topic is on several"),
    SinkColumn("queueId", ("int",), "queue to send to, instead of the sink's choice"),
    SinkColumn("properties", ("map<string,string>",), "the application's own properties"),
    SinkColumn("flag", ("int",), "the application's own flag"),
    SinkColumn("delayLevel", ("int",), "delay level from 1 on (brokers have 18); 0 or null for none"),
    SinkColumn("delayMs", ("bigint",), "milliseconds to wait before delivery (brokers with TIMER_DELAY_MS)"),
    SinkColumn("deliverAt", ("timestamp",), "when to deliver (brokers with TIMER_DELIVER_MS)"),
)

SINK_BY_NAME: Final = {column.name: column for column in SINK_COLUMNS}
DELAY_COLUMNS: Final = ("delayLevel", "delayMs", "deliverAt")
_KAFKA_KEY: Final = "RocketMQ has no key of a record: use shardingKey for order, keys for finding messages"


def check_sink_schema(
    fields: Iterable[tuple[str, str]], *, topic_given: bool, guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
) -> None:
    """Demand that every ``(name, Spark type)`` is a column that can be sent, and that a message can be made of them.

    :param topic_given: whether rows without a topic have one by option.
    :param guarantee: the stronger ones cannot follow messages that wait elsewhere first.
    :raises OptionError: naming the column and the nearest known one, the type it may have, or what is missing.
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
                else f"it has {', '.join(SINK_BY_NAME)}; leave others out with .select(...)",
            )
        if kind not in column.types:
            raise OptionError(
                f"column {name} of the rocketmq sink is {' or '.join(column.types)}, not {kind}",
                next_step="cast it with .withColumn, or make text of it with to_json(struct(...))",
            )
        names.add(name)
    if len(names & {"body", "value"}) != 1:
        raise OptionError(
            "the rocketmq sink takes the message's body from one column, body or value"
            + (", not from both" if "body" in names else ", and there is neither"),
            next_step="as in .select(to_json(struct('*')).alias('body'))",
        )
    if not topic_given and "topic" not in names:
        raise OptionError("no topic: neither option topic nor a column topic", next_step="give one of them")
    delays = [name for name in DELAY_COLUMNS if name in names]
    if guarantee is not Guarantee.AT_LEAST_ONCE and delays:
        raise OptionError(
            f"deliveryGuarantee {guarantee.value} has no delayed messages, which wait under another topic first",
            next_step=f"leave out {', '.join(delays)}, or use at-least-once",
        )
    if "brokerName" in names and "queueId" not in names:
        raise OptionError("column brokerName says which broker queueId is on, and there is no queueId")
