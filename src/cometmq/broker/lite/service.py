"""LiteService: creates, starts and stops everything in a broker that handles lite topics."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import LITE_LOOK_SECONDS, LITE_RETENTION_SECONDS
from cometmq.broker.lite.checks import LiteChecks
from cometmq.broker.lite.client_file import LiteClientFile
from cometmq.broker.lite.expiry import LiteExpiry
from cometmq.broker.lite.index import LiteIndex
from cometmq.broker.lite.indexes import LiteIndexes
from cometmq.broker.lite.lite_admin import LiteAdmin
from cometmq.broker.lite.lite_topics import LiteTopicAdmin
from cometmq.broker.lite.pop_lite import PopLiteProcessor
from cometmq.broker.lite.progress import LiteProgress
from cometmq.broker.lite.snapshot import LiteSnapshot
from cometmq.broker.lite.subscription_ctl import LiteSubscriptionProcessor
from cometmq.broker.lite.subscriptions import LiteSubscriptions
from cometmq.broker.pop.service import PopService
from cometmq.periodic import Work


class LiteService:
    """Everything in a broker that handles lite topics, created once the POP log has been read."""

    def __init__(self, broker: BrokerContext, pops: PopService) -> None:
        self._broker = broker
        log = pops.log
        self.indexes: Final = LiteIndexes(broker.live, broker.topics, broker.store)
        self.progress: Final = LiteProgress(self.indexes)
        comet = Path(broker.config.store_path_root_dir) / "comet"
        self._snapshot = LiteSnapshot(comet / "lite.bin", broker, self.indexes, self.progress)
        self._snapshot.load()
        self._snapshot.end_pops = log.end_round
        log.state.lite = self.progress
        checks = LiteChecks(broker.topics, broker.groups, self.indexes)
        self.subscriptions: Final = LiteSubscriptions(broker.clock, self._has_more)
        self.pops: Final = PopLiteProcessor(broker, log, self.progress, self.subscriptions, checks)
        control = LiteSubscriptionProcessor(broker, log, self.indexes, self.progress, self.subscriptions, checks)
        self._expiry = LiteExpiry(broker, log, self.indexes, self.progress, self.subscriptions, self._snapshot)
        self._clients = LiteClientFile(comet / "lite_clients.bin", self.indexes, self.subscriptions)
        self._clients.load()
        pops.acks.of_lite = self.pops
        broker.turn.lite = self.indexes
        self.indexes.on_arrival.append(self.subscriptions.arrived)
        self.indexes.on_forget.append(broker.targets.forget)
        broker.topics.on_change.append(self._topic_changed)
        admin = LiteAdmin(broker, self.indexes, self.progress, self.subscriptions, checks)
        topics = LiteTopicAdmin(broker, self.indexes, self.subscriptions, checks, self._expiry)
        self.parts: Final[Iterable[object]] = (self.pops, control, admin, topics)
        """The objects that answer requests."""

    def _has_more(self, index: LiteIndex, number: int, group: str) -> bool:
        progress = self.progress.find(index.parent, group)
        begin, end = index.extent(number)
        return begin < end if progress is None else progress.has_more(number)

    def _topic_changed(self, name: str) -> None:
        if not self.indexes.is_parent(name):
            self.subscriptions.forget(name)

    def start(self) -> None:
        """Start making unacknowledged messages visible again."""
        self.pops.start()

    def halt(self) -> None:
        """Answer the waiting pops."""
        self.pops.stop()

    async def save(self) -> None:
        """Write the snapshot and the subscriptions."""
        await self._snapshot.save()
        await self._clients.save()

    def periodic_work(self) -> list[tuple[str, float, Work]]:
        """Return the name, the interval in seconds and the function of each periodic task."""
        config = self._broker.config
        return [
            ("write lite topics", LITE_LOOK_SECONDS, self._snapshot.save_if_due),
            ("write lite clients", LITE_LOOK_SECONDS, self._clients.save),
            ("expire lite topics", config.lite_ttl_check_interval / 1000, self._expiry.expire),
            ("drop lite messages", LITE_RETENTION_SECONDS, self._expiry.drop_deleted),
            ("expire lite clients", config.lite_subscription_check_interval / 1000, self._remove_silent),
        ]

    def _remove_silent(self) -> None:
        self.subscriptions.remove_silent(self._broker.config.lite_subscription_check_timeout_mills / 1000)
