"""Pull requests, and readers that repeat them (``PullAPIWrapper``, ``PullMessageService``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Protocol

import msgspec

from cometmq.client.consumer.config import ReadConfig
from cometmq.client.consumer.subscription import wanted
from cometmq.client.errors import BrokerError, ClientError, RemotingError, RouteNotFoundError, refusal
from cometmq.client.instance import ClientInstance
from cometmq.client.offsets import Offsets
from cometmq.client.outages import BrokerOutages
from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt, split_records
from cometmq.message.names import MASTER_ID
from cometmq.message.sysflag import PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND
from cometmq.remoting.bodies import MessageQueue, SubscriptionData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import PullMessageRequestHeader, PullMessageResponseHeader

PULL_TIMEOUT_S: Final = 10.0
"""Seconds allowed for a pull in addition to the broker's wait."""


class PullStatus(Enum):
    """The possible results of a pull."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    """The queue has no message at or after this offset, and none arrived during the wait."""
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    """No message matches the subscription; continue at ``next_offset``."""
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"
    """The queue does not have this offset; continue at ``next_offset``."""


_STATUS: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MSG,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MSG,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}


class RawPull(msgspec.Struct, frozen=True):
    """An undecoded pull result, in which ``body`` contains stored records."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes


class PullResult(msgspec.Struct, frozen=True):
    """The messages from a pull, and the offset at which to continue."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]


class Puller:
    """Sends a group's pull requests to the replica that the broker suggests (``PullAPIWrapper``).

    Pulls commit no offsets, although the protocol allows it: a broker with several threads may handle the old offset in
    a waiting pull after the offset that was reported when the queue was handed over.

    :param stream: mark requests as Java's pull and lite-pull consumers do (``ReqT``).
    """

    def __init__(self, instance: ClientInstance, group: str, *, stream: bool) -> None:
        self._instance = instance
        self._group = group
        self._ext = {"ReqT": "0"} if stream else None
        self._suggested: dict[MessageQueue, int] = {}

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        wanted: SubscriptionData,
        *,
        wait_s: float = 0.0,
        lite: bool = False,
        timeout_s: float = PULL_TIMEOUT_S,
    ) -> RawPull:
        """Pull up to ``max_messages`` messages from ``offset``; the broker waits up to ``wait_s`` seconds for the
        first.

        :raises BrokerError: the answer is not a :class:`PullStatus`.
        :raises RouteNotFoundError: no broker has the queue.
        :raises RemotingError: no answer.
        """
        address = await self._instance.reader_of(queue, self._suggested.get(queue, MASTER_ID))
        flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_s > 0 else 0)
        if lite:
            flags |= PULL_LITE
        header = PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            sys_flag=flags,
            commit_offset=0,
            suspend_timeout_millis=int(wait_s * 1000),
            sub_version=wanted.sub_version,
            subscription=wanted.sub_string,
            expression_type=wanted.expression_type,
        )
        answer = await self._instance.remoting.invoke(
            address, RequestCode.PULL_MESSAGE, header, timeout_s=timeout_s + wait_s, ext=self._ext
        )
        status = _STATUS.get(answer.code)
        if status is None:
            doing = f"pulling {queue.topic}/{queue.broker_name}/{queue.queue_id} from offset {offset}"
            raise refusal(address, answer.code, answer.remark, doing)
        fields = answer.header(PullMessageResponseHeader)
        if fields.suggest_which_broker_id != MASTER_ID or queue in self._suggested:
            self._suggested[queue] = fields.suggest_which_broker_id
        return RawPull(status, fields.next_begin_offset, fields.min_offset, fields.max_offset, answer.body)

    async def is_newer(self, queue: MessageQueue, store_timestamp: int) -> bool:
        """Return whether the topic was recreated, because all its messages are newer than one read before.

        :raises CometMQError: as :meth:`pull`.
        """
        return await Offsets(self._instance).earliest_store_time(queue) > store_timestamp


def messages_of(pull: RawPull, queue: MessageQueue, data: SubscriptionData) -> list[MessageExt]:
    """Decode the messages from a pull, omitting those whose tag differs but has the same hash.

    :raises RecordError: the body is not a sequence of complete records.
    """
    if not pull.body:
        return []
    return wanted(split_records(pull.body, queue.broker_name), data)


log = logging.getLogger(__name__)

LASTING_FAILURES: Final = 3
"""Number of consecutive rejections after which they are no longer considered temporary."""


class ReadFailureLog:
    """Logs once when a queue cannot be read, and once when it can be read again.

    A broker that does not answer is logged once for all of its queues.
    """

    def __init__(self, queue: MessageQueue, outages: BrokerOutages) -> None:
        self._queue = queue
        self._outages = outages
        self._failures = 0
        self._warned = False

    def seen(self, error: CometMQError, again_in_s: float) -> None:
        """Record a failure: log one warning, then debug messages.

        A refusal may be temporary (the broker does not know the subscription yet), so the warning is logged after
        several refusals.
        """
        if isinstance(error, RemotingError | RouteNotFoundError):
            self._outages.seen(self._queue.broker_name, error, again_in_s)
            return
        self._failures += 1
        warn = not self._warned and (self._failures >= LASTING_FAILURES or not isinstance(error, BrokerError))
        text = "cannot read %s, retrying every %g s: %s"
        log.log(logging.WARNING if warn else logging.DEBUG, text, self._queue, again_in_s, error)
        self._warned = self._warned or warn

    def over(self, offset: int) -> None:
        """Record a success."""
        self._outages.over(self._queue.broker_name)
        if self._warned:
            log.info("reading %s again, from offset %d", self._queue, offset)
        self._failures, self._warned = 0, False


class Chunk(msgspec.Struct):
    """The messages from a pull, possibly none, and the offset at which to continue."""

    messages: list[MessageExt]
    next_offset: int
    size_bytes: int


class Budget:
    """Limits the total size of the messages in a consumer's queues, with an equal share for each queue.

    Reading of a queue continues while the queue holds less than its share. So a queue whose messages wait, because it
    is paused or consumed slowly or in order, never stops another queue. Together the queues hold at most the limit plus
    one pull of each.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.share_bytes = limit_bytes
        """The number of bytes that one queue may hold."""
        self._limit = limit_bytes
        self._queues: set[asyncio.Event] = set()

    def join(self, changed: asyncio.Event) -> None:
        """Add a queue. ``changed`` is set whenever the shares have grown."""
        self._queues.add(changed)
        self._share()

    def leave(self, changed: asyncio.Event) -> None:
        """Remove a queue and wake the other queues; do nothing if it was already removed."""
        if changed in self._queues:
            self._queues.remove(changed)
            self._share()
            for other in self._queues:
                other.set()

    def _share(self) -> None:
        self.share_bytes = max(1, self._limit // max(1, len(self._queues)))


class Sink(Protocol):
    """Receives a reader's chunks."""

    async def room(self) -> None:
        """Wait until there is room for another pull."""

    def take(self, chunk: Chunk) -> None:
        """Accept the queue's next chunk."""


class QueueReader:
    """Reads a consumer's queues, each in its own task (``PullMessageService``).

    :param lite: marks pulls as those of a lite pull consumer.
    """

    def __init__(
        self, puller: Puller, config: ReadConfig, clock: Clock, outages: BrokerOutages, *, lite: bool = False
    ) -> None:
        self._puller = puller
        self._config = config
        self._clock = clock
        self._outages = outages
        self._lite = lite

    async def read(
        self, queue: MessageQueue, subscription: SubscriptionData, start: Callable[[], Awaitable[int]], sink: Sink
    ) -> None:
        """Read ``queue`` until cancelled, retrying after failures.

        ``start`` finds the first offset. Every pull contains the subscription, so that a restarted broker does not need
        a heartbeat first. A topic that was deleted and recreated is read from its first message.
        """
        config, clock = self._config, self._clock
        trouble = ReadFailureLog(queue, self._outages)
        offset = await self._begin(start, trouble)
        log.info("reading %s from offset %d", queue, offset)
        newest_ms, was_away = 0, False
        while True:
            await sink.room()
            try:
                pulled = await self._puller.pull(
                    queue,
                    offset,
                    config.pull_batch_size,
                    subscription,
                    wait_s=config.pull_wait_s,
                    lite=self._lite,
                )
                _check_progress(pulled, offset)
                messages = messages_of(pulled, queue, subscription)
                is_doubtful = newest_ms > 0 and (was_away or pulled.status is PullStatus.OFFSET_ILLEGAL)
                if is_doubtful and await self._puller.is_newer(queue, newest_ms):
                    messages, pulled = (
                        [],
                        msgspec.structs.replace(
                            pulled, status=PullStatus.OFFSET_ILLEGAL, next_offset=pulled.min_offset
                        ),
                    )
            except CometMQError as error:
                was_away = was_away or (isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST)
                trouble.seen(error, config.pull_error_delay_s)
                await clock.sleep(config.pull_error_delay_s)
                continue
            trouble.over(offset)
            was_away = False
            if messages:
                newest_ms = messages[-1].store_timestamp
            if pulled.status is PullStatus.OFFSET_ILLEGAL:
                log.warning("%s has no offset %d; continuing at offset %d", queue, offset, pulled.next_offset)
            if messages or pulled.next_offset != offset:
                offset = pulled.next_offset
                sink.take(Chunk(messages, offset, len(pulled.body) if messages else 0))
            if config.pull_interval_s:
                await clock.sleep(config.pull_interval_s)

    async def _begin(self, start: Callable[[], Awaitable[int]], trouble: ReadFailureLog) -> int:
        while True:
            try:
                return await start()
            except CometMQError as error:
                trouble.seen(error, self._config.pull_error_delay_s)
                await self._clock.sleep(self._config.pull_error_delay_s)


def _check_progress(pulled: RawPull, offset: int) -> None:
    """Check that the response moves to a later offset; otherwise the pull would be repeated forever.

    :raises ClientError: ``next_offset`` is not after the offset of the pull.
    """
    match pulled.status:
        case PullStatus.FOUND | PullStatus.NO_MATCHED_MSG:
            leads_on = pulled.next_offset > offset
        case PullStatus.OFFSET_ILLEGAL:
            leads_on = pulled.next_offset != offset and pulled.next_offset >= 0
        case PullStatus.NO_NEW_MSG:
            leads_on = pulled.next_offset >= 0
    if not leads_on:
        raise ClientError(
            f"the broker's response ({pulled.status.value}) to a pull from offset {offset} says to continue at offset "
            f"{pulled.next_offset}",
            next_step="check the broker's log: the queue may be damaged",
        )
