"""An offset id holds an address; an administrator's client connects only to those of brokers of its cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from cometmq.client import Admin, Message, UnknownBrokerError
from cometmq.message.hosts import encode_host
from cometmq.message.ids import offset_msg_id
from cometmq.testing import Cluster


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    """A server that is no broker; it fails the test when somebody connects."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening
        with pytest.raises(BlockingIOError):
            listening.accept()


def forged(server: socket.socket) -> str:
    return offset_msg_id(encode_host(*server.getsockname()), 0)


async def test_no_message_is_looked_for_elsewhere(cluster: Cluster, stranger: socket.socket) -> None:
    sent = await cluster.send(Message("Orders", b"here"))
    async with Admin(instance=cluster.client_instance()) as admin:
        for topic in (None, "Orders"):
            assert (await admin.message_by_id(sent.offset_msg_id, topic)).body == b"here"
            with pytest.raises(UnknownBrokerError, match="does not belong to any broker in this cluster"):
                await admin.message_by_id(forged(stranger), topic)


async def test_no_transaction_is_resumed_elsewhere(cluster: Cluster, stranger: socket.socket) -> None:
    async with Admin(instance=cluster.client_instance()) as admin:
        with pytest.raises(UnknownBrokerError, match="does not belong to any broker in this cluster"):
            await admin.resume_transaction(forged(stranger))
        with pytest.raises(ValueError, match="offset message id"):
            await admin.resume_transaction("nonsense")
