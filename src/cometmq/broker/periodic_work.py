"""The periodic tasks of a broker."""

from __future__ import annotations

from collections.abc import Awaitable

from cometmq.auth.quota.owners import TopicOwners
from cometmq.broker.clients.client_lines import PERIOD_SECONDS, ClientLines
from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    CLIENT_SCAN_SECONDS,
    FILTER_SAVE_SECONDS,
    GONE_FOR_RETURN,
    METER_EXPIRE_SECONDS,
    OFFSET_LOOK_SECONDS,
    QUOTA_SAVE_SECONDS,
    TABLE_RETRY_SECONDS,
)
from cometmq.broker.pull.consumer_filters import ConsumerFilterManager
from cometmq.broker.tables.broker_tables import BrokerTables
from cometmq.broker.tables.offset_expiry import OffsetExpiry
from cometmq.free_memory import give_back
from cometmq.loop import in_rounds
from cometmq.periodic import Work
from cometmq.threads import in_thread


class MemoryReturn:
    """Returns free memory to the system after many objects have been removed."""

    def __init__(self, broker: BrokerContext) -> None:
        self._clients = broker.clients
        self._topics = broker.topics
        self._topics_gone = self._known = 0
        broker.topics.on_change.append(self._changed)

    def _changed(self, topic: str) -> None:
        self._topics_gone += self._topics.get(topic) is None

    def give_back_if_much(self) -> Awaitable[None] | None:
        """Return free memory to the system if enough clients and topics have been removed."""
        gone = self._clients.producers.gone + self._clients.consumers.gone + self._topics_gone
        if gone - self._known < GONE_FOR_RETURN:
            return None
        self._known = gone
        return in_thread(give_back)


def periodic_work(
    broker: BrokerContext, tables: BrokerTables, filters: ConsumerFilterManager, owners: TopicOwners
) -> list[tuple[str, float, Work]]:
    """Return the name, the interval in seconds and the function of each periodic task."""
    expiry = OffsetExpiry(
        broker.offsets,
        lambda topic: broker.topics.get(topic) is not None or topic in broker.store.queues(),
        lambda group: broker.clients.consumers.get(group) is not None,
        clock=broker.clock,
    )
    offsets_s = broker.config.flush_consumer_offset_interval / 1000
    return [
        ("expire offsets", OFFSET_LOOK_SECONDS, expiry.expire_next),
        ("expire clients", CLIENT_SCAN_SECONDS, broker.clients.expire),
        ("expire locks", CLIENT_SCAN_SECONDS, lambda: in_rounds(broker.locks.expire())),
        ("give memory back", CLIENT_SCAN_SECONDS, MemoryReturn(broker).give_back_if_much),
        ("write consumer offsets", offsets_s, broker.offsets.save_in_background),
        ("write filters", FILTER_SAVE_SECONDS, filters.save_in_background),
        ("expire quotas", METER_EXPIRE_SECONDS, broker.limiter.expire),
        ("write topics of quotas", QUOTA_SAVE_SECONDS, owners.save_in_background),
        ("write tables", TABLE_RETRY_SECONDS, tables.retry),
        ("tell of clients", PERIOD_SECONDS, ClientLines(broker.clients).log_counts),
    ]
