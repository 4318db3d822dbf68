"""A broker's topics (``TopicConfigManager``).

A topic is created by an administrator, by a send to a missing topic (from the default topic that the producer names, if
that topic allows it), or by the first heartbeat of a consumer group (its retry topic).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.config import SLAVE, BrokerConfig, LiveConfig
from cometmq.broker.limits import MAX_TOPIC_QUEUES, MAX_TOPICS
from cometmq.broker.tables.versioned_table import INT32_MAX, VersionedTable
from cometmq.clock import Clock
from cometmq.message.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_EVENT,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    check_topic,
    reply_topic,
)
from cometmq.remoting.bodies import TopicConfig, TopicConfigSerializeWrapper
from cometmq.store.disk import Disk

_log = logging.getLogger(__name__)

READ_WRITE: Final = PERM_READ | PERM_WRITE
_CLUSTER_TOPIC_QUEUES: Final = 16
_BENCHMARK_QUEUES: Final = 1024
_SCHEDULE_QUEUES: Final = 18
_SINGLE_QUEUE: Final = 1


def perm_text(perm: int) -> str:
    """Format permissions like RocketMQ, for example ``RW-`` (``PermName.perm2String``)."""
    return "".join(
        letter if perm & bit else "-" for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )


def describe_topic(config: TopicConfig) -> str:
    """Describe a topic like RocketMQ's responses (``TopicConfig.toString``)."""
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={'true' if config.order else 'false'}]"
    )


