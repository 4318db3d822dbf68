"""Administrators ask for slaves (907), by the fields that Apache's tools read."""

from __future__ import annotations

import json

from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.replication.conftest import ConnectSlave
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import VirtualClock


async def test_each_slave_is_shown_with_how_far_it_is(
    start_broker: StartBroker, connect_to: ConnectTo, connect_slave: ConnectSlave, clock: VirtualClock
) -> None:
    broker = await start_broker(ha_slave_fallbehind_max=1_000)
    wire = await connect_to(broker)
    behind, in_sync = await connect_slave(broker), await connect_slave(broker)
    await connect_slave(broker)  # has not reported
    await behind.report(0)
    await wire.send("T", bytes(2_000))
    end = broker.store.max_physical_offset
    await in_sync.report(end)
    await clock.run_for(1)
    answer = await wire.call(RequestCode.GET_BROKER_HA_STATUS)
    assert answer.code == ResponseCode.SUCCESS
    ports = [slave.transport.get_extra_info("sockname")[1] for slave in (behind, in_sync)]
    assert json.loads(answer.body) == {
        "master": True,
        "masterCommitLogMaxOffset": end,
        "inSyncSlaveNums": 1,
        "haConnectionInfo": [
            {
                "addr": f"127.0.0.1:{ports[0]}",
                "slaveAckOffset": 0,
                "diff": end,
                "inSync": False,
                "transferredByteInSecond": end,
                "transferFromWhere": end,
            },
            {
                "addr": f"127.0.0.1:{ports[1]}",
                "slaveAckOffset": end,
                "diff": 0,
                "inSync": True,
                "transferredByteInSecond": 0,
                "transferFromWhere": end,
            },
        ],
    }
    await clock.run_for(1)
    answer = await wire.call(RequestCode.GET_BROKER_HA_STATUS)
    assert json.loads(answer.body)["haConnectionInfo"][0]["transferredByteInSecond"] == 0


async def test_without_slaves_the_list_is_empty(broker: Broker, wire: Wire) -> None:
    answer = await wire.call(RequestCode.GET_BROKER_HA_STATUS)
    assert json.loads(answer.body) == {
        "master": True,
        "masterCommitLogMaxOffset": broker.store.max_physical_offset,
        "inSyncSlaveNums": 0,
        "haConnectionInfo": [],
    }
