"""Repairs damaged tables: topics from their queues, groups from consumer offsets and retry topics.

Restored topics and groups have default settings. For consumer offsets, see
:attr:`~cometmq.broker.tables.consumer_offsets.ConsumerOffsetManager.lost_of`.
"""

from __future__ import annotations

from cometmq.broker.limits import MAX_GROUPS
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager
from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.table_file import shown_names
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUPS, check_group
from cometmq.remoting.bodies import SubscriptionGroupConfig
from cometmq.store.message_store import MessageStore


def recover_tables(
    topics: TopicConfigManager, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager, store: MessageStore
) -> list[str]:
    """Repair the tables after ``load`` and write them; return a line for each damaged table."""
    on_due = topics.on_due, groups.on_due
    topics.on_due = groups.on_due = lambda: None  # in one pass, not for each topic and group
    try:
        findings = _recover(topics, groups, offsets, store)
    finally:
        topics.on_due, groups.on_due = on_due
    topics.save()
    groups.save()
    return findings


def limit_offsets(topics: TopicConfigManager, offsets: ConsumerOffsetManager, store: MessageStore) -> list[str]:
    """Limit all offsets to the ends of their queues; return a line if some were past the end.

    An offset past the end was committed before the log lost its last messages; a group that kept this offset would skip
    new messages.
    """
    ahead: list[tuple[str, str, int, int]] = []
    for key, of_queues in offsets.table.items():
        topic, _, group = key.partition("@")
        if topics.get(topic) is None:
            continue
        queues = store.queues().get(topic, {})
        for queue_id, offset in of_queues.as_dict().items():
            end = queues[queue_id].committed if queue_id in queues else 0
            if offset > end:
                ahead.append((group, topic, queue_id, end))
    for group, topic, queue_id, end in ahead:
        offsets.set_offset(group, topic, queue_id, end)
    if not ahead:
        return []
    names = shown_names(sorted({group for group, *_ in ahead}))
    return [f"consumerOffset.json: {names} had offsets past the end of {len(ahead)} queues; they continue at the end"]


def _recover(
    topics: TopicConfigManager, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager, store: MessageStore
) -> list[str]:
    findings: list[str] = []
    if not topics.is_whole:
        found = [name for name, queues in store.queues().items() if queues and topics.note_queue(name, max(queues))]
        if found:
            findings.append(
                f"topics.json: restored {shown_names(found)} from their queues, with the settings of new topics"
            )
    if not groups.is_whole:
        known = {*(key.partition("@")[2] for key in offsets.table)}
        for name in topics.table:
            for prefix in (RETRY_PREFIX, DLQ_PREFIX):
                if name.startswith(prefix):
                    known.add(name.removeprefix(prefix))
        found = sorted(name for name in known if groups.get(name) is None and check_group(name) is None)
        for name in found[: max(MAX_GROUPS - len(groups.table), 0)]:
            groups.put(SubscriptionGroupConfig(group_name=name))
        if found:
            findings.append(
                f"subscriptionGroup.json: restored {shown_names(found)} from offsets and retry topics, with the "
                "settings of new groups"
            )
    if offsets.is_damaged:
        offsets.lost_of = frozenset(groups.table) - frozenset(SYSTEM_GROUPS)
        if offsets.lost_of:
            names = shown_names(sorted(offsets.lost_of))
            findings.append(
                f"consumerOffset.json: in queues without a known offset, {names} start at the first message "
                "until they commit an offset"
            )
    return findings
