"""Administration: all modules that answer tools about any broker, with one call (``AdminBrokerProcessor``)."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.admin_config import ConfigAdmin
from cometmq.broker.admin_connections import ConnectionAdmin
from cometmq.broker.admin_groups import GroupAdmin
from cometmq.broker.admin_offsets import OffsetAdmin
from cometmq.broker.admin_progress import ProgressAdmin
from cometmq.broker.admin_queues import QueueAdmin
from cometmq.broker.admin_relay import RelayAdmin
from cometmq.broker.admin_runtime import RuntimeAdmin, TellsOfItself
from cometmq.broker.admin_topics import TopicAdmin
from cometmq.broker.clients import ClientRegistry
from cometmq.broker.groups import SubscriptionGroupManager
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.broker.schedule import ScheduleMessageService
from cometmq.broker.stats import BrokerStats
from cometmq.broker.topics import TopicConfigManager
from cometmq.clock import Clock
from cometmq.remoting.processors import ProcessorTable
from cometmq.store.message_store import MessageStore


def register_administration(
    processors: ProcessorTable,
    *,
    live: LiveConfig,
    address: str,
    topics: TopicConfigManager,
    groups: SubscriptionGroupManager,
    offsets: ConsumerOffsetManager,
    clients: ClientRegistry,
    store: MessageStore,
    stats: BrokerStats,
    schedule: ScheduleMessageService,
    of_role: TellsOfItself,
    permission_changed: Callable[[], None],
    when_registered: Callable[[Callable[[], None]], None],
    clock: Clock,
) -> None:
    """Let ``processors`` answer tools about this broker.

    :param address: ``host:port`` that clients reach the broker at.
    :param of_role: what only a master has, or only a slave.
    :param permission_changed: called after an administrator changed ``brokerPermission``.
    :param when_registered: calls something once the nameservers know the topics of this moment.
    """
    name = live.current.broker_name
    consumers = clients.consumers
    TopicAdmin(name, topics, offsets, consumers, store, stats, when_registered).register(processors)
    GroupAdmin(groups, offsets, stats).register(processors)
    ConnectionAdmin(clients).register(processors)
    ProgressAdmin(name, address, topics, groups, offsets, consumers, store, stats, clock).register(processors)
    OffsetAdmin(name, topics, offsets, consumers, store).register(processors)
    QueueAdmin(consumers, store).register(processors)
    RelayAdmin(name, consumers, store).register(processors)
    ConfigAdmin(live, permission_changed, clock).register(processors)
    RuntimeAdmin(live, store, stats, schedule, of_role).register(processors)
