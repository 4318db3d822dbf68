"""The topics of this broker: their table, its file, and how topics come into being (``TopicConfigManager``).

The table lives in ``config/topics.json``, written on every change before the change is answered. A
topic is made by an administrator, by a send to a topic that does not exist (from the default topic
that the producer names, where that one may be inherited from), or with the first heartbeat of a
consumer group (its retry topic).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from cometmq import fastjson
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.row_texts import RowTexts, differing, replace_rows
from cometmq.broker.slices import batches
from cometmq.broker.table_file import INT32_MAX, TableFile, versioned_table
from cometmq.clock import Clock
from cometmq.limits import MAX_TOPIC_QUEUES, MAX_TOPICS, TABLE_ROWS_PER_SLICE
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
from cometmq.remoting.bodies import BodyError, DataVersion, TopicConfig, TopicConfigSerializeWrapper, decode_body

_log = logging.getLogger(__name__)

READ_WRITE: Final = PERM_READ | PERM_WRITE
_CLUSTER_TOPIC_QUEUES: Final = 16
_BENCHMARK_QUEUES: Final = 1024
_SCHEDULE_QUEUES: Final = 18
_SINGLE_QUEUE: Final = 1

TopicListener = Callable[[str], None]


def perm_text(perm: int) -> str:
    """``RW-`` and so on, as RocketMQ prints permissions (``PermName.perm2String``)."""
    return "".join(
        letter if perm & bit else "-" for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )


def describe_topic(config: TopicConfig) -> str:
    """The text that RocketMQ's answers show for a topic (``TopicConfig.toString``)."""
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={'true' if config.order else 'false'}]"
    )


