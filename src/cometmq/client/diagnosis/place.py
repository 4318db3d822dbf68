"""Finds a message by its id, or by its queue and offset."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.client.admin import Admin
from cometmq.client.diagnosis.checks import Question, quote
from cometmq.client.errors import AccessDeniedError, BrokerError, ClientError, RouteNotFoundError, UnknownBrokerError
from cometmq.client.queries import pull_one
from cometmq.message.message import MessageExt, split_records
from cometmq.message.names import TOOLS_GROUP
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import PullMessageResponseHeader


@dataclass(frozen=True)
class Extent:
    """The offsets of a queue that has no message at the wanted offset."""

    first: int
    end: int


async def find(admin: Admin, question: Question) -> MessageExt | Extent | None:
    """Return the message; or its queue's extent, if the queue has no such offset; or None for an unknown id.

    :raises RouteNotFoundError: the topic does not exist.
    :raises ClientError: the topic has no such queue.
    :raises AccessDeniedError: the account may not read the topic.
    """
    if question.offset is not None:
        return await message_at(admin, await queue_of(admin, question), question.offset)
    await admin.topic_route(question.topic)
    try:
        return await admin.message_by_id(question.msg_id, question.topic)
    except (ValueError, UnknownBrokerError):
        return None
    except AccessDeniedError:  # it has the code of a message that is not found
        raise
    except BrokerError as error:
        if error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND):
            return None
        raise


async def queue_of(admin: Admin, question: Question) -> MessageQueue:
    """Return the queue that the question names.

    :raises RouteNotFoundError: the topic does not exist.
    :raises ClientError: the topic has no such queue, or several brokers have it.
    """
    route = await admin.topic_route(question.topic)
    brokers = [
        data.broker_name
        for data in route.queue_datas
        if question.broker in ("", data.broker_name)
        and 0 <= (question.queue_id or 0) < max(data.read_queue_nums, data.write_queue_nums)
    ]
    if len(brokers) != 1:
        known = ", ".join(sorted(quote(data.broker_name) for data in route.queue_datas))
        raise ClientError(
            f"{len(brokers)} brokers have queue {question.queue_id or 0} of topic {question.topic_in_words}",
            next_step=f"name one of its brokers: {known}",
        )
    return MessageQueue(question.topic, brokers[0], question.queue_id or 0)


async def message_at(admin: Admin, queue: MessageQueue, offset: int) -> MessageExt | Extent:
    """Return the message at an offset, even if its life time is over, or the queue's extent if there is none."""

    def read(answer: RemotingCommand) -> MessageExt | Extent:
        found = split_records(answer.body, queue.broker_name) if answer.code == ResponseCode.SUCCESS else []
        if found and found[0].queue_offset == offset:
            return found[0]
        header = answer.header(PullMessageResponseHeader)
        return Extent(header.min_offset, header.max_offset)

    query = pull_one(queue, offset, TOOLS_GROUP, read)
    address = await admin.instance.reader_of(queue)
    answer = await admin.instance.remoting.invoke(address, query.code, query.header)
    return query.result(answer, address)


async def by_unique_key(admin: Admin, topic: str, unique_key: str) -> list[MessageExt]:
    """Return the messages of a topic with a unique key, oldest first; none if the topic does not exist."""
    try:
        return await admin.query_message(topic, unique_key, max_messages=64, unique_key=True)
    except RouteNotFoundError:
        return []
