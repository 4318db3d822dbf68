"""Handles failed messages: a concurrent consumer sends them back, and an orderly consumer retries them itself.

Theory of operation. If consumption by a concurrent consumer fails, or takes longer than ``consume_timeout_s``, the
message is sent back to the broker with CONSUMER_SEND_MSG_BACK. If the broker refuses this request, the message is sent
to the group's retry topic. If this fails too, this member consumes the message again after ``retry_delay_s``
(``DefaultMQPushConsumerImpl.sendMessageBack``, ``ProcessQueue.cleanExpiredMsg``). Its request is finished only after
the broker has stored the message, so no message is lost. A message may be delivered twice if the answer is lost.

If consumption by an orderly consumer fails, the message remains first in its queue, with one more failure, until it has
failed too often and is stored in the dead-letter topic (``ConsumeMessageOrderlyService.checkReconsumeTimes``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

from cometmq.client.background import Spawn
from cometmq.client.consumer.config import MessageModel, PushConfig
from cometmq.client.consumer.listener import Retry, Verdict, failed_messages
from cometmq.client.consumer.process_queue import ConsumeRequest, ProcessQueue
from cometmq.client.consumer.running_info import Activity
from cometmq.client.instance import ClientInstance
from cometmq.client.route import queue_or_fail
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt
from cometmq.message.names import AUTO_CREATE_TOPIC, INNER_PRODUCER, retry_topic
from cometmq.message.properties import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
    encode_properties,
)
from cometmq.message.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2

log = logging.getLogger(__name__)

TIMED_OUT_LEVEL: Final = 3
"""The delay level for a message whose consumption timed out, as in Java."""
FIRST_RETRY_LEVEL: Final = 3
"""The delay level of the first retry; each further retry uses the next level."""


class Failures:
    """Finishes a concurrent consumer's requests according to its listener's verdicts.

    :param spawn: runs background work until the consumer ends.
    """

    def __init__(
        self, instance: ClientInstance, group: str, config: PushConfig, activity: Activity, spawn: Spawn
    ) -> None:
        self._instance = instance
        self._spawn = spawn
        self._group = group
        self._config = config
        self._activity = activity
        self._broadcast = config.message_model is MessageModel.BROADCASTING
        self._room: dict[str, asyncio.Semaphore] = {}
        """Limits the number of messages being sent back at the same time, as Java's threads do."""
        self._under_way: set[ConsumeRequest] = set()
        """Requests whose messages are being sent back."""

    def handle_verdict(self, request: ConsumeRequest, verdict: Verdict) -> None:
        """Finish a consumed request, or send back its failed messages."""
        process_queue = request.process_queue
        if verdict is None:
            process_queue.finish(request)
            return
        failed = list(failed_messages(request.messages, verdict))
        self._activity.failed(process_queue.queue.topic, len(failed))
        if not failed:
            process_queue.finish(request)
        elif self._broadcast:
            log.warning("%d messages failed; they are not redelivered to a broadcasting consumer", len(failed))
            process_queue.finish(request)
        else:
            level = verdict.delay_level if isinstance(verdict, Retry) else 0
            self._spawn(self.hand_back(request, failed, level))

    async def hand_back(self, request: ConsumeRequest, failed: list[MessageExt], delay_level: int) -> None:
        """Send failed messages back, and consume them again if the broker does not store them."""
        self._under_way.add(request)
        try:
            remaining = [message for message in failed if not await self._send_back_or_again(message, delay_level)]
        finally:
            self._under_way.discard(request)
        process_queue = request.process_queue
        if not remaining:
            process_queue.finish(request)
            return
        process_queue.shrink(request, remaining)
        await self._instance.clock.sleep(self._config.retry_delay_s)
        if not process_queue.dropped:
            process_queue.submit([request])

    async def watch(self, queues: Callable[[], Iterable[ProcessQueue]]) -> None:
        """Send back messages whose consumption takes longer than ``consume_timeout_s``.

        The listener's call continues, and its verdict is ignored.
        """
        before: set[ConsumeRequest] = set()
        while True:
            await self._instance.clock.sleep(self._config.consume_timeout_s)
            running = {request for queue in queues() for request in queue.running}
            expired = (running & before) - self._under_way
            before = running - expired
            for request in expired:
                log.warning(
                    "consuming %s takes longer than %g s; sending it back to the broker",
                    request.messages[0].msg_id,
                    self._config.consume_timeout_s,
                )
                self._spawn(self._expire(request))

    async def _expire(self, request: ConsumeRequest) -> None:
        self._under_way.add(request)
        try:
            taken = [await self._send_back_or_again(message, TIMED_OUT_LEVEL) for message in request.messages]
        finally:
            self._under_way.discard(request)
        if all(taken):
            request.process_queue.finish(request)

    async def _send_back_or_again(self, message: MessageExt, delay_level: int) -> bool:
        """Send a message back to the broker or to the retry topic; return whether it was stored."""
        room = self._room.setdefault(message.broker_name, asyncio.Semaphore(self._config.consume_concurrency))
        async with room:
            try:
                await self.send_back(message, delay_level)
            except CometMQError as error:
                log.warning(
                    "the broker does not take back %s; sending it to the retry topic: %s", message.msg_id, error
                )
            except Exception:
                log.exception("cannot send %s back; sending it to the retry topic", message.msg_id)
            else:
                return True
            try:
                await self.send_again(message, delay_level)
            except CometMQError as error:
                log.warning("this client will consume %s again: %s", message.msg_id, error)
                return False
            except Exception:
                log.exception("this client will consume %s again", message.msg_id)
                return False
            return True

    async def send_back(self, message: MessageExt, delay_level: int) -> None:
        """Ask the broker that has a message to store it again for its group (CONSUMER_SEND_MSG_BACK).

        :raises CometMQError: the message is not stored, or it is unknown whether it is stored.
        """
        address = self._instance.routes.brokers.master(message.broker_name) or message.store_host
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
        """Send the message to the group's retry topic, counting one more failure.

        :raises CometMQError: the message is not stored, or it is unknown whether it is stored.
        """
        times = message.reconsume_times
        at_once = delay_level < 0
        # The broker compares the count in this send, which is one higher than the count in CONSUMER_SEND_MSG_BACK.
        most = 0 if at_once else self._config.reconsume_limit + 1
        level = 0 if at_once or times + 1 >= most else delay_level or FIRST_RETRY_LEVEL + times
        await send_to_retry_topic(
            self._instance, self._group, message, most, reconsume_times=times + 1, delay_level=level
        )


