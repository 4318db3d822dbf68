"""One pull: a request for the messages of a queue from an offset on (``PullAPIWrapper``)."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from cometmq.client.errors import refusal
from cometmq.client.instance import ClientInstance
from cometmq.client.subscription import wanted
from cometmq.message.message import MessageExt, split_records
from cometmq.message.names import MASTER_ID
from cometmq.message.sysflag import PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND
from cometmq.remoting.bodies import MessageQueue, SubscriptionData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import PullMessageRequestHeader, PullMessageResponseHeader

PULL_TIMEOUT_S: Final = 10.0
"""For a pull that does not wait; one that does gets its waiting time on top."""


class PullStatus(Enum):
    """What came of a pull."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    """The queue ends here; with waiting, nothing arrived in time."""
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    """There were messages, but none that the subscription wants; go on at ``next_offset``."""
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"
    """The queue does not have this offset; the nearest is ``next_offset``."""


_STATUS: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MSG,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MSG,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}


class RawPull(msgspec.Struct, frozen=True):
    """An undecoded pull: ``body`` is a run of stored records."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes


class PullResult(msgspec.Struct, frozen=True):
    """A pull: the messages, and where to go on."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]


class Puller:
    """Pulls for one group; remembers which replica a broker said to read from.

    Pulls never commit on their way, although they could: a broker with several threads may take an
    older offset in a waiting pull for newer than the one reported when the queue was handed over.

    :param stream: marks requests as Java's pull and lite-pull consumers do (``ReqT``).
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
        """Pull up to ``max_messages`` from ``offset`` on; ``wait_s`` is how long the broker may wait for one.

        :raises BrokerError: any answer that is not a :class:`PullStatus`.
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


def messages_of(pull: RawPull, queue: MessageQueue, data: SubscriptionData) -> list[MessageExt]:
    """The messages in a pull that the subscription really wants.

    :raises RecordError: the body is not a run of whole records.
    """
    if not pull.body:
        return []
    return wanted(list(split_records(pull.body, queue.broker_name)), data)
