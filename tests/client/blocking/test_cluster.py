"""A cluster with several nameservers, or with one that hangs up, as the blocking client sees it."""

from __future__ import annotations

import socket
import threading

from cometmq.client.blocking.cluster import BlockingCluster, ClusterOptions
from cometmq.client.sync import SyncAdmin
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.testing import SyncCluster


def test_a_topic_is_found_that_the_first_nameserver_does_not_know() -> None:
    with SyncCluster() as other, SyncCluster() as known:
        with SyncAdmin(known.namesrv_address) as admin:
            admin.create_topic("T", queues=2)
        cluster = BlockingCluster(ClusterOptions((other.namesrv_address, known.namesrv_address), topics=("T", "none")))
        assert [queue.queue_id for queue in cluster.queues()] == [0, 1]
        assert cluster.route("none") is None


def test_a_connection_that_was_closed_while_it_was_idle_is_opened_again() -> None:
    """The nameserver knows no topic, and closes each connection after its first answer."""
    accepted: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        while len(accepted) < 3:
            connection, _ = listener.accept()
            accepted.append(connection)
            decoder = FrameDecoder()
            with connection:
                (frame,) = decoder.feed(connection.recv(1 << 16))
                opaque = decode_command(frame).opaque
                connection.sendall(RemotingCommand(ResponseCode.TOPIC_NOT_EXIST, opaque=opaque, flag=1).encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        cluster = BlockingCluster(ClusterOptions((f"127.0.0.1:{listener.getsockname()[1]}",)))
        assert [cluster.route("T") for _ in range(3)] == [None, None, None]
        server.join(60)
    assert len(accepted) == 3
