"""The options of consumers, with Java's defaults unless stated (``DefaultMQPushConsumer``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from cometmq.client.consumer.rebalance import AllocateStrategy, averagely
from cometmq.client.send.config import ClientConfig, check_above_zero, check_zero_or_more

DEFAULT_RECONSUME_TIMES: Final = 16
"""The number of retries that -1 as ``max_reconsume_times`` means for a concurrent consumer."""
ENDLESS: Final = 2**31 - 1
"""The number of retries that -1 as ``max_reconsume_times`` means for an orderly consumer: Java's largest ``int``."""


class MessageModel(Enum):
    """The members of a group that receive a message."""

    CLUSTERING = "CLUSTERING"
    """One member of the group."""
    BROADCASTING = "BROADCASTING"
    """Every member; offsets are in a file on this host."""


class ConsumeFromWhere(Enum):
    """The first offset of a group in a queue that it has never read.

    A broker that still has the first message of a queue may choose the beginning instead, as Apache's broker does while
    that message is young.
    """

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, kw_only=True)
class ReadConfig(ClientConfig):
    """The options for reading ahead.

    :raises ValueError: a value is out of its range.
    """

    pull_batch_size: int = 1024
    """Maximum number of messages in one pull; brokers have their own limits (Apache: 32 messages or 256 KiB)."""
    pull_wait_s: float = 15.0
    """Seconds that a broker waits for a message before it answers a pull."""
    pull_interval_s: float = 0.0
    """Seconds between two pulls of a queue."""
    pull_error_delay_s: float = 1.0
    """Seconds before a failed pull is repeated."""
    pull_threshold_for_queue: int = 4096
    """Maximum number of waiting messages of one queue (Java: 1000, with pulls of 32)."""
    pull_threshold_bytes_for_queue: int = 16 * 1024 * 1024
    """Maximum number of bytes of the waiting messages of one queue (Java: 100 MiB)."""
    pull_threshold_bytes: int = 256 * 1024 * 1024
    """Maximum number of bytes of the waiting messages of all queues together; each queue gets an equal share."""
    allocate_strategy: AllocateStrategy = averagely
    """The strategy that allocates queues to members; all members must use the same strategy."""
    rebalance_interval_s: float = 20.0
    """Seconds between two rebalances; brokers also report changes in the group immediately."""
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    """The first offset of a group in a queue that it has never read."""
    consume_timestamp_ms: int = 0
    """The time for CONSUME_FROM_TIMESTAMP, ms since 1970."""

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
    """Maximum number of messages in one call of the listener."""
    consume_concurrency: int = 20
    """Maximum number of concurrent calls of the listener, and of failed messages that are being sent back."""
    pull_span_for_queue: int = 100_000
    """Maximum span of offsets of unconsumed messages in one queue (Java: 2000)."""
    orderly: bool = False
    """Consume each queue in order, one call at a time; a failed message blocks its queue."""
    auto_commit: bool = True
    """Orderly: commit messages once they are consumed; if False, commit them when the listener returns COMMIT."""
    suspend_current_queue_s: float = 1.0
    """Orderly: seconds that a queue pauses after a failure, unless the listener sets another time."""
    max_reconsume_times: int = -1
    """Number of failures after which a message is sent to the dead-letter topic; -1 means 16, or never if orderly.
    """
    retry_delay_s: float = 5.0
    """Seconds before this client consumes a failed message again if the broker did not store it."""
    consume_timeout_s: float = 900.0
    """Seconds of consumption after which a message is sent back to the broker (not if orderly); ``inf`` means never."""
    persist_interval_s: float = 5.0
    """Seconds between two reports of offsets."""
    handover_wait_s: float = 10.0
    """Seconds for which ``close`` or the hand-over of a queue waits for running calls of the listener."""
    handover_delay_s: float = 0.5
    """Seconds before a new queue is read, so that its previous reader can report its offset."""
    offset_store_dir: Path = field(default_factory=lambda: Path.home() / ".rocketmq_offsets")
    """Directory for the offsets of broadcasting consumers, in ``<clientId>/<group>/offsets.json``."""

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
    """Commit positions automatically, during polls and on close."""
    auto_commit_interval_s: float = 5.0
    """Seconds between two automatic commits."""
    max_poll_messages: int = 1024
    """Maximum number of messages in one poll."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(self, "max_poll_messages")
        check_zero_or_more(self, "auto_commit_interval_s")
