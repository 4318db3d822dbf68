"""The parts that only a master has: transactions, timer, POP and the sends in the compiled core (``MasterParts``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.broker.admin.messages import TimerAdmin, TransactionAdmin
from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.parked_message import TimerDetour
from cometmq.broker.delay.recall_message import RecallMessageProcessor
from cometmq.broker.delay.schedule_message import ScheduleMessageService
from cometmq.broker.delay.timer_message import TimerMessageService
from cometmq.broker.limits import POP_SAVE_SECONDS, PRODUCER_SAVE_SECONDS
from cometmq.broker.lite.service import LiteService
from cometmq.broker.pop.service import PopService
from cometmq.broker.port_security import BrokerAccess
from cometmq.broker.pull.filters import PullFilters
from cometmq.broker.replication.ha_service import HAService, HaStatusAdmin
from cometmq.broker.send.producer_sequence_log import ProducerSequenceLog
from cometmq.broker.stops import Stops
from cometmq.broker.transaction.transactions import TransactionalMessageService
from cometmq.broker.turn.inner_message import Detour
from cometmq.broker.turn.plain_sends import PlainSends
from cometmq.core import CORE
from cometmq.periodic import Work
from cometmq.remoting.client import RemotingClient


class MasterParts:
    """The parts of a master, created once the store is open.

    :param client: queries the nameservers for queues on other brokers.
    """

    def __init__(
        self, broker: BrokerContext, filters: PullFilters, access: BrokerAccess, client: RemotingClient
    ) -> None:
        self._broker = broker
        self.transactions: Final = TransactionalMessageService(broker)
        self.plain_sends: Final = self._build_plain_sends(access)
        self.timer: Final = TimerMessageService(broker)
        self.pops: Final = PopService(broker, filters, client)
        self.lite: Final = LiteService(broker, self.pops)

    def _build_plain_sends(self, access: BrokerAccess) -> PlainSends | None:
        if CORE is None:
            return None
        broker = self._broker
        guard = None if access.accounts is None else access.accounts.guard
        sampler = None if access.audit is None else access.audit.sampler
        plain = self.transactions.plain
        return PlainSends(CORE, broker.turn, broker.targets, plain, guard, access.limiter, sampler)

    def detours(self, schedule: ScheduleMessageService) -> list[Detour]:
        """Return where messages wait until they are due, in the order in which they are asked."""
        return [self.transactions.detour, TimerDetour(self._broker), schedule.detour]

    def handlers(self, ha: HAService) -> list[object]:
        """Return the objects that answer requests which only a master takes."""
        return [
            self.transactions.ends,
            self.transactions.resumes,
            RecallMessageProcessor(self._broker, self.timer),
            TransactionAdmin(self.transactions.open),
            TimerAdmin(self.timer),
            HaStatusAdmin(ha),
            *self.pops.parts,
            *self.lite.parts,
        ]

    @property
    def ends_of_round(self) -> tuple[Callable[[], object], ...]:
        """The work at the end of a round whose messages the store then takes in the same round."""
        return (self.pops.log.end_round,)

    def start(self, producers: ProducerSequenceLog, schedule: ScheduleMessageService, stops: Stops) -> None:
        """Start the services in the background."""
        producers.start()
        stops.add("sequences of producers", producers.stop)
        self.transactions.start()
        stops.add("transactions", self.transactions.stop)
        schedule.start()
        self.timer.start()
        stops.add("timer", self.timer.stop)
        self.pops.start()
        self.lite.start()

    def periodic_work(
        self, producers: ProducerSequenceLog, schedule: ScheduleMessageService
    ) -> list[tuple[str, float, Work]]:
        """Return the name, the interval in seconds and the function of each periodic task."""
        return [
            ("write delay offsets", self._broker.config.flush_delay_offset_interval / 1000, schedule.save),
            ("write producer sequences", PRODUCER_SAVE_SECONDS, producers.save),
            ("write popped messages", POP_SAVE_SECONDS, self.pops.save),
            *self.lite.periodic_work(),
        ]

    def halt(self) -> None:
        """Answer the waiting pops, and store what has been acknowledged."""
        self.pops.halt()
        self.lite.halt()
        self.pops.log.end_round()
