"""Requests on one bare connection, one by one or many in flight, the same for every broker.

No client is measured with the broker: a request costs this process some microseconds. Frame: int32 length of the rest,
int32 length of the header (the upper byte 0: JSON), header, body (docs: RocketMQ's remoting protocol).
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, Self

import msgspec

from cometmq.remoting.codes import RequestCode

IN_FLIGHT: Final = 64
TIMEOUT_S: Final = 120.0


class RefusedError(Exception):
    """A broker refused a request."""


class _Answer(msgspec.Struct):
    """The fields of the header of an answer that are read."""

    code: int
    remark: str | None = None


def request(code: RequestCode, body: bytes = b"", **fields: str) -> bytes:
    """One frame."""
    head = {"code": code, "extFields": fields, "language": "JAVA", "version": 397, "opaque": 1, "flag": 0}
    header = json.dumps(head).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def make_topic(topic: str, queues: int = 5) -> bytes:
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
    )


def send(topic: str, queue: int = 0, properties: str = "") -> bytes:
    """Send a message of 128 bytes."""
    return request(
        RequestCode.SEND_MESSAGE,
        bytes(128),
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
        self._socket.sendall(frame)
        self._read()

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

    def _read(self) -> None:
        head = self._stream.read(8)
        if len(head) < 8:
            raise ConnectionError("the broker has closed the connection")
        size, header_size = struct.unpack(">ii", head)
        answer = msgspec.json.decode(self._stream.read(size - 4)[: header_size & 0xFFFFFF], type=_Answer)
        if answer.code != 0:
            raise RefusedError(f"code {answer.code}: {answer.remark}")

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
