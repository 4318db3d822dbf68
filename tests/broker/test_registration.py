"""A broker's registration at real nameservers: all at once, what changed at once, and again when needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.broker.conftest import StartBroker
from tests.broker.wire import Wire
from tests.helpers.request_hooks import add_hooks
from tests.helpers.waiting import until

import cometmq.broker.registration
from cometmq.broker.config import BrokerConfig, LiveConfig
from cometmq.broker.controller import Broker
from cometmq.broker.registration import BrokerRegistration
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.loop import finish
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.routes import BrokerIdentity, QueuesOfBroker, RouteRegistration, RouteTable
from cometmq.namesrv.server import NameServer
from cometmq.remoting.admin_headers import (
    CreateTopicRequestHeader,
    DeleteKVConfigRequestHeader,
    PutKVConfigRequestHeader,
)
from cometmq.remoting.bodies import DataVersion, QueueData, TopicConfig
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.processors import ProcessorTable, RpcHook
from cometmq.remoting.register_body import Registration, encode_registration
from cometmq.remoting.server import RemotingServer
from cometmq.testing import VirtualClock, settle

ADDRESS = "127.0.0.1:10911"


class Room:
    """A broker's tables and registration without the rest of a broker, and nameservers to register at."""

    def __init__(self, directory: Path, clock: VirtualClock) -> None:
        self.directory = directory
        self.clock = clock
        self.client = RemotingClient()
        self.nameservers: list[NameServer] = []
        self.registration: BrokerRegistration | None = None
        self.live = LiveConfig(BrokerConfig(broker_name="broker-a"))
        self.topics = TopicConfigManager(self.live, directory / "config" / "topics.json", clock=clock)

    async def nameserver(self, port: int = 0) -> NameServer:
        """Start one more nameserver."""
        path = self.directory / f"kv{len(self.nameservers)}.json"
        server = NameServer(NamesrvConfig(listen_port=port, bind_address="127.0.0.1", kv_config_path=str(path)))
        await server.start()
        self.nameservers.append(server)
        return server

    async def start(self, *addresses: str, **options: object) -> None:
        """Start to register at these nameservers."""
        config = BrokerConfig(broker_name="broker-a", namesrv_addr=";".join(addresses), **options)  # type: ignore[arg-type]
        self.live.replace(config)
        self.registration = BrokerRegistration(
            self.live, self.topics, self.client, addresses={"": ADDRESS}, clock=self.clock
        )
        await self.registration.start("127.0.0.1:10912")

    async def stop(self) -> None:
        """Stop what was started."""
        if self.registration is not None:
            await self.registration.stop()
        await self.client.close()
        for server in self.nameservers:
            await server.stop()


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    room = Room(tmp_path, VirtualClock())
    room.topics.load()
    yield room
    await room.stop()


def has(server: NameServer, topic: str) -> bool:
    return server.routes.route(topic) is not None


async def test_the_whole_table_is_at_every_nameserver_when_start_returns(room: Room) -> None:
    first, second = await room.nameserver(), await room.nameserver()
    await room.start(first.address, second.address)
    for server in (first, second):
        assert set(server.routes.topics()) == set(room.topics.table)
        route = server.routes.route("TBW102")
        assert route is not None
        assert route.broker_datas[0].broker_addrs == {0: ADDRESS}
        assert route.queue_datas[0].perm == 7


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_new_topic_is_known_everywhere_at_once(room: Room, compressed: bool) -> None:
    first, second = await room.nameserver(), await room.nameserver()
    await room.start(first.address, second.address, compressed_register=compressed)
    room.topics.put(TopicConfig(topic_name="Fresh", read_queue_nums=3, write_queue_nums=2))
    await until(lambda: has(first, "Fresh") and has(second, "Fresh"))
    route = first.routes.route("Fresh")
    assert route is not None
    assert (route.queue_datas[0].read_queue_nums, route.queue_datas[0].write_queue_nums) == (3, 2)


async def test_a_dead_nameserver_delays_nobody_and_is_tried_again(room: Room) -> None:
    alive, other = await room.nameserver(), await room.nameserver()
    port = other.port
    await other.stop()
    room.nameservers.remove(other)
    await room.start(f"127.0.0.1:{port}", alive.address)
    assert has(alive, "TBW102")
    room.topics.put(TopicConfig(topic_name="Meanwhile"))
    await until(lambda: has(alive, "Meanwhile"))
    back = await room.nameserver(port)
    await until(lambda: has(back, "Meanwhile") and has(back, "TBW102"), clock=room.clock)


