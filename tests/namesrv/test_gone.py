"""A nameserver remembers brokers that are gone, for a while and until they are back."""

from __future__ import annotations

from tests.helpers.waiting import until
from tests.namesrv.registering import MASTER, SLAVE
from tests.namesrv.wire import Connect, Wire

from cometmq.namesrv.gone import CLOSED, SILENT, STOPPED, GoneBrokers
from cometmq.namesrv.limits import MAX_NAMESRV_BROKERS
from cometmq.namesrv.routes import BrokerIdentity
from cometmq.namesrv.server import NameServer
from cometmq.remoting.bodies import ClusterInfo, GoneBroker, decode_body
from cometmq.remoting.codes import RequestCode
from cometmq.testing import VirtualClock


async def told(wire: Wire) -> list[tuple[str, int, str]]:
    info = decode_body(ClusterInfo, (await wire.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    return [(gone.broker_name, gone.gone_for_ms, gone.reason) for gone in info.gone_brokers or []]


async def test_how_a_broker_went_and_when_is_told_until_it_is_back(
    server: NameServer, connect: Connect, clock: VirtualClock
) -> None:
    broker, tool = await connect(), await connect()
    await broker.register()
    plain = (await tool.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body
    assert b"goneBrokers" not in plain, "Apache's own answer while all are here"
    await broker.close()
    await until(lambda: not server.routes.cluster_info().broker_addr_table)
    clock.advance(60)
    assert await told(tool) == [("broker-a", 60_000, CLOSED)]
    again = await connect()
    await again.register()
    assert await told(tool) == []
    clock.advance(200)
    assert [(name, reason) for name, _, reason in await told(await connect())] == [("broker-a", SILENT)]


def test_one_that_stopped_is_forgotten_sooner_and_memory_is_bounded() -> None:
    gone = GoneBrokers()
    gone.record(MASTER, STOPPED, 0)
    gone.record(SLAVE, CLOSED, 0)

    def names(now_s: float) -> list[int]:
        return [broker.broker_id for broker in gone.brokers(now_s)]

    assert names(599) == [0, 1]
    assert names(600) == [1]
    assert names(86_399) == [1]
    assert names(86_400) == []
    for number in range(MAX_NAMESRV_BROKERS + 1):
        gone.record(BrokerIdentity("C", f"b{number}", 0, "10.0.0.1:1"), CLOSED, 0)
    found: list[GoneBroker] = gone.brokers(1)
    assert len(found) == MAX_NAMESRV_BROKERS
    assert "b0" not in {broker.broker_name for broker in found}
