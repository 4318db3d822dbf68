"""Puts load on a broker over connections of its own, and kills the broker in the middle of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from tests.helpers.waiting import block_for

from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from cometmq.testing import ProcessCluster

JOIN_S = 60.0


def send(
    connection: BlockingConnection,
    topic: str,
    body: bytes,
    properties: str,
    *,
    group: str = "crash",
    queue_id: int = 0,
    queues: int = 1,
) -> SendMessageResponseHeader:
    """Send one message, which must be taken; where it is stored.

    :param queues: of the topic, if this message makes it.
    """
    header = SendMessageRequestHeaderV2(
        producer_group=group,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=queues,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=properties,
    )
    answer = connection.invoke(RequestCode.SEND_MESSAGE_V2, header, body)
    assert answer.code == 0, answer.remark
    return answer.header(SendMessageResponseHeader)


def kill_under_load(cluster: ProcessCluster, work: Callable[[int], None], seeds: Iterable[int], seconds: float) -> None:
    """Run ``work`` in a thread for each seed; it must end when its connection does. The broker is started again."""
    threads = [threading.Thread(target=work, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    block_for(seconds)  # the length of the load, not a wait for something
    cluster.brokers[0].kill()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive()
    cluster.brokers[0].start()