async def test_topics_that_come_while_a_nameserver_is_away_are_not_encoded_for_it(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 deletions, each with an attempt that had a copy of the table, took 3 GB of memory."""
    encoded: list[int] = []

    def counted(registration: Registration, **options: bool) -> bytes:
        encoded.append(len(registration.topics))
        return encode_registration(registration, **options)

    monkeypatch.setattr(cometmq.broker.registration, "encode_registration", counted)
    gone = await room.nameserver()
    port = gone.port
    await gone.stop()
    await room.start(f"127.0.0.1:{port}")
    for number in range(20):
        room.topics.put(TopicConfig(topic_name=f"T{number}"))
        await settle()
    assert not encoded
    back = await room.nameserver(port)
    room.topics.put(TopicConfig(topic_name="T"))
    await until(lambda: bool(encoded))
    await until(lambda: back.routes.route("T19") is not None)
    assert len(encoded) == 1


async def test_a_nameserver_that_restarts_is_told_everything_within_seconds(room: Room) -> None:
    server = await room.nameserver()
    port = server.port
    await room.start(server.address)
    await server.stop()
    room.nameservers.remove(server)
    again = await room.nameserver(port)
    began = room.clock.monotonic()
    await until(lambda: has(again, "TBW102"), clock=room.clock)
    assert room.clock.monotonic() - began < 10


async def test_registration_is_repeated_every_period(room: Room) -> None:
    server = await room.nameserver()
    await room.start(server.address, register_name_server_period=10_000)
    server.routes.delete_topic("TBW102")
    room.clock.advance(8)
    assert not has(server, "TBW102")
    began = room.clock.monotonic()
    await until(lambda: has(server, "TBW102"), clock=room.clock)
    assert room.clock.monotonic() - began < 10


async def test_an_unchanged_table_is_asked_for_and_not_sent_again(room: Room) -> None:
    server = await room.nameserver()
    for number in range(3_000):
        room.topics.put(TopicConfig(topic_name=f"topic-{number}"))
    asked: list[tuple[int, int]] = []
    add_hooks(server._servers[0], RpcHook(before=lambda _, request, body: asked.append((request.code, len(body)))))
    await room.start(server.address, register_name_server_period=10_000)
    assert [code for code, _ in asked] == [RequestCode.REGISTER_BROKER]
    assert asked[0][1] > 300_000
    asked.clear()
    await until(lambda: len(asked) >= 9, clock=room.clock)
    period = [
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
    ]
    assert [code for code, _ in asked[:9]] == period * 3
    assert max(size for _, size in asked) < 100
    asked.clear()
    room.topics.put(TopicConfig(topic_name="New"))
    await until(lambda: has(server, "New"))
    assert [code for code, _ in asked] == [RequestCode.REGISTER_BROKER]
    assert asked[0][1] < 500, "the new topic alone"


async def test_a_slave_registers_without_topics(room: Room) -> None:
    """No nameserver takes them, and the answer says where its master is."""
    server = await room.nameserver()
    asked: list[tuple[int, int]] = []
    add_hooks(server._servers[0], RpcHook(before=lambda _, request, body: asked.append((request.code, len(body)))))
    await room.start(server.address, broker_id=1, broker_role="SLAVE", register_name_server_period=10_000)
    await until(lambda: len(asked) >= 3, clock=room.clock)
    assert {code for code, _ in asked} == {RequestCode.REGISTER_BROKER}
    assert max(size for _, size in asked) < 200
    assert server.routes.cluster_info().broker_addr_table["broker-a"].broker_addrs == {1: ADDRESS}


async def test_a_route_that_another_broker_had_is_taken_back(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache's nameserver looks at the version alone, and says that nothing has changed."""
    server = await room.nameserver()

    def by_version_alone(
        _table: RouteTable, _who: object, version: DataVersion, _now: float
    ) -> tuple[bool, DataVersion]:
        return False, version

    monkeypatch.setattr(RouteTable, "query_data_version", by_version_alone)
    await room.start(server.address, register_name_server_period=10_000)
    rival = BrokerIdentity("DefaultCluster", "broker-a", 0, "127.0.0.1:9")
    registration = RouteRegistration(
        rival,
        QueuesOfBroker({}),
        ha_address="",
        data_version=DataVersion(),
        filter_servers=[],
        connection=None,
        now_s=0.0,
    )
    finish(server.routes.register(registration))
    server.routes.unregister(rival)
    assert not has(server, "TBW102")
    await until(lambda: has(server, "TBW102"), clock=room.clock)


async def test_the_brokers_permission_covers_its_topics(room: Room) -> None:
    server = await room.nameserver()
    await room.start(server.address, broker_permission=4)
    assert {queue.perm for topic in server.routes.topics() for queue in _queues(server, topic)} == {4}
    room.live.replace(BrokerConfig(broker_name="broker-a", broker_permission=6))
    room.topics.new_version()
    await until(lambda: {queue.perm for queue in _queues(server, "TBW102")} == {7}, clock=room.clock)


async def test_another_permission_covers_all_topics_also_beside_a_new_topic(room: Room) -> None:
    server = await room.nameserver()
    room.topics.put(TopicConfig(topic_name="Old"))
    await room.start(server.address)
    room.topics.put(TopicConfig(topic_name="New"))
    room.topics.new_version()
    room.live.replace(BrokerConfig(broker_name="broker-a", broker_permission=4))
    await until(
        lambda: has(server, "New") and {queue.perm for queue in _queues(server, "New")} == {4}, clock=room.clock
    )
    assert {queue.perm for queue in _queues(server, "Old")} == {4}


def _queues(server: NameServer, topic: str) -> list[QueueData]:
    route = server.routes.route(topic)
    assert route is not None
    return list(route.queue_datas)


async def test_order_configurations_of_the_nameserver_mark_topics(room: Room) -> None:
    server = await room.nameserver()
    room.topics.put(TopicConfig(topic_name="Ordered"))
    room.topics.put(TopicConfig(topic_name="Plain", order=True))
    await room.client.invoke(
        server.address,
        RequestCode.PUT_KV_CONFIG,
        PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="Ordered", value="broker-a:4"),
    )
    await room.start(server.address)
    ordered, plain = room.topics.get("Ordered"), room.topics.get("Plain")
    assert ordered is not None
    assert plain is not None
    assert (ordered.order, plain.order) == (True, False)
    await room.client.invoke(
        server.address,
        RequestCode.DELETE_KV_CONFIG,
        DeleteKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="Ordered"),
    )
    await until(lambda: not room.topics.table["Ordered"].order, clock=room.clock)  # at the next registration


