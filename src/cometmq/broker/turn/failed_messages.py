"""Messages that a group failed to consume and that are retried or become dead letters (``handleRetryAndDLQ``).

A message has failed when a consumer sends it back (CONSUMER_SEND_MSG_BACK), sends it to the retry topic itself, or does
not acknowledge it in time after a pop.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.names import dlq_topic
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import ResponseCode

_V3_4_9: Final = 121
"""The first client version whose consumers send their maximum number of retries."""
_DLQ_QUEUES: Final = 1
"""Number of queues in a dead-letter topic."""
_DEFAULT_RETRIES: Final = SubscriptionGroupConfig(group_name="").retry_max_times


class FailedMessages:
    """Decides which failed messages are dead letters, and creates retry and dead-letter topics."""

    def __init__(self, topics: TopicConfigManager, groups: SubscriptionGroupManager) -> None:
        self._topics = topics
        self._groups = groups

    def max_retries(self, group: str, asked: int | None = None, version: int = _V3_4_9) -> int:
        """Return the number of retries after which a group's message becomes a dead letter.

        :param asked: the number of retries that the consumer requests.
        :param version: the version of the consumer's client.
        """
        if asked is not None and version >= _V3_4_9:
            return asked
        config = self._groups.get(group)
        return _DEFAULT_RETRIES if config is None else config.retry_max_times

    def is_dead(self, reconsume_times: int, group: str, asked: int | None = None, version: int = _V3_4_9) -> bool:
        """Return whether a failed message has no retry left and becomes a dead letter; see :meth:`max_retries`."""
        return reconsume_times >= self.max_retries(group, asked, version)

    def dead_letter_topic(self, group: str) -> TopicConfig:
        """Return the topic for a group's dead letters; create it if it is missing.

        :raises RefusedError: the maximum number of topics has been reached.
        """
        return self.topic(dlq_topic(group), _DLQ_QUEUES)

    def pop_retry_topic(self, name: str, queue_nums: int) -> TopicConfig:
        """Return a POP retry topic that has at least this number of queues; create or enlarge it if necessary.

        :raises RefusedError: the maximum number of topics has been reached.
        """
        topic = self.topic(name, queue_nums)
        return topic if topic.read_queue_nums >= queue_nums else self._topics.enlarge(topic, queue_nums)

    def topic(self, name: str, queue_nums: int, topic_sys_flag: int = 0) -> TopicConfig:
        """Return a retry topic; create it if it is missing.

        :raises RefusedError: the maximum number of topics has been reached.
        """
        topic = self._topics.get(name)
        if topic is None and self._topics.is_full:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"topic[{name}] not exist")
        return topic or self._topics.create_retry(name, queue_nums=queue_nums, topic_sys_flag=topic_sys_flag)
