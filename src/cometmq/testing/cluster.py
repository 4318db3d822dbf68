"""A test cluster: a nameserver and brokers on the running event loop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from cometmq.broker.config import BrokerConfig
from cometmq.broker.controller import Broker
from cometmq.client.admin import Admin
from cometmq.client.consumer.listener import Verdict
from cometmq.client.consumer.subscription import ALL, TAG
from cometmq.client.instance import ClientInstance
from cometmq.client.producer.producer import Producer
from cometmq.client.send_result import SendResult
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.hosts import parse_address
from cometmq.message.message import Message
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.proxy.embedded import BrokerEndpoint
from cometmq.remoting.security import Security
from cometmq.testing.clock import StoppableClock, VirtualClock
from cometmq.testing.cluster_keys import HOST, LINK_HOST, SMALL_STORE, broker_config, config_from, keys_of_broker
from cometmq.testing.inbox import Inbox
from cometmq.testing.killed import stop_as_killed
from cometmq.testing.link import Link
from cometmq.testing.own_loop import demand_own_loop
from cometmq.testing.ports import free_port
from cometmq.testing.replica_set import NAMES, START_SECONDS, Place, ReplicaSet
from cometmq.testing.secured import secure_cluster
from cometmq.testing.stall import StalledClockError, StallWatch

SEND_SECONDS: Final = 60.0
"""Seconds by which a virtual clock is moved after a rejected send: longer than all retries take."""


class Cluster:
    """A nameserver and brokers inside this process, on free loopback ports.

    Use it as ``async with Cluster() as cluster: Producer("group", cluster.namesrv_address)``.

    :param brokers: number of brokers, each with its own store.
    :param slaves: number of slaves for each broker; with ``brokerRole=SYNC_MASTER`` in ``broker_keys``, sends wait for
        every slave in sync, and need at least one.
    :param clock: the clock of all servers; the test moves a :class:`~cometmq.testing.VirtualClock`.
    :param data: directory for the stores, which is not deleted; by default a temporary directory.
    :param broker_keys: keys of ``broker.conf`` for every broker.
    :param links: connect brokers, clients and nameserver through links that a test can disturb (:meth:`link`,
        :meth:`pause_broker`); messages then take about twice as long.
    :param tls: all servers accept only TLS, with certificates issued for them.
    :param accounts: entries of ``plain_acl.yml``; all servers then check signatures and permissions (ACL 1.0). An
        account for :attr:`security` is added.
    :param grpc: each broker has an endpoint for clients of RocketMQ 5 (:attr:`grpc_address`).
    :param replicas: number of members that each broker has and that elect their master; 0 if there is no failover. A
        member's name is a letter (``a``, ``b``, …).
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        slaves: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        data: Path | None = None,
        broker_keys: Mapping[str, str] | None = None,
        links: bool = False,
        tls: bool = False,
        accounts: Sequence[Mapping[str, Any]] | None = None,
        grpc: bool = False,
        replicas: int = 0,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster needs at least one broker, not {brokers}")
        if (slaves or replicas) and links:
            raise ValueError(f"a cluster cannot have both {'slaves' if slaves else 'replicas'} and links")
        if replicas and slaves:
            raise ValueError("a cluster has slaves, which a test promotes, or replicas, which elect their master")
        if not 0 <= replicas <= len(NAMES):
            raise ValueError(f"a broker has at most {len(NAMES)} replicas, not {replicas}")
        self.clock = clock
        self._temporary = TemporaryDirectory(prefix="cometmq-") if data is None else None
        self.data = Path(self._temporary.name) if self._temporary is not None else data or Path()
        self._secured = secure_cluster(self.data, (HOST, LINK_HOST), tls=tls, accounts=accounts)
        self._keys = {**SMALL_STORE, **self._secured.keys, **(broker_keys or {})}
        self._ports = [free_port(HOST) for _ in range(brokers)]
        self._grpc_ports = [free_port(HOST) for _ in range(brokers)] if grpc else []
        self._endpoints: dict[int, BrokerEndpoint] = {}
        self._roots = [self.data / f"broker-{index}" for index in range(brokers)]
        self._running: dict[int, Broker] = {}
        self._slaves = {
            (index, number): _Slave(free_port(HOST), self.data / f"broker-{index}-slave-{number}")
            for index in range(brokers)
            for number in range(1, slaves + 1)
        }
        self._replicas = NAMES[:replicas]
        self._sets: list[ReplicaSet] = []
        self._namesrv: NameServer | None = None
        self._producer: Producer | None = None
        """The producer behind :meth:`send`."""
        self._watch: StallWatch | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._with_links = links
        self._links: list[Link] = []
        self._namesrv_links: list[Link] = []
        self._broker_clocks: list[StoppableClock] = []

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, kind: object = None, error: BaseException | None = None, trace: object = None) -> None:
        await self.stop()
        if isinstance(error, asyncio.CancelledError) and self.stalled is not None:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            raise self.stalled.with_traceback(error.__traceback__) from None

    @property
    def stalled(self) -> StalledClockError | None:
        """The error with which the test was cancelled because nobody moved its virtual clock, or None."""
        return None if self._watch is None else self._watch.error

    @property
    def namesrv(self) -> NameServer:
        """The nameserver."""
        assert self._namesrv is not None, "the cluster has not been started"
        return self._namesrv

    @property
    def namesrv_address(self) -> str:
        """``host:port`` for clients."""
        return self.namesrv.address

    @property
    def grpc_address(self) -> str:
        """``host:port`` of the first broker's gRPC endpoint for RocketMQ 5 clients.

        :raises ValueError: the cluster has no such endpoints.
        """
        if not self._grpc_ports:
            raise ValueError("the cluster has no gRPC endpoint: create it with grpc=True (marker: grpc=True)")
        return self.endpoint(0).address if self._replicas else f"{HOST}:{self._grpc_ports[0]}"

    def endpoint(self, index: int) -> BrokerEndpoint:
        """Return a broker's gRPC endpoint; raise KeyError if the broker has none, or no master."""
        return self._sets[index].endpoint if self._replicas else self._endpoints[index]

    @property
    def security(self) -> Security:
        """Credentials and TLS for a client with all permissions; ``replace(security, …)`` creates variants."""
        return self._secured.security

    @property
    def brokers(self) -> Sequence[Broker]:
        """The running brokers, in order; with replicas, those that are masters now."""
        if self._replicas:
            return [one.broker for one in self._sets if one.master is not None]
        return [self._running[index] for index in sorted(self._running)]

    def broker(self, index: int) -> Broker:
        """Return the broker with this index; with replicas, its master. Raise KeyError if it is stopped, or there is no
        master.
        """
        return self._sets[index].broker if self._replicas else self._running[index]

    @property
    def size(self) -> int:
        """The number of brokers, including stopped ones."""
        return len(self._ports)

    @property
    def running(self) -> Set[int]:
        """The indexes of the running brokers."""
        return self._running.keys()

    def client_instance(self) -> ClientInstance:
        """Return a client instance for this cluster and its clock: ``Producer(group, instance=…)``.

        :raises OtherLoopError: this is not the cluster's event loop.
        """
        demand_own_loop(self._loop)
        return ClientInstance(self.namesrv_address, security=self.security, clock=self.clock)

    def has_topic(self, topic: str) -> bool:
        """Return whether the nameserver knows the topic."""
        return self.namesrv.routes.route(topic) is not None

    async def create_topic(self, topic: str, queues: int = 4, *, message_type: str | None = None) -> None:
        """Create a topic with ``queues`` queues on every broker. Clients can use the topic when the call returns.

        :param message_type: for RocketMQ 5 clients, such as ``PRIORITY``; see
            :meth:`cometmq.client.Admin.create_topic`.
        """
        async with Admin(instance=self.client_instance()) as admin:
            await admin.create_topic(topic, queues=queues, message_type=message_type)

    async def send(self, message: Message) -> SendResult:
        """Send a message as another application would. Move a virtual clock while a broker rejects the message."""
        if self._producer is None:
            self._producer = Producer("cometmq-testing", instance=self.client_instance())
            await self._producer.start()
        sent = self._producer.send(message)
        return await (self.clock.run_until(sent, SEND_SECONDS) if isinstance(self.clock, VirtualClock) else sent)

    def inbox(
        self,
        *topics: str,
        expression: str = ALL,
        expression_type: str = TAG,
        group: str | None = None,
        answer: Verdict = None,
    ) -> Inbox:
        """Return a consumer that collects messages: ``async with cluster.inbox("orders") as inbox:``.

        The parameters are those of :class:`~cometmq.testing.inbox.Inbox`.
        """
        return Inbox(self, topics, expression=expression, expression_type=expression_type, group=group, answer=answer)

    def store_root(self, index: int) -> Path:
        """The directory of a broker's store."""
        return self._roots[index]

    async def start(self) -> None:
        """Start the nameserver, then all brokers and their slaves. They are registered when the call returns."""
        self._loop = asyncio.get_running_loop()
        if isinstance(self.clock, VirtualClock):
            self._watch = StallWatch(self.clock)
        kv_path = str(self.data / "namesrv" / "kvConfig.json")
        config = config_from(
            NamesrvConfig, {"listenPort": "0", "bindAddress": HOST, "kvConfigPath": kv_path, **self._secured.keys}
        )
        self._namesrv = NameServer(config, clock=self.clock)
        await self._namesrv.start()
        if self._with_links:
            await self._start_links()
        for index in range(len(self._ports)):
            await (self._start_set(index) if self._replicas else self.start_broker(index))
        for index, number in self._slaves:
            await self.start_slave(index, number)

    async def stop(self) -> None:
        """Stop everything cleanly and remove the temporary directory.

        :raises OtherLoopError: this is not the cluster's event loop. The directory is removed in this case too.
        """
        try:
            demand_own_loop(self._loop)
            for (index, number), slave in self._slaves.items():
                if slave.broker is not None:
                    await self.stop_slave(index, number)
            for index in sorted(self._running):
                await self.stop_broker(index)
            for replica_set in self._sets:
                await replica_set.stop_all()
            for link in (*self._links, *self._namesrv_links):
                await link.stop()
            if self._producer is not None:  # no broker is left to answer, so it does not wait
                producer, self._producer = self._producer, None
                await producer.close()
            if self._namesrv is not None:
                await self._namesrv.stop()
                self._namesrv = None
        finally:
            if self._watch is not None:
                self._watch.stop()
            if self._temporary is not None:
                self._temporary.cleanup()

    async def start_broker(self, index: int) -> Broker:
        """Start a stopped broker with its existing store and port."""
        assert index not in self._running, f"broker {index} is already running"
        broker = self._running[index] = await self._start_or_stop(
            Broker(self._config(index), clock=self._broker_clock(index))
        )
        if self._grpc_ports:
            endpoint = self._endpoints[index] = BrokerEndpoint(broker)
            await endpoint.start(self._grpc_ports[index])
        return broker

    @staticmethod
    async def _start_or_stop(broker: Broker) -> Broker:
        try:
            await broker.start()
        except BaseException:
            await broker.stop()
            raise
        return broker

    async def stop_broker(self, index: int) -> None:
        """Stop a broker cleanly. A paused broker is resumed first."""
        if self._with_links:
            self.resume_broker(index)
        if index in self._endpoints:
            await self._endpoints.pop(index).stop()
        await self._running.pop(index).stop()

    async def restart_broker(self, index: int) -> Broker:
        """Stop a broker cleanly and start it again with the same store and port."""
        await self.stop_broker(index)
        return await self.start_broker(index)

    async def kill_broker(self, index: int) -> None:
        """Kill a broker like SIGKILL: its connections break, it does not unregister, and its files are no longer
        written.

        Its directory remains in the state of that moment, including the ``abort`` file, and :meth:`start_broker`
        recovers from it. Unlike in a power failure, pages that are not flushed survive.
        """
        broker = self._running.pop(index)
        endpoint = self._endpoints.pop(index, None)
        if endpoint is not None:
            endpoint.cut_off()
            await endpoint.stop()
        await broker.cut_off()
        if self._with_links:
            self.link(index).cut()
            self.resume_broker(index)
        await stop_as_killed(broker.stop, self.store_root(index))

    # --- slaves -------------------------------------------------------------------------------
    def slave(self, index: int = 0, number: int = 1) -> Broker:
        """Return a slave of the broker with this index; raise KeyError if the slave does not exist or is stopped."""
        broker = self._slaves[index, number].broker
        if broker is None:
            raise KeyError(f"slave {number} of broker {index} is not running")
        return broker

    async def start_slave(self, index: int = 0, number: int = 1) -> Broker:
        """Start a stopped slave with its existing store and port."""
        slave = self._slaves[index, number]
        assert slave.broker is None, f"slave {number} of broker {index} is already running"
        config = self._configured(index, slave.port, slave.root, {"brokerRole": "SLAVE", "brokerId": str(number)})
        slave.broker = await self._start_or_stop(Broker(config, clock=self.clock))
        return slave.broker

    async def stop_slave(self, index: int = 0, number: int = 1) -> None:
        """Stop a slave cleanly."""
        broker = self.slave(index, number)
        self._slaves[index, number].broker = None
        await broker.stop()

    async def kill_slave(self, index: int = 0, number: int = 1) -> None:
        """Kill a slave as SIGKILL does; see :meth:`kill_broker`."""
        broker = self.slave(index, number)
        self._slaves[index, number].broker = None
        await broker.cut_off()
        await stop_as_killed(broker.stop, self._slaves[index, number].root)

    def empty_slave(self, index: int = 0, number: int = 1) -> None:
        """Remove a stopped slave's store, so that the slave copies everything from its master when it starts."""
        slave = self._slaves[index, number]
        assert slave.broker is None, f"slave {number} of broker {index} is still running; stop it first"
        shutil.rmtree(slave.root, ignore_errors=True)

    def has_replicated(self, index: int = 0, number: int = 1) -> bool:
        """Return whether a slave has its master's complete log, topics and groups.

        Wait for it with :func:`~cometmq.testing.wait_until`: the log arrives immediately; tables arrive three seconds
        after the start and then every ten seconds.
        """
        slave, master = self.slave(index, number), self.broker(index)
        return (
            slave.store.max_physical_offset == master.store.max_physical_offset
            and slave.topics.version == master.topics.version
            and slave.groups.version == master.groups.version
        )

    async def promote_slave(self, index: int = 0, number: int = 1) -> Broker:
        """Promote a slave to replace a stopped or killed master; return the new master.

        :meth:`start_slave` can then start the old master as the slave, on its store and port. If the old master had
        messages that the new master lacks, call :meth:`empty_slave` first; otherwise the slave logs that its store must
        be emptied.
        """
        assert index not in self._running, f"broker {index} is still running; stop it first"
        slave = self._slaves[index, number]
        if slave.broker is not None:
            await self.stop_slave(index, number)
        self._ports[index], slave.port = slave.port, self._ports[index]
        self._roots[index], slave.root = slave.root, self._roots[index]
        return await self.start_broker(index)

    # --- replicas -----------------------------------------------------------------------------
    def replica_set(self, index: int = 0) -> ReplicaSet:
        """Return the members of a broker and their engine.

        :raises ValueError: the cluster has no replicas.
        """
        if not self._replicas:
            raise ValueError("the cluster has no replicas: create it with replicas=3 (marker: replicas=3)")
        return self._sets[index]

    async def kill_master(self, index: int = 0) -> str:
        """Kill a broker's master like SIGKILL, and return its name; see :meth:`ReplicaSet.kill_master`."""
        return await self.replica_set(index).kill_master()

    async def start_member(self, name: str, index: int = 0) -> None:
        """Start a member that was stopped or killed; it follows the master, and is in sync again soon."""
        await self.replica_set(index).start(name)

    async def hand_over(self, to: str = "", index: int = 0) -> None:
        """Make another member a broker's master, as ``cometmq failover handover`` does."""
        moved = self.replica_set(index).hand_over(to)
        await (self.clock.run_until(moved, START_SECONDS) if isinstance(self.clock, VirtualClock) else moved)

    def is_in_sync(self, index: int = 0) -> bool:
        """Return whether a broker has a master, and all of its running members are in sync.

        Wait for it with :func:`~cometmq.testing.wait_until`.
        """
        return self.replica_set(index).is_in_sync()

    async def _start_set(self, index: int) -> None:
        places = {}
        for name in self._replicas:
            root = self.data / f"broker-{index}-{name}"
            config = self._configured(index, free_port(HOST), root, {"failoverMember": name})
            places[name] = Place(config, root, free_port(HOST) if self._grpc_ports else 0)
        self._sets.append(ReplicaSet(places, clock=self.clock))
        await self._sets[-1].start_all()

    # --- links --------------------------------------------------------------------------------
    async def _start_links(self) -> None:
        address = parse_address(self.namesrv_address)
        for port in self._ports:
            link = Link((LINK_HOST, port), (HOST, port), clock=self.clock)
            await link.start()
            self._links.append(link)
            link = Link((HOST, 0), address, clock=self.clock)
            await link.start()
            self._namesrv_links.append(link)
            self._broker_clocks.append(StoppableClock(self.clock))

    def _broker_clock(self, index: int) -> Clock:
        return self._broker_clocks[index] if self._with_links else self.clock

    def link(self, index: int) -> Link:
        """Return the link between one broker and its clients.

        :raises ValueError: the cluster has no links.
        """
        self._demand_links()
        return self._links[index]

    def pause_broker(self, index: int) -> ExitStack:
        """Suspend a broker like SIGSTOP: the broker answers no requests, sends nothing and fires no timers.

        Connections remain open, and new ones are accepted. A flush that has started may still finish. ``with
        cluster.pause_broker(0):`` resumes the broker at the end of the block, even if the test fails there. Otherwise
        closing clients would wait for the broker's answer, and nothing would move the clock.

        :raises ValueError: the cluster has no links.
        """
        self._demand_links()
        self._broker_clocks[index].stop()
        self._links[index].pause()
        self._namesrv_links[index].pause()
        until = ExitStack()
        until.callback(self.resume_broker, index)
        return until

    def resume_broker(self, index: int) -> None:
        """Resume a paused broker, which then receives everything sent during the pause. Other faults of its link
        remain.
        """
        self._demand_links()
        self._broker_clocks[index].go_on()
        self._links[index].resume()
        self._namesrv_links[index].resume()

    def _demand_links(self) -> None:
        if not self._with_links:
            raise ValueError("the cluster has no links: create it with links=True (marker: links=True)")

    def _config(self, index: int) -> BrokerConfig:
        if not self._with_links:
            return self._configured(index, self._ports[index], self._roots[index], {})
        namesrv = f"{HOST}:{self._namesrv_links[index].port}"
        keys = {"brokerIP1": LINK_HOST, "namesrvAddr": namesrv}
        return self._configured(index, self._ports[index], self._roots[index], keys)

    def _configured(self, index: int, port: int, root: Path, further: Mapping[str, str]) -> BrokerConfig:
        return broker_config({**keys_of_broker(index, port, root, self.namesrv_address), **self._keys, **further})


class _Slave:
    def __init__(self, port: int, root: Path) -> None:
        self.port = port
        self.root = root
        self.broker: Broker | None = None
