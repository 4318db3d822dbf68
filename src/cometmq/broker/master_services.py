"""What a broker does of its own accord as a master, and not as a slave: transactions, delays, producers' sequences."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from cometmq.broker.admin_timer import TimerAdmin
from cometmq.broker.admin_transactions import TransactionAdmin
from cometmq.broker.clients import ProducerManager
from cometmq.broker.inner_message import Detour
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.broker.periodic import Periodic
from cometmq.broker.producer_sequence_log import ProducerSequenceLog
from cometmq.broker.recall import RecallMessageProcessor
from cometmq.broker.schedule import ScheduleMessageService
from cometmq.broker.stats import BrokerStats
from cometmq.broker.store_turn import StoreTurn
from cometmq.broker.timer import TimerMessageService
from cometmq.broker.timer_counts import TimerCounts
from cometmq.broker.timer_detour import TimerDetour
from cometmq.broker.topics import TopicConfigManager
from cometmq.broker.transactions import TransactionalMessageService
from cometmq.clock import Clock
from cometmq.limits import PRODUCER_SAVE_SECONDS
from cometmq.remoting.processors import ProcessorTable
from cometmq.store.message_store import MessageStore


class MasterServices:
    """The services that store messages by themselves; made when the store is open, before anything is stored."""

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        clients: ProducerManager,
        store: MessageStore,
        stats: BrokerStats,
        turn: StoreTurn,
        schedule: ScheduleMessageService,
        sequences: ProducerSequenceLog,
        store_host: bytes,
        schedule_turn: Callable[[], None],
        *,
        clock: Clock,
    ) -> None:
        self._live = live
        self._topics = topics
        self._schedule = schedule
        self._sequences = sequences
        self._clock = clock
        self.transactions: Final = TransactionalMessageService(
            live, topics, offsets, clients, store, turn, store_host, clock=clock
        )
        counts = TimerCounts(stats, live.current.broker_cluster_name)
        self.timer: Final = TimerMessageService(store, turn, schedule_turn, counts, clock=clock)

    @property
    def detours(self) -> list[Detour]:
        """Where messages wait that ask for it, in the order in which they are asked."""
        timer = TimerDetour(self._live, clock=self._clock)
        return [self.transactions.detour, timer, self._schedule.levels.detour]

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes of these services."""
        self.transactions.register(processors)
        TransactionAdmin(self.transactions.open).register(processors)
        RecallMessageProcessor(self._live, self._topics, self.timer, clock=self._clock).register(processors)
        TimerAdmin(self.timer).register(processors)

    def start(self, stops: AsyncExitStack) -> None:
        """Begin, on the running loop; ``stops`` gets what ends it. The schedule's end is its caller's."""
        self._sequences.start()
        stops.push_async_callback(self._sequences.stop)
        self.transactions.start()
        stops.push_async_callback(self.transactions.stop)
        self._schedule.start()
        self.timer.start()
        stops.push_async_callback(self.timer.stop)
        delays_s = self._live.current.flush_delay_offset_interval / 1000
        for periodic in (
            Periodic("write delay offsets", delays_s, self._schedule.save, clock=self._clock),
            Periodic("write producer sequences", PRODUCER_SAVE_SECONDS, self._sequences.save, clock=self._clock),
        ):
            periodic.start()
            stops.push_async_callback(periodic.stop)

    def runtime_info(self) -> dict[str, str]:
        """What the runtime information (28) tells of transactions and of messages that wait."""
        return self.transactions.runtime_info() | self.timer.runtime_info()
