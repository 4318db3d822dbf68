"""The topics of send requests, and the checks for sends (``AbstractSendMessageProcessor.msgCheck``; hot path).

The checks have the order and error texts of Apache's broker. A topic that passed all checks is remembered until its
configuration changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from cometmq.broker.config import BrokerConfig, LiveConfig
from cometmq.broker.limits import MAX_TOPICS, SLICES_SECONDS
from cometmq.broker.statistics.stats import Counted
from cometmq.broker.statistics.traffic import NORMAL
from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.table_writer import TableWriter
from cometmq.broker.tables.topic_attributes import (
    EXPIRED_MESSAGES,
    PRIORITY,
    SKIP,
    has_life_times,
    is_lite,
    message_type_of,
)
from cometmq.broker.tables.topics import TopicConfigManager, describe_topic
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.names import (
    DLQ_PREFIX,
    NOT_ALLOWED_SEND_TOPICS,
    PERM_WRITE,
    RETRY_PREFIX,
    REVIVE_TOPIC_PREFIX,
    check_group,
    check_topic,
    is_system_topic,
)
from cometmq.message.record import MIN_RECORD_BYTES
from cometmq.message.sysflag import MULTI_TAGS, TOPIC_UNIT, TOPIC_UNIT_SUB
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import NOT_STORED, ResponseCode
from cometmq.remoting.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from cometmq.remoting.processors import PostponeError, Response, RpcRejectedError
from cometmq.store.errors import StoreError
from cometmq.store.message_store import ConsumeQueue, MessageStore
from cometmq.store.queue.consume_queue import MAX_QUEUE_ID

SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2

TOPIC_HELP: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
_MULTI_TAG: Final = "MULTI_TAG"


class RefusedError(RpcRejectedError):
    """A request that the broker itself refuses."""


class NotServingError(RefusedError):
    """The broker stores nothing now. The message is certainly not stored, so it can be sent again or elsewhere."""

    def __init__(self, reason: str) -> None:
        super().__init__(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {reason}")

    def response(self, ext: Mapping[str, str] | None = None) -> Response:
        """Return the response to send."""
        return super().response({**(ext or {}), NOT_STORED: "true"})


def perhaps_stored(error: StoreError) -> RefusedError:
    """Return the refusal of messages whose write or flush failed. A later start may find them in the log."""
    return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}")


QueueFound = Callable[["SendTarget", ConsumeQueue], None]
"""A callback that is called when the first message is sent to a queue."""


class SendTarget:
    """A topic for sends, with the queues that have been used.

    :param on_queue: called once with each queue, since the compiled core may store messages only in queues that it
    knows.
    """

    __slots__ = (
        "_on_queue",
        "_store",
        "config",
        "counted",
        "fixed_bytes",
        "has_life_times",
        "is_lite",
        "is_retry",
        "queues",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        config: TopicConfig,
        store: MessageStore,
        on_queue: Sequence[QueueFound] = (),
    ) -> None:
        self.config = config
        self.topic = config.topic_name
        self.is_retry = self.topic.startswith(RETRY_PREFIX)
        self.is_lite = is_lite(config.attributes)
        """True if the topic has lite topics."""
        self.sys_flag = MULTI_TAGS if config.topic_filter_type == _MULTI_TAG else 0
        self.counted: Counted = (self.topic, NORMAL)
        """The topic and its usual message type, for statistics."""
        self.has_life_times = (
            has_life_times(config.attributes) or self.topic.startswith(DLQ_PREFIX) or is_system_topic(self.topic)
        )
        """True if readers look at the life times of its messages, or never do."""
        self.fixed_bytes = len(self.topic) + MIN_RECORD_BYTES
        """Size of a record without body and properties."""
        self._store = store
        self._on_queue = on_queue
        self.queues: dict[int, ConsumeQueue] = {}

    def open_queue(self, queue_id: int, peer: str) -> ConsumeQueue:
        """Return the queue that a producer requested, and add it to ``queues``; a negative ID selects any writable
        queue.

        :raises RefusedError: the topic does not have this queue.
        """
        config = self.config
        if queue_id < 0 and config.write_queue_nums > 0:
            queue_id = random.randrange(config.write_queue_nums)
        if not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums):
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{queue_id}] is illegal, {describe_topic(config)} Producer: {peer}",
            )
        if (known := self.queues.get(queue_id)) is not None:
            return known
        queue = self.queues[queue_id] = self._store.queue(self.topic, queue_id)
        for found in self._on_queue:
            found(self, queue)
        return queue

    def open_level(self, priority: int, peer: str) -> ConsumeQueue:
        """Return the queue for messages with a priority: the one with this ID, or the last one if there are fewer.

        :raises RefusedError: the topic has no writable queue.
        """
        queue_id = min(priority, self.config.write_queue_nums - 1)
        return self.queues.get(queue_id) or self.open_queue(queue_id, peer)

    def open_inner(self, queue_id: int) -> ConsumeQueue:
        """Return the queue for a message that the broker itself stores; see :func:`existing_queue`.

        :raises ValueError: the topic name or queue ID is invalid in RocketMQ.
        """
        if queue_id <= MAX_QUEUE_ID:
            queue_id = existing_queue(self.config, queue_id)
        return self._store.queue(self.topic, queue_id)


def existing_queue(topic: TopicConfig, queue_id: int) -> int:
    """Return the queue ID if the topic still has this queue, otherwise the ID of another readable queue.

    All messages from one queue are moved to the same queue, so they keep their order. If the queues are levels of
    priority, this is the last one.
    """
    if queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
        return queue_id
    queues = min(topic.read_queue_nums, topic.write_queue_nums) or topic.read_queue_nums
    if message_type_of(topic.attributes) == PRIORITY:
        return max(queues - 1, 0)
    return queue_id % queues if queues else queue_id


class SendTargets:
    """The topics to which messages were sent, by name."""

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        store: MessageStore,
        tables: TableWriter,
    ) -> None:
        self._live = live
        self._tables = tables
        self._topics = topics
        self._groups = groups
        self._store = store
        self._clock = store.clock
        self.on_queue: Final[list[QueueFound]] = []
        """Called with each queue of a checked topic, except for queues of retry topics."""
        self.on_forget: Final[list[Callable[[str | None], None]]] = []
        """Called with a topic that must be checked again, or with ``None`` for all topics."""
        self._known: dict[str, SendTarget] = {}
        self._inner: dict[str, SendTarget] = {}
        self._has_unsaved = False
        self._postponed: dict[str, list[Callable[[], None]]] = {}
        """Sends to topics that are still being saved, by topic, in order."""
        topics.on_change.append(self.forget)
        live.on_change.append(lambda _: self._forget_all())

    @property
    def known(self) -> Mapping[str, SendTarget]:
        """The topics that have passed all checks since their configuration last changed, by name."""
        return self._known

    @property
    def config(self) -> BrokerConfig:
        """The current configuration."""
        return self._live.current

    def forget(self, topic: str) -> None:
        """Forget a topic, so that the next send checks it and looks up its queues again."""
        self._known.pop(topic, None)
        self._inner.pop(topic, None)
        for forget in self.on_forget:
            forget(topic)

    def _forget_all(self) -> None:
        self._known.clear()
        for forget in self.on_forget:
            forget(None)

    def resolve(self, header: SendHeader) -> SendTarget:
        """Check the topic of a send request; create it if that is allowed.

        :raises RefusedError: the send is refused; code and text are Apache's.
        :raises PostponeError: the topic is being written.
        """
        config = self._live.current
        accepts_from = config.start_accept_send_request_time_stamp
        if accepts_from > self._clock.now_ms():
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {accepts_from} (ms since 1970)"
            )
        name = header.topic
        topic = self._topics.get(name)
        if topic is not None and topic.order and not config.broker_permission & PERM_WRITE:
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        wrong = check_topic(name)
        if wrong is not None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, wrong)
        if name in NOT_ALLOWED_SEND_TOPICS or name.startswith(REVIVE_TOPIC_PREFIX):
            raise RefusedError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        if name.startswith(RETRY_PREFIX):
            self._check_retried_group(name.removeprefix(RETRY_PREFIX))
        if topic is None:
            if self._topics.cannot_be_saved:
                raise _topics_not_saved()
            topic = self._create(header)
        self.require_saved(name)
        on_queue = () if name.startswith(RETRY_PREFIX) else self.on_queue
        target = self._known[topic.topic_name] = SendTarget(topic, self._store, on_queue)
        return target

    def inner(self, name: str) -> SendTarget:
        """Return a topic for messages from the broker itself, without checking permissions or creating the topic."""
        target = self._inner.get(name)
        if target is None:
            topic = self._topics.get(name)
            if topic is not None and self._topics.is_unsaved(name):
                self._has_unsaved = True
            target = self._inner[name] = SendTarget(topic or TopicConfig(topic_name=name), self._store)
        return target

    def note_life_times(self, name: str) -> None:
        """Note in the table of topics that a topic's messages may have life times; it is saved with the turn."""
        topic = self._topics.get(name)
        if topic is not None and not has_life_times(topic.attributes):
            attributes = {**(topic.attributes or {}), EXPIRED_MESSAGES: SKIP}
            self._topics.put(msgspec.structs.replace(topic, attributes=attributes))
            self._has_unsaved = True

    def save_topics(self) -> None:
        """Save the topics created or changed in this turn, because recovery after a crash hides unsaved topics.

        :raises RefusedError: the file cannot be written, so nothing in the turn may be stored.
        """
        if self._has_unsaved:
            self._has_unsaved = False
            self._tables.write_now()
            if self._topics.cannot_be_saved:
                self._forget_all()
                raise _topics_not_saved()

    def require_saved(self, topic: str) -> None:
        """If the topic of a message has not been saved yet, refuse or postpone the request that stores the message.

        Otherwise a crash would hide the message. Postponed requests are handled in order, before later ones.

        :raises PostponeError: the topic is being written.
        :raises RefusedError: the topic cannot be written.
        """
        if topic in self._postponed or self._topics.is_unsaved(topic):
            if self._topics.cannot_be_saved:
                raise _topics_not_saved()
            raise PostponeError(partial(self._postpone_until_saved, topic))

    def _postpone_until_saved(self, topic: str, again: Callable[[], None]) -> None:
        waiting = self._postponed.get(topic)
        if waiting is None:
            self._postponed[topic] = [again]
            self._tables.when_written(lambda _failure: self._handle_postponed(topic))
        else:
            waiting.append(again)

    def _handle_postponed(self, topic: str) -> None:
        """Handle postponed sends to a topic while this round has time left."""
        waiting = self._postponed.pop(topic)
        until = SYSTEM_CLOCK.monotonic() + SLICES_SECONDS
        for handled, again in enumerate(waiting, 1):
            again()
            if topic in self._postponed:  # the topic was deleted and created again, and is being written
                self._postponed[topic] += waiting[handled:]
                return
            if handled < len(waiting) and SYSTEM_CLOCK.monotonic() >= until:
                self._postponed[topic] = waiting[handled:]
                self.forget(topic)  # so that later sends are checked, and wait behind these
                self._tables.continue_with(partial(self._handle_postponed, topic))
                return

    def _check_retried_group(self, group: str) -> None:
        wrong = check_group(group)
        if wrong is not None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, wrong)
        if self._groups.find(group) is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")

    def _create(self, header: SendHeader) -> TopicConfig:
        name = header.topic
        if self._topics.is_full:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{name}] cannot be created, this broker already has {MAX_TOPICS} topics",
            )
        is_retry = name.startswith(RETRY_PREFIX)
        topic_sys_flag = (TOPIC_UNIT_SUB if is_retry else TOPIC_UNIT) if header.unit_mode else 0
        topic = self._topics.create_in_send(
            name,
            default_topic=header.default_topic,
            queue_nums=header.default_topic_queue_nums,
            topic_sys_flag=topic_sys_flag,
        )
        if topic is None and is_retry:
            topic = self._topics.create_retry(name, topic_sys_flag=topic_sys_flag)
        if topic is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{TOPIC_HELP}"
            )
        return topic


def consuming_group(groups: SubscriptionGroupManager, name: str) -> SubscriptionGroupConfig:
    """Return the configuration of a group that may consume.

    :raises RefusedError: the group does not exist or may not consume.
    """
    group = groups.find(name)
    if group is None:
        wrong = check_group(name)
        if wrong is not None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, wrong)
        raise RefusedError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{name}] does not exist, {TOPIC_HELP.strip()}",
        )
    if not group.consume_enable:
        raise RefusedError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
    return group


def _topics_not_saved() -> NotServingError:
    return NotServingError("the table of topics cannot be written (free some space, or check the disk)")
