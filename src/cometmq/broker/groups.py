"""The consumer groups of this broker: their table and its file (``SubscriptionGroupManager``).

The table lives in ``config/subscriptionGroup.json``, written on every change. A group is made by an
administrator or on first use. Group names are as strict as topic names, because the name of a group
becomes the name of its retry topic and so of directories (Apache does not check them).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cometmq import fastjson
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.row_texts import RowTexts, differing, replace_rows
from cometmq.broker.slices import batches
from cometmq.broker.table_file import INT32_MAX, TableFile, versioned_table
from cometmq.clock import Clock
from cometmq.limits import MAX_GROUPS, MAX_TOPIC_QUEUES, TABLE_ROWS_PER_SLICE
from cometmq.message.names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, check_group
from cometmq.remoting.bodies import (
    BodyError,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    decode_body,
)

_log = logging.getLogger(__name__)

GroupListener = Callable[[str], None]


class SubscriptionGroupManager:
    """The table of consumer groups, its data version and its file."""

    def __init__(self, live: LiveConfig, path: Path, *, clock: Clock) -> None:
        self._live = live
        self._file = TableFile(path)
        self._clock = clock
        self._table: dict[str, SubscriptionGroupConfig] = {}
        self._rows = RowTexts("subscriptionGroupTable")
        self.version = DataVersion(timestamp=clock.now_ms(), counter=0)
        self.on_change: list[GroupListener] = []
        self.is_whole = True
        """Whether ``load`` found every group that was written last."""
        self.on_due: Callable[[], None] = self.save
        """Called after each change: writes the file, or sees to it that it is written before the change is answered."""

    @property
    def table(self) -> Mapping[str, SubscriptionGroupConfig]:
        """All groups by name; not to be changed."""
        return self._table

    def wrapper(self) -> SubscriptionGroupWrapper:
        """The body that slaves and tools get (code 201)."""
        return SubscriptionGroupWrapper(subscription_group_table=dict(self._table), data_version=self.version)

    def load(self) -> list[str]:
        """Read the file and add the groups every broker has; return a line for each thing found wrong."""
        findings: list[str] = []
        stored = self._file.load(partial(versioned_table, "subscriptionGroupTable"))
        if stored is not None:
            version, entries = stored
            self.version = version or self.version
            for name, entry in entries.items():
                group, wrong = _checked(name, entry)
                if group is not None:
                    self._table[name] = group
                else:
                    self.is_whole = False
                    findings.append(f"subscriptionGroup.json: group {name!r} left out: {wrong}")
        self.is_whole = self.is_whole and self._file.is_whole
        findings[:0] = self._file.findings
        for name in SYSTEM_GROUPS:
            self._table.setdefault(name, SubscriptionGroupConfig(group_name=name))
        for name in self._table:
            self._rows.changed(name)
        self._rows.refresh(self._table)
        return findings

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The configuration of a group, or ``None``; never makes one."""
        return self._table.get(group)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The configuration of a group; made now if that is on, the name is valid and there is room."""
        found = self._table.get(group)
        if found is not None:
            return found
        if not self._live.current.auto_create_subscription_group and not group.startswith(SYSTEM_GROUP_PREFIX):
            return None
        if check_group(group) is not None or len(self._table) >= MAX_GROUPS:
            return None
        created = SubscriptionGroupConfig(group_name=group)
        _log.info("create subscription group %s on first use", group)
        self.put(created)
        return created

    def take_over(self, wrapper: SubscriptionGroupWrapper) -> Iterator[None]:
        """Become a copy of a master's table, its version included; groups with names that cannot be are left out.

        Stops after each slice of the rows that differ; the version is the master's at the end.
        """
        if wrapper.data_version == self.version:
            return
        taken = {
            name: group
            for name, group in wrapper.subscription_group_table.items()
            if group.group_name == name and check_group(name) is None
        }
        for some in batches(differing(self._table, taken), TABLE_ROWS_PER_SLICE):
            replace_rows(self._table, taken, some)
            for name in some:
                self._rows.changed(name)
            self._rows.refresh(self._table)
            yield
        self.version = wrapper.data_version
        self._file.changed()
        self.on_due()

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Add or replace a group; the name must have passed ``check_group``."""
        assert check_group(group.group_name) is None, group.group_name
        self._table[group.group_name] = group
        self._changed(group.group_name)

    def delete(self, group: str) -> bool:
        """Remove a group; whether it was there."""
        if self._table.pop(group, None) is None:
            return False
        self._changed(group)
        return True

    def _changed(self, group: str) -> None:
        self._rows.changed(group)
        self.version = DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)
        self._file.changed()
        self.on_due()
        for listener in self.on_change:
            listener(group)

    def save(self) -> None:
        """Write the file if the table changed; on a full or broken disk it stays due for the next call."""
        if self._file.take_due():
            self._file.write_text(self._rows.text(self.version, self._table))


def _checked(name: str, entry: Any) -> tuple[SubscriptionGroupConfig | None, str]:
    """The group of one entry, or what is wrong with it."""
    try:
        group = decode_body(SubscriptionGroupConfig, fastjson.dumps(entry))
    except (BodyError, TypeError, ValueError) as error:
        return None, str(error)
    wrong = check_group(name)
    if wrong is not None or group.group_name != name:
        return None, wrong or "its entry has another name"
    if not 0 <= group.retry_queue_nums <= MAX_TOPIC_QUEUES:
        return None, f"retryQueueNums={group.retry_queue_nums}"
    if not -INT32_MAX <= group.retry_max_times <= INT32_MAX:
        return None, f"retryMaxTimes={group.retry_max_times}"
    return group, ""
