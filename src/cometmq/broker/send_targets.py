"""Where a send goes: the topic's state as the hot path needs it, and the checks that come before it.

The order of the checks and their words are those of ``AbstractSendMessageProcessor.msgCheck``. A topic
that passed is remembered until its configuration changes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from cometmq.broker.groups import SubscriptionGroupManager
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.topics import TopicConfigManager, describe_topic
from cometmq.clock import Clock
from cometmq.limits import MAX_TOPICS
from cometmq.message.names import (
    NOT_ALLOWED_SEND_TOPICS,
    PERM_WRITE,
    RETRY_PREFIX,
    check_group,
    check_topic,
    dlq_topic,
)
from cometmq.message.sysflag import MULTI_TAGS, TOPIC_UNIT, TOPIC_UNIT_SUB
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from cometmq.store.message_store import MessageStore, TopicQueue

SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2

TOPIC_HELP: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
V3_4_9: Final = 121
"""From this version on a consumer says itself how often a message may fail."""
DLQ_QUEUES: Final = 1
"""Queues of a dead-letter topic."""
_MULTI_TAG: Final = "MULTI_TAG"


class SendRefusedError(Exception):
    """A send that is answered with an error."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class SendTarget:
    """One topic as sends see it; ``messages`` and ``size_bytes`` count what the turn under way added."""

    __slots__ = ("_store", "config", "is_retry", "messages", "queues", "size_bytes", "sys_flag", "topic")

    def __init__(self, config: TopicConfig, store: MessageStore) -> None:
        self.config = config
        self.topic = config.topic_name
        self.is_retry = self.topic.startswith(RETRY_PREFIX)
        self.sys_flag = MULTI_TAGS if config.topic_filter_type == _MULTI_TAG else 0
        self.messages = 0
        self.size_bytes = 0
        self._store = store
        self.queues: dict[int, TopicQueue] = {}

    def open_queue(self, queue_id: int, peer: str) -> TopicQueue:
        """The queue that a producer named, from now on in ``queues``; a negative id asks for any that may be written.

        :raises SendRefusedError: the topic has no such queue.
        """
        config = self.config
        if queue_id < 0 and config.write_queue_nums > 0:
            queue_id = random.randrange(config.write_queue_nums)
        if not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums):
            raise SendRefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{queue_id}] is illegal, {describe_topic(config)} Producer: {peer}",
            )
        queue = self.queues[queue_id] = self._store.queue(self.topic, queue_id)
        return queue


class SendTargets:
    """All topics that were sent to, by name."""

    def __init__(
        self,
        live: LiveConfig,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        store: MessageStore,
        *,
        clock: Clock,
    ) -> None:
        self._live = live
        self._topics = topics
        self._groups = groups
        self._store = store
        self._clock = clock
        self._known: dict[str, SendTarget] = {}
        self._inner: dict[str, SendTarget] = {}
        self._has_unsaved = False
        topics.on_change.append(self._forget)
        live.on_change.append(lambda _: self._known.clear())

    @property
    def known(self) -> Mapping[str, SendTarget]:
        """The topics that passed all checks; a topic leaves when its configuration changes."""
        return self._known

    def _forget(self, topic: str) -> None:
        self._known.pop(topic, None)
        self._inner.pop(topic, None)

    def resolve(self, header: SendHeader) -> SendTarget:
        """Check the topic of a send, making it where that is allowed.

        :raises SendRefusedError: with code and words.
        """
        config = self._live.current
        accepts_from = config.start_accept_send_request_time_stamp
        if accepts_from > self._clock.now_ms():
            raise SendRefusedError(
                ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {accepts_from} (ms since 1970)"
            )
        name = header.topic
        topic = self._topics.get(name)
        if topic is not None and topic.order and not config.broker_permission & PERM_WRITE:
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        wrong = check_topic(name)
        if wrong is not None:
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, wrong)
        if name in NOT_ALLOWED_SEND_TOPICS:
            raise SendRefusedError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        if name.startswith(RETRY_PREFIX):
            self._check_retried_group(name.removeprefix(RETRY_PREFIX))
        if topic is None or self._topics.is_unsaved(name):
            if self._topics.cannot_be_saved:
                raise _topics_not_saved()
            self._has_unsaved = True
        if topic is None:
            topic = self._create(header)
        target = self._known[name] = SendTarget(topic, self._store)
        return target

    def after_retries(self, target: SendTarget, header: SendHeader, version: int) -> SendTarget:
        """Where a consumer's own send to its retry topic goes: there, or to the dead letters if it failed too often.

        (``handleRetryAndDLQ``.) Like Apache's broker this leaves DELAY as it is, so dead letters wait too.

        :raises SendRefusedError: the group is gone, or there is no room for one more topic.
        """
        name = target.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(name)
        if group is None:
            raise SendRefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        most = header.max_reconsume_times
        if version < V3_4_9 or most is None:
            most = group.retry_max_times
        if (header.reconsume_times or 0) < most:
            return target
        dead = dlq_topic(name)
        if self._topics.get(dead) is None:
            if self._topics.is_full:
                raise SendRefusedError(ResponseCode.SYSTEM_ERROR, f"topic[{dead}] not exist")
            self._topics.create_retry(dead, queue_nums=DLQ_QUEUES)
        return self.inner(dead)

    def inner(self, name: str) -> SendTarget:
        """Any topic, for messages that the broker itself stores: no permission is asked, none is made.

        Its queues are opened by who puts messages, also those that the topic's configuration does not have.
        """
        target = self._inner.get(name)
        if target is None:
            topic = self._topics.get(name)
            if topic is not None and self._topics.is_unsaved(name):
                self._has_unsaved = True
            target = self._inner[name] = SendTarget(topic or TopicConfig(topic_name=name), self._store)
        return target

    def save_topics(self) -> None:
        """See to it that every topic sent to in this turn is in the file: crash recovery hides all others.

        :raises SendRefusedError: the file cannot be written, so that nothing of the turn may be stored.
        """
        if self._has_unsaved:
            self._has_unsaved = False
            self._topics.save()
            if self._topics.cannot_be_saved:
                self._known.clear()
                raise _topics_not_saved()

    def _check_retried_group(self, group: str) -> None:
        wrong = check_group(group)
        if wrong is not None:
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, wrong)
        if self._groups.find(group) is None:
            raise SendRefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")

    def _create(self, header: SendHeader) -> TopicConfig:
        name = header.topic
        if self._topics.is_full:
            raise SendRefusedError(
                ResponseCode.SYSTEM_ERROR, f"topic[{name}] is not created, this broker has {MAX_TOPICS} topics already"
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
            raise SendRefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{TOPIC_HELP}"
            )
        return topic


def _topics_not_saved() -> SendRefusedError:
    return SendRefusedError(
        ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: the table of topics cannot be written"
    )
