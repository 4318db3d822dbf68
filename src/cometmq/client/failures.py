"""What becomes of messages that a concurrent consumer failed on, or took too long for: they go back to the broker.

First by CONSUMER_SEND_MSG_BACK; when the broker does not take that, by a send of the consumer's own to the
group's retry topic; when that fails too, the message is consumed again here after a while
(``DefaultMQPushConsumerImpl.sendMessageBack``, ``ProcessQueue.cleanExpiredMsg``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from cometmq.client.consumer_config import PushConfig
from cometmq.client.instance import ClientInstance
from cometmq.client.process_queue import ConsumeRequest, ProcessQueue, SubmitRequests
from cometmq.client.retry_topic import send_to_retry_topic
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader

log = logging.getLogger(__name__)

TIMED_OUT_LEVEL: Final = 3
"""The delay level of a message that was consumed for too long, as in Java."""
FIRST_RETRY_LEVEL: Final = 3
"""The delay level of the first retry; each further one takes the next level."""


class Failures:
    """The failed messages of one consumer.

    :param submit: lets requests be consumed once more.
    """

    def __init__(self, instance: ClientInstance, group: str, config: PushConfig, submit: SubmitRequests) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._submit = submit
        self._room = asyncio.Semaphore(config.consume_concurrency)
        """As in Java, where the thread that consumed a message hands it back: no more at a time than are consumed."""
        self._under_way: set[ConsumeRequest] = set()
        """Requests of which messages are being handed back now."""

    async def hand_back(self, request: ConsumeRequest, failed: list[MessageExt], delay_level: int) -> None:
        """Hand failed messages to the broker; keep those that it does not take and try them again here."""
        self._under_way.add(request)
        try:
            kept = [message for message in failed if not await self._taken(message, delay_level)]
        finally:
            self._under_way.discard(request)
        process_queue = request.process_queue
        if not kept:
            process_queue.finish(request)
            return
        process_queue.shrink(request, kept)
        await self._instance.clock.sleep(self._config.retry_delay_s)
        if not process_queue.dropped:
            self._submit([request])

    async def watch(self, queues: Callable[[], Iterable[ProcessQueue]]) -> None:
        """Hand back what is consumed for longer than ``consume_timeout_s``, and at most twice that; never returns.

        Its call goes on; what the listener says in the end does not count any more.
        """
        before: set[ConsumeRequest] = set()
        while True:
            await self._instance.clock.sleep(self._config.consume_timeout_s)
            running = {request for queue in queues() for request in queue.running}
            expired = (running & before) - self._under_way
            before = running - expired
            for request in expired:
                log.warning(
                    "%s is consumed for more than %g s: it goes back to the broker",
                    request.messages[0].msg_id,
                    self._config.consume_timeout_s,
                )
                await self._expire(request)

    async def _expire(self, request: ConsumeRequest) -> None:
        self._under_way.add(request)
        try:
            taken = [await self._taken(message, TIMED_OUT_LEVEL) for message in request.messages]
        finally:
            self._under_way.discard(request)
        if all(taken):
            request.process_queue.finish(request)

    async def _taken(self, message: MessageExt, delay_level: int) -> bool:
        """Whether the broker has taken a message back, in either way."""
        async with self._room:
            try:
                await self.send_back(message, delay_level)
            except CometMQError as error:
                log.warning("%s is not taken back and goes to the retry topic: %s", message.msg_id, error)
            except Exception:
                log.exception("%s cannot be handed back and goes to the retry topic", message.msg_id)
            else:
                return True
            try:
                await self.send_again(message, delay_level)
            except CometMQError as error:
                log.warning("%s stays here for another attempt: %s", message.msg_id, error)
                return False
            except Exception:
                log.exception("%s stays here for another attempt", message.msg_id)
                return False
            return True

    async def send_back(self, message: MessageExt, delay_level: int) -> None:
        """Ask the broker that has the message to store it once more.

        :raises CometMQError: it does not, or it is not known.
        """
        address = self._instance.routes.master(message.broker_name) or message.store_host
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self._config.reconsume_limit,
        )
        doing = f"handing back {message.msg_id}"
        await self._instance.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, doing=doing)

    async def send_again(self, message: MessageExt, delay_level: int) -> None:
        """Send the message to the group's retry topic, one failure older.

        :raises CometMQError: it is not stored, or not known to be.
        """
        times = message.reconsume_times
        at_once = delay_level < 0
        # The broker compares this send's own count, which is one more than the one that a send-back is judged by.
        most = 0 if at_once else self._config.reconsume_limit + 1
        level = 0 if at_once or times + 1 >= most else delay_level or FIRST_RETRY_LEVEL + times
        await send_to_retry_topic(
            self._instance, self._group, message, most, reconsume_times=times + 1, delay_level=level
        )
