"""Every option of a producer, with Java's defaults (``DefaultMQProducer``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.client.ranges import demand_above_zero, demand_zero_or_more
from cometmq.limits import MAX_MESSAGE_BYTES
from cometmq.message.compression import DEFAULT_LEVEL
from cometmq.message.sysflag import CompressionType
from cometmq.remoting.codes import ResponseCode

RETRY_RESPONSE_CODES: Final = frozenset(
    int(code)
    for code in (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)
"""Answers after which another broker is tried. (SYSTEM_BUSY is tried again until the time is up.)"""


@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    """How a producer behaves.

    :raises ValueError: a value is out of its range.
    """

    send_timeout_s: float = 3.0
    """Seconds for one message, all attempts together."""
    retry_times: int = 2
    """Further attempts after the first one, on another broker where there is one."""
    retry_backoff_s: float = 0.1
    """Seconds before a second attempt on a broker that just failed; doubled for each further one."""
    retry_response_codes: frozenset[int] = RETRY_RESPONSE_CODES
    """Error codes that lead to another attempt; others are raised at once."""
    retry_another_broker_when_not_store_ok: bool = False
    """Whether a status other than SEND_OK leads to another attempt (and so to a duplicate)."""
    send_latency_fault_enable: bool = False
    """Whether brokers that answered slowly are avoided for a while."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Largest body, and largest batch, in bytes; brokers have a limit of their own (``maxMessageSize``)."""
    compress_over_bytes: int = 4096
    """Bodies larger than this are packed; batches never are."""
    compression: CompressionType = CompressionType.ZLIB
    """ZLIB, LZ4 or ZSTD; clients before 4.9.4, and Go and Node clients, can only unpack ZLIB."""
    compression_level: int = DEFAULT_LEVEL
    """Level of the packing library."""
    default_topic_queue_nums: int = 4
    """Queues of a topic that the broker makes on its first message."""
    max_in_flight: int = 1024
    """Messages of one ``send_many`` call that may wait for answers."""
    close_timeout_s: float = 10.0
    """Seconds that closing waits for messages on their way."""

    def __post_init__(self) -> None:
        demand_above_zero(self, "send_timeout_s", "max_message_bytes", "default_topic_queue_nums", "max_in_flight")
        demand_zero_or_more(self, "retry_times", "retry_backoff_s", "compress_over_bytes", "close_timeout_s")
