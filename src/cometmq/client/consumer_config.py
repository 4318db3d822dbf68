"""Every option of the consumers, with Java's defaults where nothing else is said (``DefaultMQPushConsumer``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from cometmq.client.ranges import demand_above_zero, demand_zero_or_more
from cometmq.client.rebalance import AllocateStrategy, averagely

DEFAULT_RECONSUME_TIMES: Final = 16
"""Of a concurrent consumer whose ``max_reconsume_times`` is -1."""
ENDLESS: Final = 2**31 - 1
"""Of an orderly one: Java's largest ``int``."""


class MessageModel(Enum):
    """Who gets a message."""

    CLUSTERING = "CLUSTERING"
    """One member of the group."""
    BROADCASTING = "BROADCASTING"
    """Every member; offsets are kept in a file of this host."""


class ConsumeFromWhere(Enum):
    """Where a group begins in a queue that it has never read.

    A broker that holds a queue from its first message on may decide for the beginning itself, as
    Apache's do while that message is young.
    """

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, kw_only=True)
class ReadConfig:
    """How queues are read ahead of consumption.

    :raises ValueError: a value is out of its range.
    """

    pull_batch_size: int = 1024
    """Messages asked for at once; brokers give fewer by limits of their own (Apache: 32 or 256 KiB)."""
    pull_wait_s: float = 15.0
    """Seconds that a broker may wait for a message when there is none."""
    pull_interval_s: float = 0.0
    """Seconds between two pulls of a queue."""
    pull_error_delay_s: float = 1.0
    """Seconds before a pull that failed is tried again."""
    pull_threshold_for_queue: int = 4096
    """Messages of one queue that may wait for consumption (Java: 1000, with pulls of 32)."""
    pull_threshold_bytes_for_queue: int = 16 * 1024 * 1024
    """Bytes of one queue that may wait for consumption (Java: 100 MiB)."""
    pull_threshold_bytes: int = 256 * 1024 * 1024
    """Bytes of all queues of the consumer together that may wait for consumption."""
    allocate_strategy: AllocateStrategy = averagely
    """How queues are shared in the group; the same at every member."""
    rebalance_interval_s: float = 20.0
    """Seconds between two looks at the members of the group, beside what brokers report at once."""
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    """Where a group begins in a queue that it has never read."""
    consume_timestamp_ms: int = 0
    """For CONSUME_FROM_TIMESTAMP: ms since 1970."""
    enable_msg_trace: bool = False
    """Whether the trace topic is told of every message consumed."""
    customized_trace_topic: str | None = None
    """Another trace topic than ``RMQ_SYS_TRACE_TOPIC``."""

    def __post_init__(self) -> None:
        demand_above_zero(
            self,
            "pull_batch_size",
            "pull_threshold_for_queue",
            "pull_threshold_bytes_for_queue",
            "pull_threshold_bytes",
            "rebalance_interval_s",
        )
        demand_zero_or_more(self, "pull_wait_s", "pull_interval_s", "pull_error_delay_s", "consume_timestamp_ms")


@dataclass(frozen=True, kw_only=True)
class PushConfig(ReadConfig):
    """How a push consumer behaves.

    :raises ValueError: a value is out of its range.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    """Whether one member gets a message, or every member."""
    consume_batch_size: int = 1
    """Messages handed to the listener at once, at most."""
    consume_concurrency: int = 20
    """Listener calls at a time; plain functions run in as many threads. So many failed messages go back at a time."""
    pull_span_for_queue: int = 100_000
    """How far the first and the last message in consumption may be apart in one queue (Java: 2000)."""
    orderly: bool = False
    """Whether the messages of a queue are consumed one call at a time, in their order, and wait for one that fails."""
    auto_commit: bool = True
    """Orderly: whether messages are done as soon as they are consumed, or when the listener returns COMMIT."""
    suspend_current_queue_s: float = 1.0
    """Orderly: seconds that a queue rests after a failure, unless the listener says how long."""
    max_reconsume_times: int = -1
    """Failures after which a message goes to the dead-letter topic; -1: 16, but orderly never."""
    retry_delay_s: float = 5.0
    """Seconds before a message that failed, and that the broker did not take back, is consumed again here."""
    consume_timeout_s: float = 900.0
    """Seconds in consumption after which a message goes back to the broker, unless orderly; ``inf`` for never."""
    persist_interval_s: float = 5.0
    """Seconds between two reports of offsets."""
    handover_wait_s: float = 10.0
    """Seconds that a queue which goes to another member, or a close, waits for messages in consumption."""
    handover_delay_s: float = 0.5
    """Seconds before a queue that another member may still hold is read, so that it can report how far it is."""
    offset_store_dir: Path = field(default_factory=lambda: Path.home() / ".rocketmq_offsets")
    """Where broadcasting consumers keep their offsets: ``<clientId>/<group>/offsets.json`` below it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_above_zero(
            self,
            "consume_batch_size",
            "consume_concurrency",
            "pull_span_for_queue",
            "consume_timeout_s",
            "persist_interval_s",
        )
        demand_zero_or_more(self, "retry_delay_s", "handover_wait_s", "handover_delay_s", "suspend_current_queue_s")
        if not (self.auto_commit or self.orderly):
            raise ValueError("auto_commit=False is for orderly consumers; set orderly=True as well")
        if self.max_reconsume_times < -1:
            raise ValueError(f"max_reconsume_times must be -1, 0 or more, not {self.max_reconsume_times}")

    @property
    def reconsume_limit(self) -> int:
        """The failures that ``max_reconsume_times`` allows, -1 resolved as Java does."""
        if self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return ENDLESS if self.orderly else DEFAULT_RECONSUME_TIMES


@dataclass(frozen=True, kw_only=True)
class LitePullConfig(ReadConfig):
    """How a lite-pull consumer behaves.

    :raises ValueError: a value is out of its range.
    """

    auto_commit: bool = True
    """Whether positions are committed by themselves, at polls and at the end."""
    auto_commit_interval_s: float = 5.0
    """Seconds between two such commits."""
    max_poll_messages: int = 1024
    """Messages that one poll gives, at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_above_zero(self, "max_poll_messages")
        demand_zero_or_more(self, "auto_commit_interval_s")
