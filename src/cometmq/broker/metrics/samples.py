"""Yields the samples of a broker's metrics, part by part, in lists that take about a millisecond each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from cometmq.broker.advertised_check import AdvertisedCheck
from cometmq.broker.archived.archived_messages import ArchivedMessages
from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.timer_message import TimerMessageService
from cometmq.broker.failover.states import LEADING, State
from cometmq.broker.failover.status import FailoverMember
from cometmq.broker.metrics import families as f
from cometmq.broker.metrics.waiting_messages import WaitingMessages
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.replication.ha_service import HAService
from cometmq.broker.slices import Slice
from cometmq.broker.statistics.pop_counts import STORED, PopCounts
from cometmq.broker.statistics.traffic import Event, Traffic
from cometmq.message.names import (
    is_system_group,
    is_system_topic,
)
from cometmq.metrics.exposition import in_slices
from cometmq.metrics.family import Sample, Steps
from cometmq.remoting.codes import version_name

_POP_LOG_QUEUE: Final = "0"
_PROTOCOL: Final = "remoting"
_MODES: Final = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}
_EVENTS: Final = {
    Event.COMMIT: (f.COMMITS, ()),
    Event.ROLLBACK: (f.ROLLBACKS, ()),
    Event.TIMER_IN: (f.TIMER_ENQUEUE, f.STORAGE),
    Event.TIMER_OUT: (f.TIMER_DEQUEUE, f.STORAGE),
}


def text(value: bool) -> str:
    """Format a boolean as a label value."""
    return "true" if value else "false"


def sample_tables(broker: BrokerContext) -> Iterator[Sample]:
    """Yield samples of the broker's permission, the numbers of topics and groups, and the duration of their
    creation.
    """
    yield f.BROKER_PERMISSION, (), broker.config.broker_permission
    yield f.TOPIC_NUMBER, (), len(broker.topics.table)
    yield f.GROUP_NUMBER, (), len(broker.groups.table)
    for labels, times in broker.stats.creations.topics.items():
        yield f.TOPIC_CREATIONS, labels, times
    for labels, times in broker.stats.creations.groups.items():
        yield f.GROUP_CREATIONS, labels, times


def sample_messages(broker: BrokerContext, traffic: Traffic) -> Iterator[Sample]:
    """Yield samples of incoming and outgoing messages."""
    for (topic, kind), counted in traffic.messages_in():
        labels = (topic, kind, text(is_system_topic(topic)))
        yield f.MESSAGES_IN, labels, counted.count
        yield f.THROUGHPUT_IN, labels, counted.bytes
        yield f.MESSAGE_SIZE, labels, counted.sizes
    for taken in broker.stats.taken():
        is_system = is_system_topic(taken.topic) or is_system_group(taken.group)
        labels_out = (taken.topic, taken.group, text(taken.is_retry), text(is_system))
        yield f.MESSAGES_OUT, labels_out, taken.messages
        yield f.THROUGHPUT_OUT, labels_out, taken.size_bytes
    for (topic, group), count in traffic.dead_letters():
        yield f.TO_DLQ, (topic, group, text(is_system_topic(topic))), count
    for (topic, group), count in traffic.expired_messages():
        yield f.EXPIRED, (topic, group, text(is_system_topic(topic))), count
    for (event, topic), count in traffic.events():
        family, more = _EVENTS[event]
        yield family, (topic, *more), count
    for topic, histogram in list(traffic.finishes.items()):
        yield f.FINISH_LATENCY, (topic,), histogram
    for topic, histogram in list(traffic.delays.items()):
        yield f.DELAY_LATENCY, (topic, *f.STORAGE), histogram


def sample_clients(broker: BrokerContext) -> Iterator[Sample]:
    """Yield samples of connected producers and consumers, by language and version."""
    clients = broker.clients
    producers = Counter((channel.language, channel.version) for channel in clients.producers.channels())
    for (language, version), count in producers.items():
        yield f.PRODUCER_CONNECTIONS, (*_client(language, version), _PROTOCOL), count
    for group in list(clients.consumers.groups.values()):
        mode = _MODES.get(group.consume_type, "unknown")
        members = Counter((channel.language, channel.version) for channel in group.channels.values())
        for (language, version), count in members.items():
            labels = (group.name, *_client(language, version), _PROTOCOL, mode, text(is_system_group(group.name)))
            yield f.CONSUMER_CONNECTIONS, labels, count


def _client(language: str, version: int) -> tuple[str, str]:
    return language.lower()[:_MAX_LANGUAGE_CHARS], version_name(version).lower()


_MAX_LANGUAGE_CHARS: Final = 16
"""Maximum length of a language name, since clients may send any text as their language."""


def sample_store(broker: BrokerContext) -> Iterator[Sample]:
    """Yield samples of the log's size, and of how far the flush and the queues are behind its end."""
    store = broker.store
    earliest_ms = store.earliest_store_time()
    yield f.STORAGE_SIZE, f.STORAGE, store.max_physical_offset - store.min_physical_offset
    yield f.FLUSH_BEHIND, f.STORAGE, max(store.max_physical_offset - store.flushed_position, 0)
    yield f.DISPATCH_BEHIND, f.STORAGE, store.dispatch_behind_bytes
    yield f.RESERVE_TIME, f.STORAGE, broker.clock.now_ms() - earliest_ms if earliest_ms >= 0 else 0
    yield f.DISK_RATIO, (), store.disk_usage()
    yield f.REFUSED_MESSAGES, (), broker.stats.put_failed


