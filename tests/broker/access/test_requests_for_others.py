"""Requests that act on topics, groups and transactions of others, with an account that may do much else."""

from __future__ import annotations

import json
import zlib

from tests.broker.access.test_access import BILLING, OPERATORS, acl, ask, guarded, make_topics, send, wire
from tests.broker.send.sequences import body_of, once_read
from tests.broker.wire import Wire, send_header

from cometmq.broker.controller import Broker
from cometmq.message.producer_sequence import ProducerSequence
from cometmq.message.properties import PGROUP, encode_properties
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from cometmq.remoting.admin_headers import GetConsumerRunningInfoRequestHeader, ResetOffsetRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import EndTransactionRequestHeader, OpenProducerRequestHeader
from cometmq.remoting.signing import Credentials

__all__ = ("acl", "guarded", "wire")


def end_of(offset: int, queue_offset: int) -> EndTransactionRequestHeader:
    return EndTransactionRequestHeader("billing", queue_offset, offset, TRANSACTION_COMMIT, "id")


async def test_a_transaction_of_another_topic_is_not_ended_and_not_seen(wire: Wire, guarded: Broker) -> None:
    await make_topics(wire, "Orders", "Closed")
    properties = encode_properties({"TRAN_MSG": "true", PGROUP: "billing"})
    header = send_header("Closed", producer_group="billing", sys_flag=TRANSACTION_PREPARED, properties=properties)
    half = await ask(wire, OPERATORS, RequestCode.SEND_MESSAGE_V2, header, b"not yours")
    assert half.code == 0, half.remark
    offset, queue_offset = int(half.ext_fields["msgId"][16:], 16), int(half.ext_fields["queueOffset"])
    theirs = await ask(wire, BILLING, RequestCode.END_TRANSACTION, end_of(offset, queue_offset))
    absent = await ask(wire, BILLING, RequestCode.END_TRANSACTION, end_of(offset + 7, queue_offset))
    assert (theirs.code, theirs.remark) == (absent.code, absent.remark)
    assert theirs.code != 0
    assert guarded.store.extent("Closed", 0)[1] == 0
    assert (await ask(wire, OPERATORS, RequestCode.END_TRANSACTION, end_of(offset, queue_offset))).code == 0
    assert guarded.store.extent("Closed", 0)[1] == 1


async def test_resets_relays_and_batches_for_others_are_denied(wire: Wire, guarded: Broker) -> None:
    await make_topics(wire, "Orders", "Closed")
    reset = ResetOffsetRequestHeader("Orders", "readers", -1, is_force=True)
    relay = GetConsumerRunningInfoRequestHeader("readers", "client", jstack_enable=False)
    lock = json.dumps(
        {
            "consumerGroup": "billing",
            "clientId": "c",
            "mqSet": [{"topic": "Closed", "brokerName": "broker-a", "queueId": 0}],
        }
    ).encode()
    for code, header, body in (
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, b""),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, relay, b""),
        (RequestCode.SEND_BATCH_MESSAGE, send_header("Closed", batch=True), b"any"),
        (RequestCode.LOCK_BATCH_MQ, None, lock),
    ):
        remark = (await ask(wire, BILLING, code, header, body)).remark or ""
        assert "No default permission for" in remark or "Need admin permission" in remark, (code, remark)
    assert guarded.store.extent("Closed", 0)[1] == 0


async def test_a_topic_that_appears_meanwhile_is_as_closed_as_before(wire: Wire, guarded: Broker) -> None:
    before = await send(wire, BILLING, "Closed")
    assert guarded.topics.get("Closed") is None, "a send that is denied creates no topic"
    await make_topics(wire, "Closed")
    after = await send(wire, BILLING, "Closed")
    assert (after.code, after.remark) == (before.code, before.remark)
    assert "No default permission for topic:Closed" in (after.remark or "")


async def test_a_producer_of_others_is_neither_seen_nor_fenced(wire: Wire, guarded: Broker) -> None:
    await make_topics(wire, "Orders", "Closed")
    opening = OpenProducerRequestHeader(producer="q-0", batch=5)

    async def sent(by: Credentials, topic: str, batch: int, first: int = 0) -> RemotingCommand:
        body = body_of(range(first, first + 1))
        crc = zlib.crc32(body_of(range(first + 1)))
        sequence = ProducerSequence("q-0", batch, 1, first, 1, crc)
        header = send_header(topic, batch=True, properties=f"PRODUCER_SEQUENCE\x01{sequence.text()}\x02")
        return await ask(wire, by, RequestCode.SEND_BATCH_MESSAGE, header, body)

    assert (await once_read(lambda: ask(wire, OPERATORS, RequestCode.OPEN_PRODUCER, opening))).code == 0
    assert (await sent(OPERATORS, "Closed", 5)).code == 0
    for batch in (5, 6):
        header = OpenProducerRequestHeader(producer="q-0", batch=batch)
        theirs = await ask(wire, BILLING, RequestCode.OPEN_PRODUCER, header)
        assert (theirs.code, theirs.body) == (ResponseCode.NO_PERMISSION, b"")
        assert "Closed" not in (theirs.remark or "")
    ahead = await sent(BILLING, "Orders", 9)
    assert (ahead.code, guarded.store.extent("Orders", 0)[1]) == (ResponseCode.NO_PERMISSION, 0)
    assert (await sent(OPERATORS, "Closed", 5, first=1)).code == 0, "it is not fenced"
    own = OpenProducerRequestHeader(producer="billing-0", batch=0)
    assert (await ask(wire, BILLING, RequestCode.OPEN_PRODUCER, own)).code == 0
