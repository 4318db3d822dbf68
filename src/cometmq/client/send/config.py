"""Producer options, with Java's names and defaults (``DefaultMQProducer``, ``TransactionMQProducer``)."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.client.retries import RETRY_RESPONSE_CODES
from cometmq.client.send.selection import LATENCY_MAX_MS, NOT_AVAILABLE_DURATION_MS, LatencyLadder
from cometmq.limits import MAX_MESSAGE_BYTES
from cometmq.message.compression import DEFAULT_LEVEL
from cometmq.message.sysflag import CompressionType


def check_above_zero(config: object, *names: str) -> None:
    """Check that options are greater than 0.

    :raises ValueError: an option is 0 or less; the message names it.
    """
    for name in names:
        if getattr(config, name) <= 0:
            raise ValueError(f"{name} must be greater than 0, not {getattr(config, name)}")


def check_zero_or_more(config: object, *names: str) -> None:
    """Check that options are 0 or greater.

    :raises ValueError: an option is below 0; the message names it.
    """
    for name in names:
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must be 0 or greater, not {getattr(config, name)}")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """The options common to producers and consumers (``ClientConfig``)."""

    enable_msg_trace: bool = False
    """If true, each sent or consumed message is recorded in the trace topic."""
    customized_trace_topic: str | None = None
    """The trace topic to use instead of ``RMQ_SYS_TRACE_TOPIC``."""


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """The options of a producer.

    :raises ValueError: a value is out of its range.
    """

    send_timeout_s: float = 3.0
    """Time limit in seconds for sending a message, including all attempts."""
    send_msg_max_timeout_per_request_s: float = 0.0
    """Time limit in seconds for an attempt if time is left for another one; 0 means no limit."""
    retry_times_when_send_failed: int = 2
    """Maximum number of retries for ``send`` and ``send_batch``, on another broker if there is one."""
    retry_times_when_send_async_failed: int = 2
    """Maximum number of retries for each message in ``send_many``."""
    retry_backoff_s: float = 0.1
    """Seconds before a broker is tried again after all brokers failed; doubled each time, up to a second."""
    retry_response_codes: frozenset[int] = RETRY_RESPONSE_CODES
    """Error codes after which a send is retried; errors with other codes are raised immediately."""
    retry_another_broker_when_not_store_ok: bool = False
    """If true, sends are retried after a status other than SEND_OK, which stores a duplicate."""
    send_latency_fault_enable: bool = False
    """If true, slow or failed brokers are avoided for some time."""
    latency_max_ms: tuple[int, ...] = LATENCY_MAX_MS
    """Ascending latencies. A slower broker is avoided for the corresponding time in ``not_available_duration_ms``."""
    not_available_duration_ms: tuple[int, ...] = NOT_AVAILABLE_DURATION_MS
    """Times for which a slow broker is avoided, one for each latency."""
    start_detector_enable: bool = False
    """If true, an unresponsive broker is avoided until it responds again."""
    detect_interval_s: float = 2.0
    """Seconds between two probes of an unresponsive broker."""
    detect_timeout_s: float = 0.2
    """Time limit in seconds for a broker to respond to a probe."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Maximum size of a body or batch in bytes; brokers have their own limit (``maxMessageSize``)."""
    compress_over_bytes: int = 4096
    """Size above which bodies are compressed if this makes them smaller; batches are not compressed."""
    compression: CompressionType = CompressionType.ZLIB
    """ZLIB, LZ4 or ZSTD. Clients before 4.9.4, and Go and Node clients, support only ZLIB."""
    compression_level: int = DEFAULT_LEVEL
    """The level passed to the compression library."""
    default_topic_queue_nums: int = 4
    """Number of queues for a topic that a broker creates automatically on the first message."""
    max_in_flight: int = 1024
    """Maximum number of unanswered messages in one ``send_many`` call."""
    close_timeout_s: float = 10.0
    """Maximum number of seconds for which ``close`` waits for responses."""

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
        """Return the two latency tables for fault isolation."""
        return LatencyLadder(self.latency_max_ms, self.not_available_duration_ms)


@dataclass(frozen=True, kw_only=True)
class TransactionConfig(ProducerConfig):
    """The options of a transaction producer, in addition to those in :class:`ProducerConfig`.

    :raises ValueError: a value is out of its range.
    """

    execute_threads: int = 20
    """Maximum number of threads for local work that is a plain function."""
    check_concurrency: int = 4
    """Maximum number of concurrent checker calls."""
    check_request_hold_max: int = 2000
    """Maximum number of pending checks; further checks are dropped, and the broker repeats them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(self, "execute_threads", "check_concurrency", "check_request_hold_max")
