"""The options of the rocketmq sink: names in the manner of Spark's Kafka connector, words of RocketMQ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from cometmq.limits import MAX_MESSAGE_BYTES
from cometmq.message.names import check_topic
from cometmq.message.producer_sequence import is_producer_id
from cometmq.message.sysflag import CompressionType
from cometmq.spark.access import ACCESS_OPTION_NAMES, Access, parse_access
from cometmq.spark.errors import OptionError
from cometmq.spark.options import DEFAULT_GROUP, canonical_options, parse_addresses, parse_count, parse_group

_MAX_ID_CHARS: Final = 128
"""Leaves room for the partition's number in the name that brokers see."""
COMPRESSIONS: Final = {
    "none": None,
    "zlib": CompressionType.ZLIB,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}


class Guarantee(Enum):
    """What a writer promises of each row; see ``docs/spark-sink.md``."""

    AT_LEAST_ONCE = "at-least-once"
    EFFECTIVELY_ONCE = "effectively-once"
    EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a writer was asked for; every field is one option (see ``docs/spark-sink.md``)."""

    namesrv_addr: tuple[str, ...]
    topic: str | None
    producer_group: str
    guarantee: Guarantee
    producer_id: str | None
    send_timeout_ms: int
    max_batch_bytes: int
    max_message_size: int
    compression: CompressionType | None
    compress_over: int
    access: Access

    @property
    def send_timeout_s(self) -> float:
        """How long a chunk may wait for its acknowledgement, in seconds."""
        return self.send_timeout_ms / 1000


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Read the options of a writer.

    :raises OptionError: an option is unknown (the nearest known one is named), missing, doubled or has a bad value.
    """
    named = {name: value for name, value in given.items() if name.lower() not in _SPARKS_OWN}
    values = canonical_options("the rocketmq sink", named, _FOLDED)

    def read(name: str, parse: Callable[[str, str], Any], default: Any) -> Any:
        return parse(name, values[name]) if name in values else default

    options = SinkOptions(
        namesrv_addr=parse_addresses(values),
        topic=read("topic", _topic, None),
        producer_group=read("producerGroup", parse_group, DEFAULT_GROUP),
        guarantee=read("deliveryGuarantee", _guarantee, Guarantee.AT_LEAST_ONCE),
        producer_id=read("producerId", _producer_id, None),
        send_timeout_ms=read("sendTimeoutMs", parse_count, 120_000),
        max_batch_bytes=read("maxBatchBytes", parse_count, 1024 * 1024),
        max_message_size=read("maxMessageSize", parse_count, MAX_MESSAGE_BYTES),
        compression=COMPRESSIONS[read("compressionType", _compression, "none")],
        compress_over=read("compressMsgBodyOverHowmuch", parse_count, 4096),
        access=parse_access(values),
    )
    if options.max_batch_bytes > MAX_MESSAGE_BYTES:
        raise OptionError(
            f"option maxBatchBytes is at most {MAX_MESSAGE_BYTES}, what brokers take by default",
            next_step="about 1 MB is best: larger chunks only add delay",
        )
    if options.guarantee is Guarantee.EXACTLY_ONCE and options.compression is not None:
        raise OptionError(
            "deliveryGuarantee exactly-once sends batches only, and RocketMQ has no packed messages in batches",
            next_step="leave compressionType out",
        )
    return options


def _topic(name: str, text: str) -> str:
    if fault := check_topic(text):
        raise OptionError(f"option {name}: {fault}")
    return text


def _guarantee(name: str, text: str) -> Guarantee:
    try:
        return Guarantee(text.strip().lower().replace("_", "-"))
    except ValueError:
        raise OptionError(
            f"option {name} is one of {', '.join(kind.value for kind in Guarantee)}, not {text!r}"
        ) from None


def _producer_id(name: str, text: str) -> str:
    if len(text) > _MAX_ID_CHARS or not is_producer_id(text):
        raise OptionError(
            f"option {name} has 1 to {_MAX_ID_CHARS} characters, letters, digits and . _ : % | -, unlike {text!r}"
        )
    return text


def _compression(name: str, text: str) -> str:
    folded = text.strip().lower()
    if folded not in COMPRESSIONS:
        raise OptionError(f"option {name} is one of {', '.join(COMPRESSIONS)}, not {text!r}")
    return folded


SINK_OPTION_NAMES: Final = (
    *("namesrvAddr", "topic", "producerGroup", "deliveryGuarantee", "producerId", "sendTimeoutMs"),
    *("maxBatchBytes", "maxMessageSize", "compressionType", "compressMsgBodyOverHowmuch"),
    *ACCESS_OPTION_NAMES,
)
_ALIASES: Final = {"nameServer": "namesrvAddr", "delivery.guarantee": "deliveryGuarantee"}
_FOLDED: Final = {name.lower(): name for name in SINK_OPTION_NAMES} | {a.lower(): name for a, name in _ALIASES.items()}
_SPARKS_OWN: Final = frozenset({"checkpointlocation"})
"""Options that Spark hands to every sink of a stream and that mean nothing to this one."""
