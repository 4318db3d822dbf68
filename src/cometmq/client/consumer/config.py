"""Consumer options, with Java's defaults unless stated otherwise (``DefaultMQPushConsumer``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from cometmq.client.consumer.rebalance import AllocateStrategy, averagely
from cometmq.client.send.config import ClientConfig, check_above_zero, check_zero_or_more

DEFAULT_RECONSUME_TIMES: Final = 16
"""The number of retries for a concurrent consumer if ``max_reconsume_times`` is -1."""
ENDLESS: Final = 2**31 - 1
"""The number of retries for an orderly consumer if ``max_reconsume_times`` is -1: Java's largest ``int``."""


class MessageModel(Enum):
    """Says which members of a group receive each message."""

    CLUSTERING = "CLUSTERING"
    """One member of the group receives each message."""
    BROADCASTING = "BROADCASTING"
    """Every member receives each message; offsets are stored in a file on this host."""


class ConsumeFromWhere(Enum):
    """The offset at which a group starts to read a queue for the first time.

    A broker that still has the first message of a queue may choose the beginning instead, as Apache's broker does while
    that message is young.
    """

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, kw_only=True)
class ReadConfig(ClientConfig):
    """The options for pulling messages before the application asks for them.

    :raises ValueError: a value is out of its range.
    """

    pull_batch_size: int = 1024
    """Maximum number of messages per pull; brokers have their own limits (Apache: 32 messages or 256 KiB)."""
    pull_wait_s: float = 15.0
    """Number of seconds for which a broker waits for a message before it responds to a pull."""
    pull_interval_s: float = 0.0
    """Number of seconds between two pulls from a queue."""
    pull_error_delay_s: float = 1.0
    """Number of seconds before a failed pull is retried."""
    pull_threshold_for_queue: int = 4096
    """Maximum number of waiting messages per queue (Java: 1000, with pulls of 32)."""
    pull_threshold_bytes_for_queue: int = 16 * 1024 * 1024
    """Maximum total size in bytes of the waiting messages per queue (Java: 100 MiB)."""
    pull_threshold_bytes: int = 256 * 1024 * 1024
    """Maximum total size in bytes of the waiting messages in all queues; each queue gets an equal share."""
    allocate_strategy: AllocateStrategy = averagely
    """The strategy that allocates queues to members; all members must use the same one."""
    rebalance_interval_s: float = 20.0
    """Number of seconds between two rebalances; brokers also report changes in the group immediately."""
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    """The offset at which the group starts to read a queue for the first time."""
    consume_timestamp_ms: int = 0
    """The time for CONSUME_FROM_TIMESTAMP, in milliseconds since 1970."""

    def __post_init__(self) -> None:
        check_above_zero(
            self,
            "pull_batch_size",
            "pull_threshold_for_queue",
            "pull_threshold_bytes_for_queue",
            "pull_threshold_bytes",
            "rebalance_interval_s",
        )
        check_zero_or_more(self, "pull_wait_s", "pull_interval_s", "pull_error_delay_s", "consume_timestamp_ms")


@dataclass(frozen=True, kw_only=True)
class PushConfig(ReadConfig):
    """The options of a push consumer.

    :raises ValueError: a value is out of its range.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    """The message model: each message is received by one member, or by every member."""
    consume_batch_size: int = 1
    """Maximum number of messages per listener call."""
    consume_concurrency: int = 20
    """Maximum number of concurrent listener calls, and of failed messages being sent back."""
    pull_span_for_queue: int = 100_000
    """Maximum distance between the first and last unconsumed offset in a queue (Java: 2000)."""
    orderly: bool = False
    """If true, each queue is consumed in order, one call at a time, and a failed message blocks its queue."""
    auto_commit: bool = True
    """If true, an orderly consumer commits messages when consumed; otherwise, when the listener returns COMMIT."""
    suspend_current_queue_s: float = 1.0
    """Seconds for which an orderly consumer pauses a queue after a failure, unless the listener sets another time."""
    max_reconsume_times: int = -1
    """Number of retries before a message is sent to the dead-letter topic; -1 means 16, or unlimited if orderly."""
    retry_delay_s: float = 5.0
    """Seconds before this client retries a failed message that the broker did not store."""
    consume_timeout_s: float = 900.0
    """Seconds of consumption after which a message is sent back to the broker (not if orderly); ``inf`` means never."""
    persist_interval_s: float = 5.0
    """Number of seconds between two reports of consumed offsets to the brokers."""
    handover_wait_s: float = 10.0
    """Number of seconds for which ``close``, or giving a queue to another member, waits for running listener calls."""
    handover_delay_s: float = 0.5
    """Number of seconds before a new queue is read, so that its previous reader can report its offset."""
    offset_store_dir: Path = field(default_factory=lambda: Path.home() / ".rocketmq_offsets")
    """The directory in which broadcasting consumers store offsets, in ``<clientId>/<group>/offsets.json``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(
            self,
            "consume_batch_size",
            "consume_concurrency",
            "pull_span_for_queue",
            "consume_timeout_s",
            "persist_interval_s",
        )
        check_zero_or_more(self, "retry_delay_s", "handover_wait_s", "handover_delay_s", "suspend_current_queue_s")
        if not (self.auto_commit or self.orderly):
            raise ValueError("auto_commit=False is for orderly consumers only; set orderly=True as well")
        if self.max_reconsume_times < -1:
            raise ValueError(f"max_reconsume_times must be -1, 0 or more, not {self.max_reconsume_times}")

    @property
    def reconsume_limit(self) -> int:
        """Return ``max_reconsume_times``, with -1 resolved as in Java."""
        if self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return ENDLESS if self.orderly else DEFAULT_RECONSUME_TIMES


@dataclass(frozen=True, kw_only=True)
class LitePullConfig(ReadConfig):
    """The options of a lite pull consumer.

    :raises ValueError: a value is out of its range.
    """

    auto_commit: bool = True
    """If true, positions are committed automatically, during polls and on close."""
    auto_commit_interval_s: float = 5.0
    """Number of seconds between two automatic commits."""
    max_poll_messages: int = 1024
    """Maximum number of messages per poll."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(self, "max_poll_messages")
        check_zero_or_more(self, "auto_commit_interval_s")
