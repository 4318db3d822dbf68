"""The parts of a broker that its processors and services share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cometmq.auth.quota.limiter import Limiter
from cometmq.broker.archived.archived_messages import ArchivedMessages
from cometmq.broker.config import BrokerConfig, LiveConfig
from cometmq.broker.statistics.stats import BrokerStats
from cometmq.broker.tables.clients import ClientRegistry
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.tables.deletions import Deletions
from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.rebalance_locks import RebalanceLockManager
from cometmq.broker.tables.table_writer import TableWriter
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.broker.turn.answers import SendAnswers
from cometmq.broker.turn.failed_messages import FailedMessages
from cometmq.broker.turn.store_turn import StoreTurn
from cometmq.broker.turn.targets import SendTargets
from cometmq.clock import Clock
from cometmq.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """The shared parts of a broker, assembled once the store is open and the port is known.

    Only ``config`` changes while the broker is running.
    """

    live: LiveConfig
    clock: Clock
    store: MessageStore
    stats: BrokerStats
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    tables: TableWriter
    """Writes table changes before their requests are answered."""
    deletions: Deletions
    """Removes everything that belongs to deleted topics and groups."""
    clients: ClientRegistry
    locks: RebalanceLockManager
    turn: StoreTurn
    """Stores the messages that arrive in each round of the loop."""
    targets: SendTargets
    """The topics to which messages are sent."""
    failed: FailedMessages
    """Decides whether a failed message is retried or becomes a dead letter."""
    answers: SendAnswers
    schedule_round: Callable[[], None]
    """Starts a round unless one has started, so that the functions for the end of a round are called soon."""
    at_end_of_round: Callable[[Callable[[], None]], None]
    """Calls a function at the end of this round, before the responses of the round are written."""
    limiter: Limiter
    """The quotas of accounts, addresses and groups."""
    archived: ArchivedMessages | None
    """The messages that retention has deleted and an archive has; ``None`` without ``archive.read``."""
    address: str
    """The broker's ``host:port`` for clients."""
    host: bytes
    """The broker's address as encoded in stored records and message IDs: 8 or 20 bytes."""

    @property
    def config(self) -> BrokerConfig:
        """Return the current configuration."""
        return self.live.current
