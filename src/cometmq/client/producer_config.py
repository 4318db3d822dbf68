"""Every option of a producer, with Java's names and defaults (``DefaultMQProducer``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.client.fault import LATENCY_MAX_MS, NOT_AVAILABLE_DURATION_MS, LatencyLadder
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
"""Answers after which another broker is tried, as in Java. (SYSTEM_BUSY is tried again until the time is up.)"""


@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    """How a producer behaves.

    :raises ValueError: a value is out of its range.
    """

    send_timeout_s: float = 3.0
    """Seconds for one message, all attempts together."""
    send_msg_max_timeout_per_request_s: float = 0.0
    """Seconds after which one attempt is given up while there is time for another; 0: only the whole counts."""
    retry_times_when_send_failed: int = 2
    """Of ``send`` and ``send_batch``: further attempts after the first, on another broker where there is one."""
    retry_times_when_send_async_failed: int = 2
    """Of ``send_many``, whose messages are on their way side by side: further attempts of each."""
    retry_backoff_s: float = 0.1
    """Seconds before all brokers have failed and one is tried again; doubled each time, up to a second."""
    retry_response_codes: frozenset[int] = RETRY_RESPONSE_CODES
    """Error codes that lead to another attempt; others are raised at once."""
    retry_another_broker_when_not_store_ok: bool = False
    """Whether a status other than SEND_OK leads to another attempt (and so to a duplicate)."""
    send_latency_fault_enable: bool = False
    """Whether brokers that answered slowly, or failed, are avoided for a while."""
    latency_max_ms: tuple[int, ...] = LATENCY_MAX_MS
    """Answers at least that slow cost the time at the same place of ``not_available_duration_ms``."""
    not_available_duration_ms: tuple[int, ...] = NOT_AVAILABLE_DURATION_MS
    """How long such a broker is avoided."""
    start_detector_enable: bool = False
    """Whether a broker that did not answer is avoided exactly until it answers again."""
    detect_interval_s: float = 2.0
    """Seconds between two looks at such brokers."""
    detect_timeout_s: float = 0.2
    """Seconds that such a broker has to answer."""
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
    enable_msg_trace: bool = False
    """Whether the trace topic is told of every message sent."""
    customized_trace_topic: str | None = None
    """Another trace topic than ``RMQ_SYS_TRACE_TOPIC``."""
    close_timeout_s: float = 10.0
    """Seconds that closing waits for messages on their way."""

    def __post_init__(self) -> None:
        demand_above_zero(self, "detect_interval_s", "detect_timeout_s")
        demand_above_zero(self, "send_timeout_s", "max_message_bytes", "default_topic_queue_nums", "max_in_flight")
        demand_zero_or_more(
            self,
            "send_msg_max_timeout_per_request_s",
            "retry_times_when_send_failed",
            "retry_times_when_send_async_failed",
            "retry_backoff_s",
            "compress_over_bytes",
            "close_timeout_s",
        )
        self.latency_ladder()

    def latency_ladder(self) -> LatencyLadder:
        """The two tables of the fault isolation, side by side."""
        return LatencyLadder(self.latency_max_ms, self.not_available_duration_ms)
