"""The work that every broker does at intervals."""

from __future__ import annotations

from cometmq.auth.quota.owners import TopicOwners
from cometmq.broker.clients.client_lines import PERIOD_SECONDS, ClientLines
from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    CLIENT_SCAN_SECONDS,
    FILTER_SAVE_SECONDS,
    METER_EXPIRE_SECONDS,
    OFFSET_LOOK_SECONDS,
    QUOTA_SAVE_SECONDS,
    TABLE_RETRY_SECONDS,
    TABLE_WRITE_SECONDS,
)
from cometmq.broker.periodic import Work
from cometmq.broker.pull.consumer_filters import ConsumerFilterManager
from cometmq.broker.tables.broker_tables import BrokerTables
from cometmq.broker.tables.offset_expiry import OffsetExpiry
from cometmq.loop import in_turns


def periodic_work(
    broker: BrokerContext, tables: BrokerTables, filters: ConsumerFilterManager, owners: TopicOwners
) -> list[tuple[str, float, Work]]:
    """The name, the pause in seconds and the function of each."""
    expiry = OffsetExpiry(
        broker.offsets,
        lambda topic: broker.topics.get(topic) is not None or topic in broker.store.queues(),
        lambda group: broker.clients.consumers.get(group) is not None,
        clock=broker.clock,
    )
    offsets_s = broker.config.flush_consumer_offset_interval / 1000
    return [
        ("expire offsets", OFFSET_LOOK_SECONDS, expiry.look),
        ("expire clients", CLIENT_SCAN_SECONDS, broker.clients.expire),
        ("expire locks", CLIENT_SCAN_SECONDS, lambda: in_turns(broker.locks.expire())),
        ("write consumer offsets", offsets_s, broker.offsets.save_in_background),
        ("write filters", FILTER_SAVE_SECONDS, filters.save_in_background),
        ("expire quotas", METER_EXPIRE_SECONDS, broker.limiter.expire),
        ("write topics of quotas", QUOTA_SAVE_SECONDS, owners.save_in_background),
        ("write tables", TABLE_RETRY_SECONDS, tables.save),
        ("write whole tables", TABLE_WRITE_SECONDS, tables.save_in_background),
        ("tell of clients", PERIOD_SECONDS, ClientLines(broker.clients).tell),
    ]
