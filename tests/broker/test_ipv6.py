"""IPv6: hosts of 20 bytes in records and ids, side by side with IPv4."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from tests.broker.conftest import StartBroker
from tests.broker.wire import Wire, records

from cometmq.message.hosts import decode_host
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import ViewMessageRequestHeader
from cometmq.testing import free_port


@pytest.mark.parametrize(("store_ip", "born_ip"), list(itertools.product(["127.0.0.1", "::1"], repeat=2)))
async def test_every_mixture_of_host_families_is_stored_found_and_shown(
    start_broker: StartBroker, store_ip: str, born_ip: str
) -> None:
    broker = await start_broker(bind_address="", broker_ip1=store_ip, listen_port=free_port("127.0.0.1"))
    wire = Wire(*await asyncio.open_connection(born_ip, broker.server.port))
    answer = await wire.send("T", b"over either")
    msg_id = answer.ext_fields["msgId"]
    ip, port, offset = decode_offset_msg_id(msg_id)
    assert (ip, port) == (store_ip, broker.server.port)
    assert len(msg_id) == (56 if ":" in store_ip else 32)
    (record,) = records(await wire.pull("T"))
    assert decode_host(record.born_host)[0] == born_ip
    assert decode_host(record.store_host) == (store_ip, broker.server.port)
    assert record.sys_flag == (BORNHOST_V6 if ":" in born_ip else 0) | (STOREHOST_V6 if ":" in store_ip else 0)
    viewed = await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))
    assert records(viewed) == [record]
    await wire.close()