def sample_queue_entries(broker: BrokerContext) -> Steps:
    """Yield samples of queue entries that have no message."""
    missing = 0
    part = Slice()
    for count in broker.store.missing_entries_by_topic():
        missing += count
        if part.ends_after():
            yield []
    yield [(f.MISSING_ENTRIES, (), missing)]


def sample_addresses(check: AdvertisedCheck) -> Iterator[Sample]:
    """Yield samples of the addresses that clients receive."""
    for listener, address in check.addresses.items():
        yield f.ADDRESS_WRONG, (listener, address), int(listener in check.wrong)


def sample_archive(archived: ArchivedMessages | None) -> Iterator[Sample]:
    """Yield samples of the archive from which deleted messages are read."""
    if archived is None:
        return
    yield f.ARCHIVE_READABLE, (), int(archived.is_readable)
    yield f.ARCHIVE_MESSAGES, (), archived.records
    yield f.ARCHIVE_FAILURES, (), archived.failures
    yield f.ARCHIVE_RESTARTS, (), archived.process.restarts
    yield f.ARCHIVE_WAITING, (), archived.waiting


def sample_replication(ha: HAService) -> Iterator[Sample]:
    """Yield samples of how many bytes each slave is behind, and whether it is in sync."""
    slaves = [slave for slave in ha.slaves if slave.has_begun]
    yield f.SLAVES, (), len(slaves)
    yield f.SLAVE_REMOVALS, (), ha.in_sync_losses
    for slave in slaves:
        yield f.SLAVE_BEHIND, (slave.address,), slave.behind
        yield f.SLAVE_IN_SYNC, (slave.address,), int(slave.is_in_sync)


def sample_failover(member: FailoverMember | None) -> Iterator[Sample]:
    """Yield samples of a member's view of its set."""
    if member is None:
        return
    machine = member.machine
    document, is_leading = machine.view.document, machine.state in LEADING
    yield f.FAILOVER_EPOCH, (), machine.epoch
    yield f.FAILOVER_IS_MASTER, (), int(is_leading)
    for state in State:
        yield f.FAILOVER_STATE, (state.value,), int(machine.state is state)
    yield f.FAILOVER_REFUSES, (), int(is_leading and bool(machine.refusal))
    yield f.FAILOVER_CONFIRMED, (), machine.confirmed
    yield f.FAILOVER_UNCONFIRMED, (), max(machine.log.end - machine.confirmed, 0)
    yield f.FAILOVER_ENGINE, (), int(not machine.view.trouble)
    yield f.FAILOVER_ELECTIONS, (), member.changes.elections
    if document is not None:
        yield f.FAILOVER_MEMBERS, (), len(document.replicas)
        yield f.FAILOVER_IN_SYNC, (), len(document.in_sync)
        yield f.FAILOVER_CHANGED, (), document.at_ms / 1000


def sample_timer(
    broker: BrokerContext, timer: TimerMessageService | None, waiting: WaitingMessages
) -> Iterator[Sample]:
    """Yield samples of messages with arbitrary delays.

    :param waiting: number of waiting messages by topic, from the last count.
    """
    if timer is None:
        return
    yield f.TIMER_ENQUEUE_LAG, f.STORAGE, timer.unread
    yield f.TIMER_ENQUEUE_LATENCY, f.STORAGE, timer.unread_ms
    yield f.TIMER_DEQUEUE_LAG, f.STORAGE, timer.overdue
    yield f.TIMER_DEQUEUE_LATENCY, f.STORAGE, timer.behind_ms
    for topic, count in waiting.by_topic(broker.topics.table).items():
        yield f.TIMING_MESSAGES, (topic, *f.STORAGE), count
    for seconds, due in waiting.due_within().items():
        yield f.TIMER_SNAPSHOT, (str(seconds), *f.STORAGE), due


def sample_pops(log: PopLog | None, counts: PopCounts, now_ms: int) -> Steps:
    """Yield samples of popped messages."""
    if log is None:
        return
    messages = latency = in_flight = 0
    part = Slice()
    for queue in log.state:
        late, ms = queue.invisible.overdue(now_ms)
        messages, latency = messages + late, max(latency, ms)
        in_flight += queue.in_flight
        if part.ends_after():
            yield []
    yield [
        (f.POP_REVIVE_LAG, (_POP_LOG_QUEUE,), messages),
        (f.POP_REVIVE_LATENCY, (_POP_LOG_QUEUE,), latency),
        (f.POP_CHECKPOINTS, (), in_flight),
        (f.POP_OFFSETS, (), log.pending),
        (f.POP_SCANS, (), counts.scans),
    ]
    yield from in_slices(_of_pop_log(counts))


def _of_pop_log(counts: PopCounts) -> Iterator[Sample]:
    for ((group, topic, kind), status), count in list(counts.put.items()):
        yield f.POP_IN, (group, topic, kind, status), count
        if status == STORED:
            yield f.POP_OUT, (group, topic, _POP_LOG_QUEUE, kind), count
    for labels, count in list(counts.copies.items()):
        yield f.POP_RETRIES, labels, count
