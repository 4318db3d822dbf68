"""The methods SendMessage and RecallMessage (``SendMessageActivity``, ``RecallMessageActivity``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cometmq.message import properties as names
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.ids import RecallHandle, RecallHandleError, consistent_hash, decode_offset_msg_id, java_hash
from cometmq.message.names import AUTO_CREATE_TOPIC
from cometmq.message.properties import KEY_SEPARATOR, encode_properties
from cometmq.message.sysflag import COMPRESSED, TRANSACTION_PREPARED
from cometmq.proxy.backend.backend import Reply, TopicInfo
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import (
    BORN_HOST,
    BORN_TIMESTAMP,
    TRACE_CONTEXT,
    ms_of,
    topic_of,
    type_of,
)
from cometmq.proxy.errors import OK, BrokerAwayError, ProxyError, refused
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code, Encoding, MessageType
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.services.send_checks import check_message
from cometmq.proxy.services.transaction_id import TransactionId
from cometmq.proxy.sessions import ClientSession
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from cometmq.remoting.permissions import Action, on_topic

_STORED: Final = {
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
}
"""Response codes that mean the message was stored."""
_AVOIDED_SECONDS: Final = 1.0
"""Time for which other brokers are preferred to one that has failed."""


class _Outgoing(NamedTuple):
    """A message in a request, with the properties to store with it."""

    message: v2.Message
    properties: dict[str, str]


class SendService:
    """Methods that store messages and recall delayed messages."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context
        self._counters: dict[str, list[int]] = {}
        """The number of the next message for each topic, in a list that the compiled core counts up, too.

        Messages that have no message group use the queues in turn.
        """
        self._avoided: dict[str, float] = {}
        """Brokers that have failed, each with the monotonic time in seconds until which others are preferred."""

    async def send_message(self, call: Call, request: v2.SendMessageRequest) -> v2.SendMessageResponse:
        """Store the messages in a request, all of which must have the same topic."""
        context = self._context
        messages = request.messages
        if not len(messages):
            raise ProxyError(Code.MESSAGE_CORRUPTED, "no message to send")
        first = messages[0]
        topic = topic_of(first.topic)
        session = context.sessions.admit(call, [on_topic(topic, Action.PUB)])
        now_ms = context.clock.now_ms()
        for message in messages:
            if message.topic != first.topic:
                raise ProxyError(Code.MESSAGE_CORRUPTED, "different message topic")
            check_message(message, context.config, now_ms)
        ip = call.peer.peer_ip
        outgoing = [_Outgoing(message, self._stored_properties(message, topic, ip)) for message in messages]
        types = [type_of(one.properties) for one in outgoing]
        info = await self._topic_that_accepts(topic, types)
        if len(outgoing) > 1 and set(types) == {MessageType.NORMAL}:
            entries = [await self._send_batch(session, info, outgoing)]
        else:  # a batch needs a single queue and no delay; all other messages are stored one by one
            entries = await self._send_each(session, info, outgoing)
        if types[0] == MessageType.NORMAL and not call.is_done:
            context.backend.accept_calls(call.peer, session, info, self._counters[topic])
        return v2.SendMessageResponse(status=_common_status(entries), entries=entries)

    # --- checks ---------------------------------------------------------------------------------
    async def _topic_that_accepts(self, topic: str, types: Sequence[MessageType]) -> TopicInfo:
        """Return a topic's configuration after checking that it accepts messages of these types.

        :raises ProxyError: the topic does not exist, or accepts messages of another type.
        """
        expected, info = "UNSPECIFIED", None
        try:
            info = await self._context.backend.topic(topic)
            expected = info.message_type
        except ProxyError as error:
            if error.code != Code.TOPIC_NOT_FOUND:
                raise
        for actual in (message_type.name for message_type in types):
            if info is None or (self._context.config.validates_type and expected not in (actual, "MIXED")):
                raise ProxyError(
                    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                    f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}",
                )
        assert info is not None
        return info

    def _stored_properties(self, message: v2.Message, topic: str, peer_ip: str) -> dict[str, str]:
        """Return the properties to store with a message (``buildMessageProperty``)."""
        system = message.system_properties
        stored = dict(message.user_properties)
        stored[names.UNIQ_KEY] = system.message_id
        if system.tag:
            stored[names.TAGS] = system.tag
        if len(system.keys):
            stored[names.KEYS] = KEY_SEPARATOR.join(system.keys)
        if system.message_type == MessageType.TRANSACTION:
            stored[names.TRAN_MSG] = "true"
            stored[names.PGROUP] = topic
            if system.HasField("orphaned_transaction_recovery_duration"):
                seconds = system.orphaned_transaction_recovery_duration.seconds
                if not 0 <= seconds * 1000 <= self._context.config.recovery_max_ms:
                    raise ProxyError(
                        Code.BAD_REQUEST,
                        f"transaction recovery time is out of range, max is {self._context.config.recovery_max_ms}",
                    )
                stored[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(seconds)
        if system.HasField("delivery_timestamp"):
            stored[names.TIMER_DELIVER_MS] = str(ms_of(system.delivery_timestamp))
        if system.HasField("message_group"):
            stored[names.SHARDING_KEY] = system.message_group
        if system.lite_topic:
            stored[names.LITE_TOPIC] = system.lite_topic
        if system.HasField("priority"):
            stored[names.PRIORITY] = str(system.priority)
        if system.trace_context:
            stored[TRACE_CONTEXT] = system.trace_context
        stored[BORN_HOST] = system.born_host or peer_ip
        if system.HasField("born_timestamp"):
            stored[BORN_TIMESTAMP] = str(ms_of(system.born_timestamp))
        return stored

    # --- sending --------------------------------------------------------------------------------
    def _choose_queue(self, info: TopicInfo, key: str | None) -> tuple[str, int]:
        """Return the broker and queue id to which a message is sent.

        :param key: the message group or the lite topic, all of whose messages are sent to one queue.

        :raises ProxyError: no queue accepts messages.
        """
        brokers = info.queues
        if self._avoided and key is None:
            now = self._context.clock.monotonic()
            self._avoided = {broker: until for broker, until in self._avoided.items() if until > now}
            brokers = tuple(one for one in brokers if one.writable and one.broker not in self._avoided)
            brokers = brokers or info.queues
        count = sum(queues.writable for queues in brokers)
        if not count:
            raise ProxyError(Code.FORBIDDEN, "no writable queue")
        if key is not None:
            number = consistent_hash(java_hash(key), count)
        else:
            counter = self._counters.setdefault(info.name, [0])
            number = counter[0] % count
            counter[0] += 1
        for queues in brokers:
            if number < queues.writable:
                break
            number -= queues.writable
        return queues.broker, number

    async def _store(
        self, session: ClientSession, info: TopicInfo, header: SendMessageRequestHeaderV2, body: bytes, key: str | None
    ) -> tuple[str, Reply]:
        """Send a request to a broker, and to others if it is away or stops; return the broker's name and its response.

        As with remoting producers, a message that a broker refuses for a while is repeated; a message of a transaction
        only if it is certainly not stored.

        :param key: as in :meth:`_choose_queue`; messages with a key are not sent to another queue.
        :raises ProxyError: no broker accepts requests.
        """
        brokers_left = 1 if key is not None else sum(1 for queues in info.queues if queues.writable)
        while True:
            broker, header.queue_id = self._choose_queue(info, key)
            brokers_left -= 1
            try:
                reply = await session.link.ask(broker, RequestCode.SEND_MESSAGE_V2, header, body)
            except BrokerAwayError:
                if brokers_left <= 0:
                    raise
            else:
                if reply.code != ResponseCode.SERVICE_NOT_AVAILABLE:
                    self._avoided.pop(broker, None)
                    return broker, reply
                is_repeated = key is None and (reply.is_not_stored or not header.sys_flag & TRANSACTION_PREPARED)
                if not is_repeated or brokers_left <= 0:
                    return broker, reply
            self._avoided[broker] = self._context.clock.monotonic() + _AVOIDED_SECONDS

    async def _send_one(self, session: ClientSession, info: TopicInfo, outgoing: _Outgoing) -> v2.SendResultEntry:
        message, properties = outgoing
        system = message.system_properties
        flag = COMPRESSED if system.body_encoding == Encoding.GZIP else 0
        is_transaction = names.TRAN_MSG in properties
        if is_transaction:
            flag |= TRANSACTION_PREPARED
        header = self._header(info.name, flag, properties)
        broker, reply = await self._store(session, info, header, message.body, _sharding_key(system))
        stored = _stored(reply)
        transaction_id = system.message_id
        if is_transaction:
            offset = decode_offset_msg_id(stored.msg_id)[2]
            transaction_id = TransactionId(broker, stored.queue_offset, offset, system.message_id).encode()
        return v2.SendResultEntry(
            status=_status(reply),
            message_id=system.message_id,
            transaction_id=transaction_id,
            offset=stored.queue_offset,
            recall_handle=stored.recall_handle or "",
        )

    async def _send_each(
        self, session: ClientSession, info: TopicInfo, outgoing: Sequence[_Outgoing]
    ) -> list[v2.SendResultEntry]:
        """Store messages one by one. If a message is rejected, its status is the result for this and all following
        messages, because a client that sent all messages again would duplicate those that are already stored.

        :raises ProxyError: the first message is rejected, so none is stored.
        """
        entries: list[v2.SendResultEntry] = []
        for one in outgoing:
            try:
                entries.append(await self._send_one(session, info, one))
            except ProxyError as error:
                if not entries:
                    raise
                entries += (
                    v2.SendResultEntry(status=error.status, message_id=unsent.message.system_properties.message_id)
                    for unsent in outgoing[len(entries) :]
                )
                break
        return entries

    async def _send_batch(
        self, session: ClientSession, info: TopicInfo, outgoing: Sequence[_Outgoing]
    ) -> v2.SendResultEntry:
        if any(message.system_properties.body_encoding == Encoding.GZIP for message, _ in outgoing):
            raise ProxyError(Code.MESSAGE_CORRUPTED, "compressed messages cannot be sent as a batch")
        try:
            body = encode_batch(
                BatchPiece(0, message.body, encode_properties(properties)) for message, properties in outgoing
            )
        except ValueError as error:
            raise ProxyError(Code.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from error
        header = self._header(info.name, 0, {})
        header.batch = True  # metrics count all sends over gRPC under one code, as in Apache's proxy
        _, reply = await self._store(session, info, header, body, None)
        stored = _stored(reply)
        first = outgoing[0].message.system_properties.message_id
        return v2.SendResultEntry(
            status=_status(reply), message_id=first, transaction_id=first, offset=stored.queue_offset
        )

    def _header(self, topic: str, flag: int, properties: dict[str, str]) -> SendMessageRequestHeaderV2:
        try:
            text = encode_properties(properties)
        except ValueError as error:
            raise ProxyError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, str(error)) from error
        return SendMessageRequestHeaderV2(
            producer_group=topic,
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=0,  # until a queue is chosen
            sys_flag=flag,
            born_timestamp=int(properties.get(BORN_TIMESTAMP) or self._context.clock.now_ms()),
            flag=0,
            properties=text,
            reconsume_times=0,
        )

    # --- recall ---------------------------------------------------------------------------------
    async def recall_message(self, call: Call, request: v2.RecallMessageRequest) -> v2.RecallMessageResponse:
        """Recall a delayed message."""
        topic = topic_of(request.topic)
        session = self._context.sessions.admit(call, [on_topic(topic, Action.PUB)])
        try:
            broker = RecallHandle.decode(request.recall_handle).broker_name
        except RecallHandleError as error:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, error.message) from error
        header = RecallMessageRequestHeader(topic=topic, recall_handle=request.recall_handle, producer_group=topic)
        reply = (await session.link.ask(broker, RequestCode.RECALL_MESSAGE, header)).checked()
        return v2.RecallMessageResponse(status=OK, message_id=reply.header(RecallMessageResponseHeader).msg_id)


def _sharding_key(system: v2.SystemProperties) -> str | None:
    """Return the message group or the lite topic of a message; ``None`` if any queue will do."""
    if system.HasField("message_group"):
        return system.message_group
    return system.lite_topic or None


def _stored(reply: Reply) -> SendMessageResponseHeader:
    """Return the response header for a stored message.

    :raises ProxyError: the broker refuses the message.
    """
    if reply.code not in _STORED:
        raise refused(reply.code, reply.remark)
    return reply.header(SendMessageResponseHeader)


def _status(reply: Reply) -> v2.Status:
    return OK if not reply.code else refused(reply.code, reply.remark).status


def _common_status(entries: Sequence[v2.SendResultEntry]) -> v2.Status:
    """Return the status that all messages share, or MULTIPLE_RESULTS if their statuses differ."""
    first = entries[0].status
    if all(entry.status.code == first.code for entry in entries):
        return first
    return v2.Status(code=Code.MULTIPLE_RESULTS, message="Multiple result")
