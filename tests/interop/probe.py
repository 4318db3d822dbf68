"""A few questions asked on a bare socket, without any client: is a port open, is a broker registered.

Who waits for an answer of a server asks here: a question by a real client costs a hundred times as much.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from contextlib import suppress

UPDATE_BROKER_CONFIG = 25
GET_ROUTEINFO_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106
GET_TOPIC_STATS_INFO = 202

# Apache's JSON has keys that are numbers or objects.
_MASTER = re.compile(rb'[{,]"?0"?:"([\d.]+:\d+)"')
_MAX_OFFSET = re.compile(rb'"maxOffset":(\d+)')
_MIN_OFFSET = re.compile(rb'"minOffset":(\d+)')


def invoke(address: str, code: int, body: bytes = b"", **fields: str) -> bytes:
    """Send one request with a JSON header; return the answer's body.

    Frame: int32 length of the rest, int32 header length, header, body (docs: RocketMQ's remoting protocol).
    """
    head = {"code": code, "extFields": fields, "language": "OTHER", "version": 0, "opaque": 1, "flag": 0}
    header = json.dumps(head).encode()
    with _connect(address) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        (size,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size)
    (header_size,) = struct.unpack(">i", answer[:4])
    return answer[4 + (header_size & 0xFFFFFF) :]


def port_open(address: str) -> bool:
    """Tell whether something accepts connections there."""
    try:
        _connect(address).close()
    except OSError:
        return False
    return True


def broker_registered(namesrv: str, broker_address: str) -> bool:
    """Tell whether the nameserver lists a broker at that address."""
    try:
        here = invoke(namesrv, GET_BROKER_CLUSTER_INFO).partition(b'"goneBrokers"')[0]
        return f'"{broker_address}"'.encode() in here
    except OSError:
        return False


def register_again(broker_address: str) -> None:
    """Have a broker of Apache's register with its nameservers now, as every change of its permissions does.

    RocketMQ 5 registers when it starts, but with the nameservers that it has reached by then: with none when it starts
    quickly, and then not for another 10 seconds.
    """
    with suppress(OSError):
        invoke(broker_address, UPDATE_BROKER_CONFIG, b"brokerPermission=6\n")


def topic_routed(namesrv: str, topic: str) -> bool:
    """Tell whether the nameserver has a route of the topic."""
    return bool(invoke(namesrv, GET_ROUTEINFO_BY_TOPIC, topic=topic))


def readable(namesrv: str, topic: str) -> int:
    """The messages from the first to the last that consumers can read of a topic, by the masters of its route."""
    answers = [
        invoke(master.decode(), GET_TOPIC_STATS_INFO, topic=topic)
        for master in _MASTER.findall(invoke(namesrv, GET_ROUTEINFO_BY_TOPIC, topic=topic))
    ]
    return sum(sum(map(int, _MAX_OFFSET.findall(one))) - sum(map(int, _MIN_OFFSET.findall(one))) for one in answers)


def _connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError("closed within an answer")
        data += chunk
    return data
