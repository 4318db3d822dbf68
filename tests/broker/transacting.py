"""A producer of transactions that speaks frames, and what it can see of them in the store."""

from __future__ import annotations

import asyncio
import json

from tests.broker.wire import Wire
from tests.helpers.contents import bodies

from cometmq.broker.controller import Broker
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.message import MessageExt
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand
from cometmq.remoting.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader

GROUP = "TxProducers"
TOPIC = "TxTopic"

COMMIT = TRANSACTION_COMMIT
ROLLBACK = TRANSACTION_ROLLBACK
UNKNOWN = 0


def half_properties(key: str, group: str = GROUP, **more: str) -> str:
    named = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key, "WAIT": "true", **more}
    return "".join(f"{name}\x01{value}\x02" for name, value in named.items())


class Half:
    """The place of a half message, as its producer knows it."""

    def __init__(self, key: str, queue_offset: int, log_offset: int) -> None:
        self.key = key
        self.queue_offset = queue_offset
        self.log_offset = log_offset


async def send_half(wire: Wire, key: str, body: bytes = b"half", **more: str) -> Half:
    answer = await wire.send(TOPIC, body, properties=half_properties(key, **more))
    assert answer.code == 0, answer
    _, _, log_offset = decode_offset_msg_id(answer.ext_fields["msgId"])
    return Half(key, int(answer.ext_fields["queueOffset"]), log_offset)


def end_header(half: Half, how: int, group: str = GROUP) -> EndTransactionRequestHeader:
    return EndTransactionRequestHeader(
        producer_group=group,
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.log_offset,
        commit_or_rollback=how,
        msg_id=half.key,
        from_transaction_check=False,
    )


async def end(wire: Wire, half: Half, how: int, group: str = GROUP) -> RemotingCommand:
    return await wire.call(RequestCode.END_TRANSACTION, end_header(half, how, group))


async def end_oneway(wire: Wire, half: Half, how: int) -> None:
    """End a transaction as Java does, and wait until the broker has read it."""
    wire.post(wire.command(RequestCode.END_TRANSACTION, end_header(half, how), flag=FLAG_ONEWAY))
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)


async def join(wire: Wire, group: str = GROUP, client_id: str = "tx-client") -> None:
    """Say hello as a producer of the group."""
    body = {"clientID": client_id, "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
    assert (await wire.call(RequestCode.HEART_BEAT, None, json.dumps(body).encode())).code == 0


def checks(wire: Wire) -> list[tuple[Half, MessageExt]]:
    """The checks that have arrived, and away with them."""
    found = []
    for command in wire.pushed:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            header = command.header(CheckTransactionStateRequestHeader)
            message = MessageExt(command.body, 0)
            half = Half(message.msg_id, header.tran_state_table_offset, header.commit_log_offset)
            assert header.msg_id == header.transaction_id == message.msg_id
            assert header.offset_msg_id == message.offset_msg_id
            found.append((half, message))
    wire.pushed.clear()
    return found


async def next_checks(wire: Wire) -> list[tuple[Half, MessageExt]]:
    """Everything that the broker has asked by now."""
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    return checks(wire)


async def round_of_checks(broker: Broker) -> None:
    """Let the broker look at all open transactions now."""
    await broker.transactions.checks.run()
    broker.turn.end()
    await asyncio.sleep(0)


def delivered(broker: Broker) -> list[bytes]:
    """The bodies that consumers of the topic can read."""
    return bodies(broker, TOPIC)
