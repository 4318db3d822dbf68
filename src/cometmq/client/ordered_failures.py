"""What becomes of messages that an orderly consumer failed on: again, or away after too many failures."""

from __future__ import annotations

import logging

from cometmq.client.activity import Activity
from cometmq.client.consumer_config import MessageModel, PushConfig
from cometmq.client.instance import ClientInstance
from cometmq.client.listener import Retry, Verdict
from cometmq.client.retry_topic import send_to_retry_topic
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt

log = logging.getLogger(__name__)


class OrderedFailures:
    """Decides for one consumer (``ConsumeMessageOrderlyService.checkReconsumeTimes``)."""

    def __init__(self, instance: ClientInstance, group: str, config: PushConfig, activity: Activity) -> None:
        self._instance = instance
        self._group = group
        self._activity = activity
        self._limit = config.reconsume_limit
        self._broadcast = config.message_model is MessageModel.BROADCASTING

    async def judge(self, failed: list[MessageExt], verdict: Verdict) -> list[MessageExt]:
        """The messages to consume again, each one failure older; those that failed too often are sent away.

        One that cannot be sent away stays, and so does its place before the others.
        """
        at_once = isinstance(verdict, Retry) and verdict.delay_level < 0
        kept = []
        for message in failed:
            self._activity.failed(message.stored_topic, 1)
            if (at_once or message.reconsume_times >= self._limit) and await self._sent_away(message):
                continue
            kept.append(message.with_reconsume_times(message.reconsume_times + 1))
        return kept

    async def _sent_away(self, message: MessageExt) -> bool:
        if self._broadcast:
            log.warning("%s failed; a broadcasting consumer does not get it again", message.msg_id)
            return True
        try:
            most = min(self._limit, message.reconsume_times)
            await send_to_retry_topic(self._instance, self._group, message, most)
        except CometMQError as error:
            log.warning("%s failed too often and holds up its queue: %s", message.msg_id, error)
            return False
        return True