class OrderedFailures:
    """Handles an orderly consumer's failed messages."""

    def __init__(self, instance: ClientInstance, group: str, config: PushConfig, activity: Activity) -> None:
        self._instance = instance
        self._group = group
        self._activity = activity
        self._limit = config.reconsume_limit
        self._broadcast = config.message_model is MessageModel.BROADCASTING

    async def judge(self, failed: list[MessageExt], verdict: Verdict) -> list[MessageExt]:
        """Return the messages to consume again, counting one more failure. Messages that failed too often are forwarded
        instead.

        A message that cannot be forwarded remains first in its queue.
        """
        at_once = isinstance(verdict, Retry) and verdict.delay_level < 0
        remaining = []
        for message in failed:
            self._activity.failed(message.stored_topic, 1)
            if (at_once or message.reconsume_times >= self._limit) and await self._send_to_dead_letters(message):
                continue
            remaining.append(message.with_reconsume_times(message.reconsume_times + 1))
        return remaining

    async def _send_to_dead_letters(self, message: MessageExt) -> bool:
        if self._broadcast:
            log.warning("%s failed; it is not redelivered to a broadcasting consumer", message.msg_id)
            return True
        try:
            most = min(self._limit, message.reconsume_times)
            await send_to_retry_topic(self._instance, self._group, message, most)
        except CometMQError as error:
            log.warning("%s failed too often and blocks its queue: %s", message.msg_id, error)
            return False
        return True


_QUEUES: Final = 1


async def send_to_retry_topic(
    instance: ClientInstance,
    group: str,
    message: MessageExt,
    max_reconsume_times: int,
    *,
    reconsume_times: int | None = None,
    delay_level: int = 0,
) -> None:
    """Send a message to ``%RETRY%group``; after the last retry, the broker stores it in ``%DLQ%group``.

    The body is sent as it was stored. The new message is not part of a transaction.

    :param reconsume_times: the number of failures; by default the message's own number.
    :param delay_level: the delay level; 0 means no delay.
    :raises CometMQError: the message is not stored, or it is unknown whether it is stored.
    """
    topic = retry_topic(group)
    times = message.reconsume_times if reconsume_times is None else reconsume_times
    properties = {
        **message.properties,
        RETRY_TOPIC: message.topic,
        ORIGIN_MESSAGE_ID: message.properties.get(ORIGIN_MESSAGE_ID) or message.msg_id,
        RECONSUME_TIME: str(times),
        MAX_RECONSUME_TIMES: str(max_reconsume_times),
    }
    for name in (TRAN_MSG, DELAY):
        properties.pop(name, None)
    if delay_level:
        properties[DELAY] = str(delay_level)
    queue = random.choice(queue_or_fail(await instance.routes.get_for_send(topic, _QUEUES)))
    header = SendMessageRequestHeaderV2(
        producer_group=INNER_PRODUCER,
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=_QUEUES,
        queue_id=queue.queue_id,
        sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK),
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=encode_properties(properties),
        reconsume_times=times,
        max_reconsume_times=max_reconsume_times,
        broker_name=queue.broker_name,
    )
    address = await instance.master_of(queue)
    doing = f"sending {message.msg_id} to {topic}"
    await instance.call(address, RequestCode.SEND_MESSAGE_V2, header, message.stored_body, doing=doing)
