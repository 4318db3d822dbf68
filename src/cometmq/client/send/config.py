"""The options of producers, with Java's names and defaults (``DefaultMQProducer``, ``TransactionMQProducer``)."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.client.retries import RETRY_RESPONSE_CODES
from cometmq.client.send.selection import LATENCY_MAX_MS, NOT_AVAILABLE_DURATION_MS, LatencyLadder
from cometmq.limits import MAX_MESSAGE_BYTES
from cometmq.message.compression import DEFAULT_LEVEL
from cometmq.message.sysflag import CompressionType


def check_above_zero(config: object, *names: str) -> None:
    """Check that options are above 0.

    :raises ValueError: an option is 0 or less; the message names it.
    """
    for name in names:
        if getattr(config, name) <= 0:
            raise ValueError(f"{name} must be above 0, not {getattr(config, name)}")


def check_zero_or_more(config: object, *names: str) -> None:
    """Check that options are 0 or more.

    :raises ValueError: an option is below 0; the message names it.
    """
    for name in names:
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must not be below 0, but is {getattr(config, name)}")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """The options of every producer and consumer (``ClientConfig``)."""

    enable_msg_trace: bool = False
    """Send a trace of each sent or consumed message to the trace topic."""
    customized_trace_topic: str | None = None
    """The trace topic, instead of ``RMQ_SYS_TRACE_TOPIC``."""


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """The options of a producer.

    :raises ValueError: a value is out of its range.
    """

    send_timeout_s: float = 3.0
    """Seconds for one message, over all attempts."""
    send_msg_max_timeout_per_request_s: float = 0.0
    """Seconds for one attempt if time is left for another attempt; 0 means no limit."""
    retry_times_when_send_failed: int = 2
    """``send`` and ``send_batch``: attempts after the first, on another broker if there is one."""
    retry_times_when_send_async_failed: int = 2
    """``send_many``: attempts after the first, for each message."""
    retry_backoff_s: float = 0.1
    """Seconds before a broker is tried again after all brokers failed; doubled each time, up to a second."""
    retry_response_codes: frozenset[int] = RETRY_RESPONSE_CODES
    """Error codes that cause another attempt; errors with other codes are raised immediately."""
    retry_another_broker_when_not_store_ok: bool = False
    """Make another attempt after a status other than SEND_OK, which stores a duplicate."""
    send_latency_fault_enable: bool = False
    """Avoid slow or failed brokers for a while."""
    latency_max_ms: tuple[int, ...] = LATENCY_MAX_MS
    """Ascending latencies; a broker that is slower is avoided for the matching ``not_available_duration_ms``.
    """
    not_available_duration_ms: tuple[int, ...] = NOT_AVAILABLE_DURATION_MS
    """Times for which a slow broker is avoided, one for each latency."""
    start_detector_enable: bool = False
    """Avoid a broker that did not answer until it answers again."""
    detect_interval_s: float = 2.0
    """Seconds between two requests to a broker that did not answer."""
    detect_timeout_s: float = 0.2
    """Maximum seconds until a broker answers a request that checks whether it is reachable."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Maximum size of a body and of a batch, in bytes; brokers have their own limit (``maxMessageSize``)."""
    compress_over_bytes: int = 4096
    """Size above which bodies are compressed if this makes them smaller; batches are not compressed."""
    compression: CompressionType = CompressionType.ZLIB
    """ZLIB, LZ4 or ZSTD. Clients before 4.9.4 and Go and Node clients can only decompress ZLIB."""
    compression_level: int = DEFAULT_LEVEL
    """Level of the compression library."""
    default_topic_queue_nums: int = 4
    """Number of queues of a topic that the broker creates for the topic's first message."""
    max_in_flight: int = 1024
    """Maximum number of messages in one ``send_many`` call that wait for answers at the same time."""
    close_timeout_s: float = 10.0
    """Maximum seconds for which ``close`` waits for answers to messages."""

    def __post_init__(self) -> None:
        check_above_zero(self, "detect_interval_s", "detect_timeout_s")
        check_above_zero(self, "send_timeout_s", "max_message_bytes", "default_topic_queue_nums", "max_in_flight")
        check_zero_or_more(
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
        """Return the two tables for fault isolation."""
        return LatencyLadder(self.latency_max_ms, self.not_available_duration_ms)


@dataclass(frozen=True, kw_only=True)
class TransactionConfig(ProducerConfig):
    """The options of a transaction producer, in addition to those of :class:`ProducerConfig`.

    :raises ValueError: a value is out of its range.
    """

    execute_threads: int = 20
    """Maximum number of threads for local work that is a plain function."""
    check_concurrency: int = 4
    """Maximum number of concurrent calls of the checker."""
    check_request_hold_max: int = 2000
    """Maximum number of checks that wait for the checker; further checks are dropped, and the broker repeats them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(self, "execute_threads", "check_concurrency", "check_request_hold_max")
