"""Reads queues over a connection of its own, as a consumer that pulls from the first message on."""

from __future__ import annotations

from collections.abc import Iterator

from cometmq.message.record import StoredRecord, iter_records
from cometmq.message.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import PullMessageRequestHeader, PullMessageResponseHeader

GROUP = "crash_reader"
ANSWER_S = 60.0


def read_queue(address: str, topic: str, queue_id: int = 0) -> list[StoredRecord]:
    """Every message that the queue holds now, in order; none when there is no such topic."""
    return list(follow_queue(address, topic, queue_id, wait_s=0.0))


def follow_queue(address: str, topic: str, queue_id: int = 0, *, wait_s: float) -> Iterator[StoredRecord]:
    """Every message of the queue, in order, until none comes for so long."""
    offset = 0
    with BlockingConnection(address, ANSWER_S + wait_s) as connection:
        while True:
            header = PullMessageRequestHeader(
                consumer_group=GROUP,
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                max_msg_nums=32,
                sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_s else 0),
                commit_offset=0,
                suspend_timeout_millis=int(wait_s * 1000),
                sub_version=0,
                subscription="*",
                expression_type="TAG",
            )
            answer = connection.invoke(RequestCode.PULL_MESSAGE, header)
            if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST):
                return
            assert answer.code == 0, answer.remark
            offset = answer.header(PullMessageResponseHeader).next_begin_offset
            yield from iter_records(answer.body, check_crc=True)
