"""Makes topics and fills them by raw requests, so that these tests depend on no client."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.helpers.pace import Patience
from tests.helpers.waiting import wait_for

from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.sysflag import CompressionType, with_compression
from cometmq.remoting.admin_bodies import TimerMetrics
from cometmq.remoting.admin_headers import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    decode_body,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetRouteInfoRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)

BATCH = 500
ROUTE_TIMEOUT_S = 60.0

_numbers = itertools.count(1)


def _send_header(topic: str, queue_id: int, **fields: Any) -> SendMessageRequestHeaderV2:
    usual: dict[str, Any] = {
        "sys_flag": 0,
        "born_timestamp": time.time_ns() // 1_000_000,
        "flag": 0,
        "properties": "",
        "batch": False,
    }
    return SendMessageRequestHeaderV2(
        producer_group="tests",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        reconsume_times=0,
        unit_mode=False,
        **(usual | fields),
    )


class Topics:
    """Topics of one broker."""

    def __init__(self, namesrv: str, broker: str) -> None:
        self.namesrv = namesrv
        self.broker = broker
        self.broker_name = "broker-a"
        self._prefix = f"spark{time.time_ns() // 1_000_000}"

    def create(self, queues: int = 4, name: str | None = None, *, permission: int = 6) -> str:
        """A topic with so many queues, known to the nameserver; asked for again with more, it grows."""
        name = name or f"{self._prefix}-{next(_numbers)}"
        header = CreateTopicRequestHeader(
            topic=name,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=permission,
            topic_filter_type="SINGLE_TAG",
            order=False,
            topic_sys_flag=0,
        )
        with BlockingConnection(self.broker, 60) as connection:
            answer = connection.invoke(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        patience = Patience(ROUTE_TIMEOUT_S)
        with BlockingConnection(self.namesrv, 60) as connection:
            while True:
                route = connection.invoke(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(name, accept_standard_json_only=True)
                )
                if f'"readQueueNums":{queues},'.encode() in route.body:
                    return name
                assert not patience.is_over, f"the nameserver never learnt of {name}"

    @contextmanager
    def registered(self, name: str, address: str, topic: str, broker_id: int = 0) -> Iterator[None]:
        """Tell the nameserver of a broker with that topic, whether or not it is there, for the length of the block."""
        header = RegisterBrokerRequestHeader(
            broker_name=name,
            broker_addr=address,
            cluster_name="DefaultCluster",
            ha_server_addr=address,
            broker_id=broker_id,
        )
        table = TopicConfigSerializeWrapper(
            data_version=DataVersion(counter=1, timestamp=1),
            topic_config_table={topic: TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)},
        )
        body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=table))
        gone = UnRegisterBrokerRequestHeader(
            broker_name=name, broker_addr=address, cluster_name="DefaultCluster", broker_id=broker_id
        )
        with BlockingConnection(self.namesrv, 60) as connection:
            answer = connection.invoke(RequestCode.REGISTER_BROKER, header, body)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            yield
            connection.invoke(RequestCode.UNREGISTER_BROKER, gone)

    def send(self, topic: str, queue_id: int, bodies: Sequence[bytes], properties: str = "TAGS\x01TagA") -> int:
        """Append messages to a queue, in batches; the offset of the first."""
        first = -1
        with BlockingConnection(self.broker, 60) as connection:
            for at in range(0, len(bodies), BATCH):
                part = bodies[at : at + BATCH]
                header = _send_header(topic, queue_id, batch=True)
                data = encode_batch(BatchPiece(flag=0, body=body, properties_text=properties) for body in part)
                answer = connection.invoke(RequestCode.SEND_BATCH_MESSAGE, header, data)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                if first < 0:
                    first = answer.header(SendMessageResponseHeader).queue_offset
            self._await(connection, topic, queue_id, first + len(bodies))
        return first

    def send_one(self, topic: str, queue_id: int, body: bytes, properties: str = "", **fields: int) -> None:
        """One message, alone: a delayed one, or one with a packed body, cannot go in a batch.

        :param fields: of the request's header, ``sys_flag`` and ``flag`` for example.
        """
        header = _send_header(topic, queue_id, properties=properties, **fields)
        with BlockingConnection(self.broker, 60) as connection:
            answer = connection.invoke(RequestCode.SEND_MESSAGE_V2, header, body)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    def send_packed(self, topic: str, queue_id: int, body: bytes, properties: str) -> None:
        """One message with a packed body, a flag and a born time of its own."""
        packed = with_compression(0, CompressionType.ZLIB)
        born_ms = 1_700_000_000_000
        fields = {"sys_flag": packed, "flag": 77, "born_timestamp": born_ms}
        self.send_one(topic, queue_id, zlib.compress(body), properties, **fields)

    def delete(self, topic: str) -> None:
        """Take a topic from its broker and from the nameserver."""
        with BlockingConnection(self.broker, 60) as broker, BlockingConnection(self.namesrv, 60) as namesrv:
            in_broker, in_namesrv = DeleteTopicRequestHeader(topic), DeleteTopicFromNamesrvRequestHeader(topic)
            assert broker.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, in_broker).code == ResponseCode.SUCCESS
            assert namesrv.invoke(RequestCode.DELETE_TOPIC_IN_NAMESRV, in_namesrv).code == ResponseCode.SUCCESS

    def make_anew(self, topic: str, *counts: int) -> None:
        """Delete a topic and make it again, with so many messages in each queue, as long as those of :meth:`fill`."""
        self.delete(topic)
        self.create(queues=len(counts), name=topic)
        for queue_id, count in enumerate(counts):
            if count:
                self.send(topic, queue_id, [b"%09d" % n + bytes(91) for n in range(count)])

    def await_messages(self, topic: str, queue_id: int, end: int) -> None:
        """Wait until a queue holds so many messages that can be pulled."""
        with BlockingConnection(self.broker, 60) as connection:
            self._await(connection, topic, queue_id, end)

    def await_waiting(self, topic: str, messages: int) -> None:
        """Wait until the broker counts so many messages of a topic that wait with any delay."""

        def counted() -> bool:
            answer = connection.invoke(RequestCode.GET_TIMER_METRICS)
            of_topic = decode_body(TimerMetrics, answer.body).timing_count.get(topic)
            return of_topic is not None and of_topic.count == messages

        with BlockingConnection(self.broker, 60) as connection:
            wait_for(counted, f"{messages} messages of {topic} wait")

    def _await(self, connection: BlockingConnection, topic: str, queue_id: int, end: int) -> None:
        """Wait until the messages can be pulled: Apache appends to the ConsumeQueue a little later."""
        patience = Patience(ROUTE_TIMEOUT_S)
        header = GetMaxOffsetRequestHeader(topic, queue_id)
        while connection.invoke(RequestCode.GET_MAX_OFFSET, header).header(GetMaxOffsetResponseHeader).offset < end:
            assert not patience.is_over, f"queue {queue_id} of {topic} never reached {end}"

    def fill(self, messages: int, queues: int = 4, size: int = 100) -> str:
        """A new topic with so many messages, dealt to its queues in turn; bodies begin with their number."""
        topic = self.create(queues)
        for queue_id in range(queues):
            self.send(topic, queue_id, [b"%09d" % n + bytes(size - 9) for n in range(queue_id, messages, queues)])
        return topic
