"""Units of a consume queue, for people who look for a lost message (321, ``mqadmin queryCq``).

(``AdminBrokerProcessor.queryConsumeQueue``.)
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.admin_topics import DEFAULT_REMARK
from cometmq.broker.clients import ConsumerManager
from cometmq.broker.subscriptions import SubscriptionError, is_tag_type, parse_tags
from cometmq.limits import MAX_CONSUME_QUEUE_UNITS
from cometmq.remoting.bodies import ConsumeQueueData, QueryConsumeQueueResponseBody, SubscriptionData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import QueryConsumeQueueRequestHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore

_NO_FILTER_DATA: Final = "null"
"""What the answer says of a group without SQL filter data."""


class QueueAdmin:
    """Answers administrators about consume queues."""

    def __init__(self, consumers: ConsumerManager, store: MessageStore) -> None:
        self._consumers = consumers
        self._store = store

    def register(self, processors: ProcessorTable) -> None:
        """Answer the code about consume queues."""
        processors.register(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueueRequestHeader, self.units)

    def units(
        self, _connection: ServerConnection, request: Request[QueryConsumeQueueRequestHeader], _body: bytes
    ) -> Response:
        """QUERY_CONSUME_QUEUE (321): up to ``count`` units from ``index`` on.

        With a group that is online, ``eval`` says which units its tags let through.
        """
        header = request.header
        topic = header.topic or ""
        queue = self._store.queues().get(topic, {}).get(header.queue_id)
        if queue is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"{header.queue_id}@{topic} is not exist!")
        begin, end = queue.min_offset(), queue.max_offset()
        if not begin <= header.index < end:
            return Response(
                ResponseCode.SYSTEM_ERROR, remark=f"Index {header.index} of {header.queue_id}@{topic} is not exist!"
            )
        subscription = self._subscription(header.consumer_group, topic)
        codes = _tag_codes(subscription)
        listed: list[ConsumeQueueData] = []
        for offset in range(header.index, min(end, header.index + min(max(header.count, 0), MAX_CONSUME_QUEUE_UNITS))):
            unit = queue.unit(offset)
            if unit is None:
                break
            log_offset, size, tags_code = unit
            passes = codes is not None and (not codes or tags_code in codes)
            listed.append(
                ConsumeQueueData(physic_offset=log_offset, physic_size=size, tags_code=tags_code, eval=passes)
            )
        answer = QueryConsumeQueueResponseBody(
            queue_data=listed,
            max_queue_index=end,
            min_queue_index=begin,
            subscription_data=subscription,
            filter_data=None if subscription is None else _NO_FILTER_DATA,
        )
        return Response(remark=DEFAULT_REMARK, body=encode_body(answer))

    def _subscription(self, group: str | None, topic: str) -> SubscriptionData | None:
        members = self._consumers.get(group) if group else None
        return None if members is None else members.subscriptions.get(topic)


def _tag_codes(subscription: SubscriptionData | None) -> frozenset[int] | None:
    """Codes of a subscription by tags: none for all messages; ``None`` where tags do not decide."""
    if subscription is None or not is_tag_type(subscription.expression_type):
        return None
    try:
        return parse_tags(subscription.sub_string).codes or frozenset()
    except SubscriptionError:
        return None
