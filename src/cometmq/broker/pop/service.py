"""PopService: creates, starts and stops everything in a broker that handles POP."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.pop.ack_message import AckMessageProcessor
from cometmq.broker.pop.apache_pops import ApachePops
from cometmq.broker.pop.assignment import QueryAssignmentProcessor
from cometmq.broker.pop.entries import Forgotten, OffsetSet
from cometmq.broker.pop.left_behind import LeftBehind
from cometmq.broker.pop.notification import NotificationProcessor
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pop.pop_long_polling import PopLongPollingService
from cometmq.broker.pop.pop_message import PopMessageProcessor
from cometmq.broker.pop.reads import PopReads
from cometmq.broker.pop.request_modes import MessageRequestModeManager
from cometmq.broker.pop.revive import PopReviveService
from cometmq.broker.pop.snapshot import PopSnapshot
from cometmq.broker.pop.state import PopState
from cometmq.broker.pull.filters import PullFilters
from cometmq.broker.turn.targets import RefusedError
from cometmq.remoting.client import RemotingClient

_log = logging.getLogger(__name__)


class PopService:
    """Everything in a broker that handles POP, created once the store is open.

    :param client: queries the nameservers for queues on other brokers.
    """

    def __init__(self, broker: BrokerContext, filters: PullFilters, client: RemotingClient) -> None:
        root = Path(broker.config.store_path_root_dir)
        self.state: Final = PopState()
        self.log: Final = PopLog(broker, self.state)
        self.polling: Final = PopLongPollingService(broker.live, broker.clock)
        self._broker = broker
        self._snapshot = PopSnapshot(root / "comet" / "pop.bin", broker.store, broker.turn, self.log)
        self._snapshot.load(broker.offsets, self._deletion_found)
        self.reads: Final = PopReads(broker.store, broker.archived, broker.clock, filters.expired, self.polling.wake)
        broker.deletions.on_topic.append(self.reads.forget)
        self._revive = PopReviveService(broker, self.log, self.reads, self.polling.wake)
        self._apache = ApachePops(broker, self.log)
        self.modes: Final = MessageRequestModeManager(root / "config" / "messageRequestMode.json", clock=broker.clock)
        for finding in self.modes.load():
            _log.warning("%s", finding)
        self._left = LeftBehind(broker, self.log)
        self.acks: Final = AckMessageProcessor(broker, self.log, self.polling, self.reads, self._left)
        pops = PopMessageProcessor(broker, filters, self.log, self.polling, self.reads, self._left)
        self.parts: Final[Iterable[object]] = (
            pops,
            self.acks,
            NotificationProcessor(broker, filters, pops, self.log, self.polling),
            QueryAssignmentProcessor(broker, self.modes, client),
        )
        """The objects that answer requests."""
        broker.offsets.on_back.append(self._offset_reset)
        broker.offsets.in_flight = self._in_flight
        broker.offsets.visible_again = self._visible_again
        broker.store.batch.on_arrival.extend((self.polling.arrived, self._apache.arrived))
        broker.topics.on_change.append(self._topic_changed)
        broker.deletions.on_group.append(self._group_deleted)

    def start(self) -> None:
        """Start making unacknowledged messages visible again."""
        self._revive.start()
        self._apache.start()

    def halt(self) -> None:
        """Stop making messages visible again, and answer the waiting pops."""
        self._left.stop()
        self._revive.stop()
        self._apache.stop()
        self.polling.stop()

    async def save(self) -> None:
        """Write the snapshot of the popped messages."""
        await self._snapshot.save()

    def _in_flight(self, topic: str, group: str, queue_id: int) -> int:
        queue = self.state.find(topic, group, queue_id)
        return 0 if queue is None else queue.in_flight

    def _visible_again(self, topic: str, group: str, queue_id: int) -> int:
        queue = self.state.find(topic, group, queue_id)
        return 0 if queue is None else queue.visible_again

    # --- changes by others ------------------------------------------------------------------------
    def _offset_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Log that a group's offset was moved back, so that messages starting at the new offset are handed out
        again.
        """
        queue = self.state.find(topic, group, queue_id)
        if queue is not None and offset < queue.next_offset:
            self._log_entry(OffsetSet(topic, group, queue_id, offset))

    def _topic_changed(self, name: str) -> None:
        """Record the deletion of a topic in the POP log, since a slave may be promoted before it copies the tables."""
        if self._broker.topics.get(name) is None:
            self._log_entry(Forgotten(name, "", 0, self._broker.store.max_physical_offset))

    def _group_deleted(self, name: str, position: int, with_offsets: bool) -> None:
        self._log_entry(Forgotten("", name, 0, position, with_offsets))

    def _deletion_found(self, entry: Forgotten) -> None:
        """Apply a deletion found in the log when the broker starts."""
        deletions = self._broker.deletions
        if entry.topic:
            deletions.found_in_log(entry.topic, entry.position)
        else:
            deletions.group_found_in_log(entry.group, entry.position, with_offsets=entry.with_offsets)

    def _log_entry(self, entry: OffsetSet | Forgotten) -> None:
        try:
            self.log.check()
        except RefusedError:  # the store is closed: the state is saved as it is
            self.state.apply(entry)
            return
        self.log.add(entry)
        self.log.when_stored(_ignore_outcome)


def _ignore_outcome(_refusal: RefusedError | None) -> None:
    pass
