"""A few requests to other systems, each by a plain socket: make a topic and a group, and count what is stored."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

GROUP: Final = "readers"
TIMEOUT_S: Final = 20.0
_CREATE_TOPICS, _LIST_OFFSETS = 19, 2


@contextmanager
def _connected(port: int) -> Iterator[tuple[socket.socket, BinaryIO]]:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection, connection.makefile("rb") as file:
        yield connection, file


def nats(port: int, call: str, body: Any = None) -> dict[str, Any]:
    """Call JetStream's API; ``call`` is a subject below ``$JS.API``.

    :raises RuntimeError: it refuses.
    """
    payload = b"" if body is None else json.dumps(body).encode()
    with _connected(port) as (connection, file):
        publish = f"PUB $JS.API.{call} _I.api {len(payload)}\r\n".encode()
        connection.sendall(b'CONNECT {"verbose":false}\r\nSUB _I.api 1\r\n' + publish + payload + b"\r\n")
        for line in file:
            if line.startswith(b"MSG "):
                answer: dict[str, Any] = json.loads(file.read(int(line.split()[-1])))
                if "error" in answer:
                    raise RuntimeError(f"NATS {call}: {answer['error']}")
                return answer
    raise RuntimeError(f"NATS {call}: the server closed the connection")


def redis(port: int, *words: str) -> str:
    """Run a command whose reply is one line; the text behind its first character.

    :raises RuntimeError: the reply is an error.
    """
    with _connected(port) as (connection, file):
        command = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        connection.sendall(f"*{len(words)}\r\n{command}".encode())
        reply = file.readline().decode().strip()
    if not reply or reply[0] == "-":
        raise RuntimeError(f"Redis {words}: {reply}")
    return reply[1:]


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _array(items: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def _kafka(port: int, key: int, version: int, body: bytes) -> bytes:
    """The fields of a response behind its correlation id."""
    request = struct.pack(">hhi", key, version, 0) + _text("peers") + body
    with _connected(port) as (connection, file):
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", file.read(4))
        return file.read(length)[4:]


def kafka_create(port: int, topic: str, partitions: int) -> None:
    """Make a topic with one replica of each partition.

    :raises RuntimeError: the broker refuses.
    """
    one = _text(topic) + struct.pack(">ih", partitions, 1) + _array([]) + _array([])
    answer = _kafka(port, _CREATE_TOPICS, 0, _array([one]) + struct.pack(">i", int(TIMEOUT_S * 1000)))
    (code,) = struct.unpack(">h", answer[-2:])
    if code:
        raise RuntimeError(f"Kafka refuses topic {topic}: error {code}")


def kafka_ends(port: int, topic: str, partitions: int) -> list[int] | None:
    """The next offset of each partition; None while a partition has no leader."""
    latest = [struct.pack(">iq", number, -1) for number in range(partitions)]
    body = struct.pack(">i", -1) + _array([_text(topic) + _array(latest)])
    answer = _kafka(port, _LIST_OFFSETS, 1, body)[4 + len(_text(topic)) + 4 :]
    found = [struct.unpack_from(">ihqq", answer, number * 22) for number in range(partitions)]
    return None if any(code for _, code, _, _ in found) else [end for _, _, _, end in found]