class TopicConfigManager(VersionedTable[TopicConfig]):
    """The table of topics, stored in ``config/topics.json``."""

    kind = TopicConfig
    noun = "topic"
    field = "topicConfigTable"
    is_never_empty = True

    def __init__(self, live: LiveConfig, path: Path, *, clock: Clock, disk: Disk | None = None) -> None:
        super().__init__(path, clock=clock, disk=disk)
        self._live = live
        config = live.current
        self.system_topics = SYSTEM_TOPICS | {
            config.broker_cluster_name,
            config.broker_name,
            reply_topic(config.broker_cluster_name),
        }
        live.on_change.append(self._config_changed)

    @property
    def is_full(self) -> bool:
        """Return whether clients may not create more topics because the maximum has been reached."""
        return len(self._table) >= MAX_TOPICS

    def is_unsaved(self, topic: str) -> bool:
        """Return whether a topic has not been written yet, so that a crash would hide its messages."""
        return self.writer.is_new(topic)

    def wrapper(self) -> TopicConfigSerializeWrapper:
        """Return the table of topics as sent to nameservers, slaves and tools."""
        return TopicConfigSerializeWrapper(topic_config_table=dict(self._table), data_version=self.version)

    # --- rows -----------------------------------------------------------------------------------
    def name_of(self, row: TopicConfig) -> str:
        """Return the name of a topic from its row."""
        return row.topic_name

    def wrong_name(self, name: str) -> str | None:
        """Return the reason why ``check_topic`` refuses a topic name, or ``None``."""
        return check_topic(name)

    def wrong_row(self, row: TopicConfig) -> str | None:
        """Return the reason why a topic's number of queues, permission or flag is invalid, or ``None``."""
        for what, number, most in (
            ("readQueueNums", row.read_queue_nums, MAX_TOPIC_QUEUES),
            ("writeQueueNums", row.write_queue_nums, MAX_TOPIC_QUEUES),
            ("perm", row.perm, INT32_MAX),
            ("topicSysFlag", row.topic_sys_flag, INT32_MAX),
        ):
            if not 0 <= number <= most:
                return f"{what}={number}"
        return None

    def built_in(self) -> Iterable[TopicConfig]:
        """Return the built-in topics of the system, the cluster and the broker."""
        config = self._live.current
        yield _topic(SELF_TEST_TOPIC, _SINGLE_QUEUE)
        yield _topic(BENCHMARK_TOPIC, _BENCHMARK_QUEUES)
        yield _topic(OFFSET_MOVED_EVENT, _SINGLE_QUEUE)
        yield self._schedule_topic()
        yield _topic(TIMER_TOPIC, _SINGLE_QUEUE)
        yield _topic(reply_topic(config.broker_cluster_name), _SINGLE_QUEUE)
        cluster_perm = PERM_INHERIT | (READ_WRITE if config.cluster_topic_enable else 0)
        yield _topic(config.broker_cluster_name, _CLUSTER_TOPIC_QUEUES, cluster_perm)
        broker_perm = PERM_INHERIT | (READ_WRITE if config.broker_topic_enable else 0)
        yield _topic(config.broker_name, _SINGLE_QUEUE, broker_perm)
        if config.auto_create_topic_enable:
            yield self._default_topic()
        if config.trace_topic_enable:
            yield _topic(config.msg_trace_topic_name, _SINGLE_QUEUE)

    def _default_topic(self) -> TopicConfig:
        """Return the topic from which automatically created topics inherit."""
        return _topic(AUTO_CREATE_TOPIC, self._live.current.default_topic_queue_nums, READ_WRITE | PERM_INHERIT)

    def _config_changed(self, config: BrokerConfig) -> None:
        """Add the default topic if topics are created automatically; a slave copies it from its master."""
        is_wanted = config.auto_create_topic_enable and config.broker_role != SLAVE
        if is_wanted and AUTO_CREATE_TOPIC not in self._table:
            self.put(self._default_topic())

    def _schedule_topic(self) -> TopicConfig:
        """Return the topic for delayed messages, with one queue for each level in ``messageDelayLevel``."""
        return _topic(SCHEDULE_TOPIC, max(_SCHEDULE_QUEUES, len(self._live.current.delays_ms)))

    def load(self) -> list[str]:
        """Load the topics, and give the topic for delayed messages a queue for each level."""
        findings = super().load()
        levels = self._schedule_topic()
        if self._table[SCHEDULE_TOPIC].read_queue_nums < levels.read_queue_nums:
            self._table[SCHEDULE_TOPIC] = levels
            self._note_changed((SCHEDULE_TOPIC,))
        return findings

    # --- changing -------------------------------------------------------------------------------
    def note_queue(self, topic: str, queue_id: int) -> bool:
        """Create a topic for a slave's messages if the table lacks it, or give a retry topic more queues.

        Otherwise the messages would be hidden if the slave became the master before it copies the table of topics.
        Return whether the table changed.
        """
        known = self._table.get(topic)
        if known is not None:
            if not topic.startswith(RETRY_PREFIX) or queue_id < known.read_queue_nums:
                return False
            self.enlarge(known, queue_id + 1)
            return True
        if topic in SYSTEM_TOPICS or self.is_full or check_topic(topic) is not None:
            return False
        queues = _SINGLE_QUEUE if topic.startswith("%") else self._live.current.default_topic_queue_nums
        self.put(_topic(topic, max(queues, queue_id + 1)))
        return True

    def create_in_send(
        self, topic: str, *, default_topic: str, queue_nums: int, topic_sys_flag: int = 0
    ) -> TopicConfig | None:
        """Create a topic for the first message sent to it (``createTopicInSendMessageMethod``).

        The topic inherits from ``default_topic`` if that exists here with the inherit permission; topics inherit from
        TBW102 only while ``autoCreateTopicEnable`` is on. Return ``None`` if the topic may not be created.
        """
        existing = self._table.get(topic)
        if existing is not None:
            return existing
        parent = self._table.get(default_topic)
        if parent is None or not parent.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self._live.current.auto_create_topic_enable:
            return None
        queues = max(0, min(queue_nums, parent.write_queue_nums))
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=parent.perm & ~PERM_INHERIT,
            topic_filter_type=parent.topic_filter_type,
            topic_sys_flag=topic_sys_flag,
        )
        _log.info("created topic %s with %d queues from %s", topic, queues, default_topic)
        self.put(created)
        return created

    def create_retry(self, topic: str, *, queue_nums: int = _SINGLE_QUEUE, topic_sys_flag: int = 0) -> TopicConfig:
        """Create a missing topic for the broker's own messages (retries, dead letters or half messages).

        (``createTopicInSendMessageBackMethod``.)
        """
        existing = self._table.get(topic)
        if existing is not None:
            return existing
        created = _topic(topic, queue_nums, READ_WRITE, topic_sys_flag)
        self.put(created)
        return created

    def enlarge(self, topic: TopicConfig, queue_nums: int) -> TopicConfig:
        """Give one of the broker's own topics more queues, and return it. Like a new topic, it is saved before messages
        are stored in it, so that a crash does not hide them.
        """
        larger = msgspec.structs.replace(topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums)
        self.put(larger)
        self.writer.added(topic.topic_name)
        return larger


def _topic(name: str, queues: int, perm: int = READ_WRITE, topic_sys_flag: int = 0) -> TopicConfig:
    return TopicConfig(
        topic_name=name,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=perm,
        topic_sys_flag=topic_sys_flag,
    )