class TopicConfigManager:
    """The table of topics, its data version and its file.

    ``on_change`` is called with the topic's name after each change.
    """

    def __init__(self, live: LiveConfig, path: Path, *, clock: Clock) -> None:
        self._live = live
        self._file = TableFile(path)
        self._clock = clock
        self._table: dict[str, TopicConfig] = {}
        self._rows = RowTexts("topicConfigTable")
        self._unsaved: set[str] = set()
        self.version = DataVersion(timestamp=clock.now_ms(), counter=0)
        config = live.current
        self.system_topics = SYSTEM_TOPICS | {
            config.broker_cluster_name,
            config.broker_name,
            reply_topic(config.broker_cluster_name),
        }
        self.on_change: list[TopicListener] = []
        self.is_whole = True
        """Whether ``load`` found every topic that was written last."""
        self.on_due: Callable[[], None] = self.save
        """Called after each change: writes the file, or sees to it that it is written before the change is answered."""

    # --- Reading ------------------------------------------------------------------------------
    def get(self, topic: str) -> TopicConfig | None:
        """The configuration of a topic, or ``None``."""
        return self._table.get(topic)

    @property
    def is_full(self) -> bool:
        """Whether clients may bring no more topics into being."""
        return len(self._table) >= MAX_TOPICS

    @property
    def table(self) -> Mapping[str, TopicConfig]:
        """All topics by name; not to be changed."""
        return self._table

    def wrapper(self) -> TopicConfigSerializeWrapper:
        """The body that nameservers, slaves and tools get (code 21, 103)."""
        return TopicConfigSerializeWrapper(topic_config_table=dict(self._table), data_version=self.version)

    def is_unsaved(self, topic: str) -> bool:
        """Whether a topic is in memory only, so that its messages would be hidden after a crash."""
        return topic in self._unsaved

    @property
    def cannot_be_saved(self) -> bool:
        """Whether the file could not be written when that was last tried."""
        return self._file.failed

    # --- Loading ------------------------------------------------------------------------------
    def load(self) -> list[str]:
        """Read the file, add the topics that every broker has; return a line for each thing found wrong."""
        findings: list[str] = []
        stored = self._file.load(partial(versioned_table, "topicConfigTable"))
        if stored is not None:
            version, entries = stored
            self.version = version or self.version
            for name, entry in entries.items():
                topic, wrong = _checked(name, entry)
                if topic is not None:
                    self._table[name] = topic
                else:
                    self.is_whole = False
                    findings.append(f"topics.json: topic {name!r} left out: {wrong}")
        self.is_whole = self.is_whole and self._file.is_whole and bool(self._table)
        findings[:0] = self._file.findings
        for topic in self._built_in():
            if check_topic(topic.topic_name) is None:
                self._table.setdefault(topic.topic_name, topic)
        levels = self._schedule_topic()
        if self._table[SCHEDULE_TOPIC].read_queue_nums < levels.read_queue_nums:
            self._table[SCHEDULE_TOPIC] = levels
        for name in self._table:
            self._rows.changed(name)
        self._rows.refresh(self._table)
        return findings

    def _schedule_topic(self) -> TopicConfig:
        """A queue for each level of ``messageDelayLevel``, so that tools and readers see them all."""
        return _topic(SCHEDULE_TOPIC, max(_SCHEDULE_QUEUES, len(self._live.current.delays_ms)))

    def _built_in(self) -> list[TopicConfig]:
        config = self._live.current
        built_in = [
            _topic(SELF_TEST_TOPIC, _SINGLE_QUEUE),
            _topic(BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
            _topic(OFFSET_MOVED_EVENT, _SINGLE_QUEUE),
            self._schedule_topic(),
            _topic(TIMER_TOPIC, _SINGLE_QUEUE),
            _topic(reply_topic(config.broker_cluster_name), _SINGLE_QUEUE),
            _topic(
                config.broker_cluster_name,
                _CLUSTER_TOPIC_QUEUES,
                PERM_INHERIT | (READ_WRITE if config.cluster_topic_enable else 0),
            ),
            _topic(config.broker_name, _SINGLE_QUEUE, PERM_INHERIT | (READ_WRITE if config.broker_topic_enable else 0)),
        ]
        if config.auto_create_topic_enable:
            built_in.append(_topic(AUTO_CREATE_TOPIC, config.default_topic_queue_nums, READ_WRITE | PERM_INHERIT))
        if config.trace_topic_enable:
            built_in.append(_topic(config.msg_trace_topic_name, _SINGLE_QUEUE))
        return built_in

    # --- Changing -----------------------------------------------------------------------------
    def take_over(self, wrapper: TopicConfigSerializeWrapper) -> Iterator[None]:
        """Become a copy of a master's table, its version included; topics with names that cannot be are left out.

        Stops after each slice of the rows that differ; the version is the master's at the end.
        """
        if wrapper.data_version == self.version:
            return
        taken = {
            name: topic
            for name, topic in wrapper.topic_config_table.items()
            if topic.topic_name == name and check_topic(name) is None
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

    def note_queue(self, topic: str, queue_id: int) -> bool:
        """Make a topic of which a slave has messages, and its table does not know yet; return whether it was made.

        Without it these messages would be hidden, should the slave become the master before it copies the topic.
        """
        if topic in self._table or topic in SYSTEM_TOPICS or self.is_full or check_topic(topic) is not None:
            return False
        queues = _SINGLE_QUEUE if topic.startswith("%") else self._live.current.default_topic_queue_nums
        self.put(_topic(topic, max(queues, queue_id + 1)))
        return True

    def put(self, topic: TopicConfig) -> None:
        """Add or replace a topic; the name must have passed ``check_topic``."""
        assert check_topic(topic.topic_name) is None, topic.topic_name
        if topic.topic_name not in self._table:
            self._unsaved.add(topic.topic_name)
        self._table[topic.topic_name] = topic
        self._changed(topic.topic_name)

    def delete(self, topic: str) -> bool:
        """Remove a topic; whether it was there."""
        if self._table.pop(topic, None) is None:
            return False
        self._unsaved.discard(topic)
        self._changed(topic)
        return True

    def create_in_send(
        self, topic: str, *, default_topic: str, queue_nums: int, topic_sys_flag: int = 0
    ) -> TopicConfig | None:
        """Make a topic for the first message sent to it (``createTopicInSendMessageMethod``).

        It inherits from ``default_topic`` when that exists here with the inherit permission; TBW102
        may be inherited from only while ``autoCreateTopicEnable`` is on. Returns ``None`` when the
        topic may not be made.
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
        _log.info("create topic %s with %d queues from %s", topic, queues, default_topic)
        self.put(created)
        return created

    def create_retry(self, topic: str, *, queue_nums: int = _SINGLE_QUEUE, topic_sys_flag: int = 0) -> TopicConfig:
        """Make a topic that the broker itself stores to (retries, dead letters, half messages) unless it exists.

        (``createTopicInSendMessageBackMethod``.)
        """
        existing = self._table.get(topic)
        if existing is not None:
            return existing
        created = _topic(topic, queue_nums, READ_WRITE, topic_sys_flag)
        self.put(created)
        return created

    def is_retry(self, topic: str) -> bool:
        """Whether the topic holds retried messages of a group."""
        return topic.startswith(RETRY_PREFIX)

    def new_version(self) -> None:
        """Let nameservers and slaves take the whole table anew (after something changed for all topics)."""
        self.version = DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)
        self._file.changed()
        self.on_due()

    def _changed(self, topic: str) -> None:
        self._rows.changed(topic)
        self.new_version()
        for listener in self.on_change:
            listener(topic)

    def save(self) -> None:
        """Write the file if the table changed; on a full or broken disk it stays due for the next call."""
        if self._file.take_due():
            self._file.write_text(self._rows.text(self.version, self._table))
        if not self._file.failed:
            self._unsaved.clear()


def _checked(name: str, entry: Any) -> tuple[TopicConfig | None, str]:
    """The topic of one entry, or what is wrong with it."""
    try:
        topic = decode_body(TopicConfig, fastjson.dumps(entry))
    except (BodyError, TypeError, ValueError) as error:
        return None, str(error)
    wrong = check_topic(name)
    if wrong is not None or topic.topic_name != name:
        return None, wrong or "its entry has another name"
    for what, number, most in (
        ("readQueueNums", topic.read_queue_nums, MAX_TOPIC_QUEUES),
        ("writeQueueNums", topic.write_queue_nums, MAX_TOPIC_QUEUES),
        ("perm", topic.perm, INT32_MAX),
        ("topicSysFlag", topic.topic_sys_flag, INT32_MAX),
    ):
        if not 0 <= number <= most:
            return None, f"{what}={number}"
    return topic, ""


def _topic(name: str, queues: int, perm: int = READ_WRITE, topic_sys_flag: int = 0) -> TopicConfig:
    return TopicConfig(
        topic_name=name,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=perm,
        topic_sys_flag=topic_sys_flag,
    )
