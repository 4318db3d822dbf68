"""Locks of queues, asked for over a wire."""

from __future__ import annotations

from collections.abc import Sequence

from tests.broker.wire import Wire

from cometmq.remoting.bodies import LockBatchRequestBody, LockBatchResponseBody, MessageQueue, decode_body, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]


def asked(client: str, queues: Sequence[MessageQueue] = QUEUES, group: str = "g") -> bytes:
    return encode_body(LockBatchRequestBody(consumer_group=group, client_id=client, mq_set=list(queues)))


async def lock(wire: Wire, client: str, queues: Sequence[MessageQueue] = QUEUES, group: str = "g") -> set[MessageQueue]:
    answer = await wire.call(LOCK, body=asked(client, queues, group))
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    return set(decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set)


async def unlock(wire: Wire, client: str, queues: Sequence[MessageQueue] = QUEUES) -> None:
    answer = await wire.call(UNLOCK, body=asked(client, queues))
    assert (answer.code, answer.remark, answer.body) == (ResponseCode.SUCCESS, None, b"")
