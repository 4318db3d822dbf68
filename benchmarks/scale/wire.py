"""Requests on one bare connection, one by one or many in flight, the same for every broker.

No client is measured with the broker: a request costs this process some microseconds. Frame: int32 length of the rest,
int32 length of the header (the upper byte 0: JSON), header, body (docs: RocketMQ's remoting protocol).
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from cometmq.remoting.codes import RequestCode

IN_FLIGHT: Final = 64
TIMEOUT_S: Final = 120.0
_IS_ANSWER: Final = 1
"""Bit of a frame's flag."""


class RefusedError(Exception):
    """A broker refused a request."""


class _Answer(msgspec.Struct):
    """The fields of the header of an answer that are read."""

    code: int
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str] = {}  # noqa: N815 - RocketMQ's name


def request(code: RequestCode, body: bytes = b"", **fields: str) -> bytes:
    """One frame, as clients write it."""
    head = {"code": code, "extFields": fields, "language": "JAVA", "version": 397, "opaque": 1, "flag": 0}
    header = json.dumps(head, separators=(",", ":")).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def make_topic(topic: str, queues: int = 5, attributes: str = "") -> bytes:
    """Make a topic."""
    return request(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=str(queues),
        writeQueueNums=str(queues),
        perm="6",
        topicFilterType="SINGLE_TAG",
        topicSysFlag="0",
        order="false",
        attributes=attributes,
    )


def make_group(group: str) -> bytes:
    """Make a group."""
    body = json.dumps({"groupName": group, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16}).encode()
    return request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)


def send(topic: str, queue: int = 0, properties: str = "", body: bytes = bytes(128)) -> bytes:
    """Send a message."""
    return request(
        RequestCode.SEND_MESSAGE,
        body,
        producerGroup="scale",
        topic=topic,
        defaultTopic="TBW102",
        defaultTopicQueueNums="4",
        queueId=str(queue),
        sysFlag="0",
        bornTimestamp="0",
        flag="0",
        properties=properties,
    )


def commit(group: str, topic: str, queue: int, offset: int) -> bytes:
    """Commit the offset of a group in a queue of a topic."""
    return request(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group,
        topic=topic,
        queueId=str(queue),
        commitOffset=str(offset),
    )


def pop(group: str, topic: str, messages: int, invisible_ms: int = 86_400_000) -> bytes:
    """Pop messages of any queue from the first one on, without a wait."""
    return request(
        RequestCode.POP_MESSAGE,
        consumerGroup=group,
        topic=topic,
        queueId="-1",
        maxMsgNums=str(messages),
        invisibleTime=str(invisible_ms),
        pollTime="1000",
        bornTime=str(int(time.time() * 1000)),
        initMode="0",
    )


def pull(topic: str, offset: int, messages: int) -> bytes:
    """Read messages of the first queue of a topic, without a wait."""
    return request(
        RequestCode.PULL_MESSAGE,
        consumerGroup="scale",
        topic=topic,
        queueId="0",
        queueOffset=str(offset),
        maxMsgNums=str(messages),
        sysFlag="4",
        commitOffset="0",
        suspendTimeoutMillis="0",
        subscription="*",
        subVersion="0",
        expressionType="TAG",
    )


def query(topic: str, key: str) -> bytes:
    """Find messages by key."""
    return request(
        RequestCode.QUERY_MESSAGE,
        topic=topic,
        key=key,
        maxNum="1",
        beginTimestamp="0",
        endTimestamp=str(1 << 62),
    )


def search(topic: str, time_ms: int) -> bytes:
    """Find the offset of a queue at a time."""
    return request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic=topic, queueId="0", timestamp=str(time_ms))


def reset(group: str, topic: str, time_ms: int) -> bytes:
    """Set the offsets of a group to those of a time."""
    return request(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic=topic, group=group, timestamp=str(time_ms), isForce="true"
    )


def subscribe(group: str, topic: str, sql: str) -> bytes:
    """The heartbeat of a consumer that filters a topic by an expression of SQL92."""
    return heartbeat(f"10.0.0.1@{group}", group, topic, sql)


def heartbeat(client: str, group: str, topic: str, sql: str = "") -> bytes:
    """The heartbeat of a consumer and a producer."""
    subscription: dict[str, Any] = {
        "topic": topic,
        "subString": sql or "*",
        "tagsSet": [],
        "codeSet": [],
        "subVersion": 1,
        "classFilterMode": False,
        "expressionType": "SQL92" if sql else "TAG",
    }
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    data = {
        "clientID": client,
        "producerDataSet": [{"groupName": f"{group}-producers"}],
        "consumerDataSet": [consumer],
    }
    return request(RequestCode.HEART_BEAT, json.dumps(data).encode())


class Wire:
    """One connection to a broker."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def ask(self, frame: bytes) -> None:
        """Send one request and wait for its answer.

        :raises RefusedError: it was refused.
        """
        self.fetch(frame)

    def fetch(self, frame: bytes) -> tuple[dict[str, str], bytes]:
        """Send one request, and return the fields and the body of its answer.

        :raises RefusedError: it was refused.
        """
        self._socket.sendall(frame)
        return self._read()

    def pour(self, frames: Iterable[bytes]) -> int:
        """Send requests, 64 of them in flight; how many there were.

        :raises RefusedError: one was refused.
        """
        count = 0
        for some in _batches(iter(frames)):
            self._socket.sendall(b"".join(some))
            for _ in some:
                self._read()
            count += len(some)
        return count

    def _read(self) -> tuple[dict[str, str], bytes]:
        answer, body = self._read_frame()
        while not answer.flag & _IS_ANSWER:  # the broker's own request to a consumer
            answer, body = self._read_frame()
        if answer.code != 0:
            raise RefusedError(f"code {answer.code}: {answer.remark}")
        return answer.extFields, body

    def _read_frame(self) -> tuple[_Answer, bytes]:
        head = self._stream.read(8)
        if len(head) < 8:
            raise ConnectionError("the broker has closed the connection")
        size, header_size = struct.unpack(">ii", head)
        data = self._stream.read(size - 4)
        width = header_size & 0xFFFFFF
        return msgspec.json.decode(data[:width], type=_Answer), data[width:]

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _batches(frames: Iterator[bytes]) -> Iterator[list[bytes]]:
    while some := list(itertools.islice(frames, IN_FLIGHT)):
        yield some