async def test_a_stopping_broker_leaves_every_nameserver(room: Room) -> None:
    server = await room.nameserver()
    await room.start(server.address)
    assert room.registration is not None
    await room.registration.stop()
    assert server.routes.topics() == []


async def test_a_refused_registration_is_tried_again(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await room.nameserver()
    monkeypatch.setattr("cometmq.namesrv.routes.MAX_NAMESRV_BROKERS", 0)
    await room.start(server.address)
    assert server.routes.topics() == []
    monkeypatch.setattr("cometmq.namesrv.routes.MAX_NAMESRV_BROKERS", 10)
    await until(lambda: has(server, "TBW102"), clock=room.clock)


async def test_a_started_broker_is_in_the_routes_and_a_stopped_one_is_not(
    room: Room, start_broker: StartBroker, connect_to: Callable[[Broker], Awaitable[Wire]]
) -> None:
    server = await room.nameserver()
    broker = await start_broker(namesrv_addr=server.address)
    route = server.routes.route("TBW102")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: broker.address}
    wire = await connect_to(broker)
    assert (await wire.send("MadeBySending")).code == 0
    await until(lambda: has(server, "MadeBySending"))
    await broker.stop()
    assert server.routes.topics() == []


async def test_a_new_topic_is_answered_once_the_nameservers_know_it(
    start_broker: StartBroker, connect_to: Callable[[Broker], Awaitable[Wire]], room: Room
) -> None:
    nameserver = await room.nameserver()
    wire = await connect_to(await start_broker(namesrv_addr=nameserver.address))
    for number in range(20):
        header = CreateTopicRequestHeader(f"T{number}", "TBW102", 1, 1, 6, "SINGLE_TAG", order=False)
        assert (await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
        assert nameserver.routes.route(header.topic) is not None


async def test_a_nameserver_that_is_away_does_not_hold_up_administration_for_long(room: Room) -> None:
    never = ProcessorTable()
    never.register(RequestCode.REGISTER_BROKER, NoHeader, lambda *_: None)
    alive, silent = await room.nameserver(), RemotingServer(never)
    await silent.start("127.0.0.1", 0)
    starting = asyncio.create_task(room.start(alive.address, f"127.0.0.1:{silent.port}"))
    await until(lambda: starting.done(), clock=room.clock)
    assert room.registration is not None
    called: list[str] = []
    room.topics.put(TopicConfig(topic_name="New"))
    room.registration.when_known(lambda: called.append("New"))
    await until(lambda: alive.routes.route("New") is not None)
    assert not called
    room.clock.advance(1)
    assert called == ["New"]
    await silent.stop()


async def test_a_nameserver_that_is_away_is_told_every_minute_and_its_return_once(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cometmq.broker.registration")
    first = await room.nameserver()
    await room.start(first.address)
    address, port = first.address, first.port
    await first.stop()

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "cometmq.broker.registration"]

    await until(lambda: len(told()) == 4, clock=room.clock, step_s=5)
    began, failed, *later = told()
    assert began == f"registered with nameserver {address}"
    assert failed.startswith(f"cannot register with nameserver {address}: ")
    for text in later:
        assert text.startswith(f"not registered with nameserver {address} for ")
        assert text.endswith("; its clients cannot find this broker")
    await room.nameserver(port=port)
    await until(lambda: told()[-1] == f"registered with nameserver {address} again", clock=room.clock)


async def test_a_broker_that_names_no_nameserver_says_so_every_minute(
    start_broker: StartBroker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await start_broker()
    for minutes in range(3):
        assert caplog.text.count("namesrvAddr is not set") == 1 + minutes
        clock.advance(60)


async def test_100_000_topics_and_their_retry_topics_are_registered(room: Room) -> None:
    """Apache's brokers cannot: the body is larger than a frame unless compressedRegister is set."""
    server = await room.nameserver()
    names = [f"{kind}a-topic-with-a-long-name-{number}" for kind in ("", "%RETRY%") for number in range(100_000)]
    room.topics._table.update((name, TopicConfig(topic_name=name, read_queue_nums=5)) for name in names)
    await room.start(server.address)
    await until(lambda: has(server, names[-1]))
    assert server.routes.topics() == list(room.topics.table)
    route = server.routes.route(names[0])
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 5
