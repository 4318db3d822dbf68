"""The consumer groups of this broker (``SubscriptionGroupManager``).

A group is created by an administrator or on first use. Group names follow the rules for topic names, because they
become part of the names of retry topics and their directories. Apache's broker does not check group names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import MAX_GROUPS, MAX_TOPIC_QUEUES
from cometmq.broker.tables.versioned_table import INT32_MAX, VersionedTable
from cometmq.clock import Clock
from cometmq.message.names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, check_group
from cometmq.remoting.bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper
from cometmq.store.disk import Disk

_log = logging.getLogger(__name__)


class SubscriptionGroupManager(VersionedTable[SubscriptionGroupConfig]):
    """The table of consumer groups, stored in ``config/subscriptionGroup.json``."""

    kind = SubscriptionGroupConfig
    noun = "group"
    field = "subscriptionGroupTable"

    def __init__(self, live: LiveConfig, path: Path, *, clock: Clock, disk: Disk | None = None) -> None:
        super().__init__(path, clock=clock, disk=disk)
        self._live = live

    def wrapper(self) -> SubscriptionGroupWrapper:
        """Return the table as the response body for slaves and tools."""
        return SubscriptionGroupWrapper(subscription_group_table=dict(self._table), data_version=self.version)

    def name_of(self, row: SubscriptionGroupConfig) -> str:
        """Return the name of a group from its row."""
        return row.group_name

    def wrong_name(self, name: str) -> str | None:
        """Return the reason why ``check_group`` refuses a group name, or ``None``."""
        return check_group(name)

    def wrong_row(self, row: SubscriptionGroupConfig) -> str | None:
        """Return the reason why a group's number of queues or retries is invalid, or ``None``."""
        if not 0 <= row.retry_queue_nums <= MAX_TOPIC_QUEUES:
            return f"retryQueueNums={row.retry_queue_nums}"
        if not -INT32_MAX <= row.retry_max_times <= INT32_MAX:
            return f"retryMaxTimes={row.retry_max_times}"
        return None

    def built_in(self) -> Iterable[SubscriptionGroupConfig]:
        """Return the system's built-in groups."""
        return (SubscriptionGroupConfig(group_name=name) for name in SYSTEM_GROUPS)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration; create a missing group if configuration, name and limits allow this."""
        found = self._table.get(group)
        if found is not None:
            return found
        if not self._live.current.auto_create_subscription_group and not group.startswith(SYSTEM_GROUP_PREFIX):
            return None
        if check_group(group) is not None or len(self._table) >= MAX_GROUPS:
            return None
        created = SubscriptionGroupConfig(group_name=group)
        _log.info("created subscription group %s on first use", group)
        self.put(created)
        return created
