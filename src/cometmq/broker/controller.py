"""One broker: its parts, wired together, started and stopped in order (``BrokerController``).

Start: store (recovery), tables, processors, server, registration. Stop: leave the nameservers, refuse
sends, answer the pulls that wait, close connections, write the tables, close the store.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from cometmq.broker.admin import register_administration
from cometmq.broker.answers import SendAnswers
from cometmq.broker.clients import ClientRegistry
from cometmq.broker.config import SLAVE, SYNC_MASTER, BrokerConfig
from cometmq.broker.consumer_filters import ConsumerFilterManager
from cometmq.broker.consumer_manage import ConsumerManageProcessor
from cometmq.broker.delay_offsets import DelayOffsets
from cometmq.broker.filter_scan import FilterScan
from cometmq.broker.groups import SubscriptionGroupManager
from cometmq.broker.heartbeat import ClientManageProcessor
from cometmq.broker.hold import PullRequestHoldService
from cometmq.broker.hook_loading import load_hooks
from cometmq.broker.inner_message import Detour
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.lock_file import LockFile
from cometmq.broker.locks import LockProcessor, RebalanceLockManager
from cometmq.broker.master_services import MasterServices
from cometmq.broker.message_hooks import BrokerHooks
from cometmq.broker.offset_expiry import OffsetExpiry
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.broker.periodic import Periodic
from cometmq.broker.producer_sequence_log import ProducerSequenceLog
from cometmq.broker.pull import PullMessageProcessor
from cometmq.broker.pull_filters import PullFilters
from cometmq.broker.queries import QueryProcessor
from cometmq.broker.registration import BrokerRegistration
from cometmq.broker.replication.group_transfer import GroupTransferService
from cometmq.broker.replication.ha_service import HAService
from cometmq.broker.replication.ha_status import HaStatusAdmin
from cometmq.broker.replication.slave import Slave, no_messages
from cometmq.broker.replication.store_files import StoreFileProcessor
from cometmq.broker.reply import ReplyMessageProcessor
from cometmq.broker.retry import SendBackProcessor
from cometmq.broker.schedule import ScheduleMessageService
from cometmq.broker.send import SendMessageProcessor
from cometmq.broker.send_targets import SendTargets
from cometmq.broker.send_waiters import SendWaiters
from cometmq.broker.sequenced_sends import SequencedSends
from cometmq.broker.stats import BrokerStats
from cometmq.broker.store_turn import StoreTurn
from cometmq.broker.table_file import TurnWriter
from cometmq.broker.table_recovery import recover_tables
from cometmq.broker.timer import TimerMessageService
from cometmq.broker.topics import TopicConfigManager
from cometmq.broker.transactions import TransactionalMessageService
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.limits import CLIENT_SCAN_SECONDS, FILTER_SAVE_SECONDS, OFFSET_LOOK_SECONDS, TABLE_RETRY_SECONDS
from cometmq.message.hosts import encode_host, format_address, own_ip
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.processors import ProcessorTable
from cometmq.remoting.server import RemotingServer
from cometmq.store.disk import Disk
from cometmq.store.message_store import MessageStore, TopicQueue

_log = logging.getLogger(__name__)

HA_PORT_DISTANCE: Final = 1
"""Slaves replicate from the port after the one for clients."""

FAST_PORT_DISTANCE: Final = 2
"""Old clients and slaves ask everything but pulls at this port before the one for clients."""


class Broker:
    """A broker process's inside; ``disk`` is how its store changes files, for tests of failures.

    ``hooks`` are used beside those that the configuration names (``hookNames``).

    Its parts are there for the modules of administration: ``live``, ``topics``, ``groups``,
    ``offsets``, ``filters``, ``clients``, ``locks``, ``processors``, ``stats``; from ``start`` on also ``store``,
    ``turn``, ``ha``, ``schedule``, ``hold`` and ``server``; of a master ``transactions`` and ``timer``, of a slave
    ``slave``.
    """

    store: MessageStore
    turn: StoreTurn
    ha: HAService
    transactions: TransactionalMessageService
    timer: TimerMessageService
    schedule: ScheduleMessageService
    slave: Slave
    _master: MasterServices
    producers: ProducerSequenceLog
    hold: PullRequestHoldService
    server: RemotingServer

    def __init__(
        self,
        config: BrokerConfig,
        *,
        hooks: BrokerHooks | None = None,
        clock: Clock = SYSTEM_CLOCK,
        disk: Disk | None = None,
    ) -> None:
        self._hooks = (hooks or BrokerHooks()) + load_hooks(config)
        ip = _plain(config.broker_ip1) or own_ip()
        self.live = LiveConfig(
            dataclasses.replace(
                config,
                broker_ip1=ip,
                broker_ip2=_plain(config.broker_ip2) or ip,
                broker_name=config.broker_name or socket.gethostname(),
            )
        )
        self.clock = clock
        self._disk = disk
        tables = Path(config.store_path_root_dir) / "config"
        self.topics = TopicConfigManager(self.live, tables / "topics.json", clock=clock)
        self.groups = SubscriptionGroupManager(self.live, tables / "subscriptionGroup.json", clock=clock)
        self.offsets = ConsumerOffsetManager(tables / "consumerOffset.json")
        self.filters = ConsumerFilterManager(self.live, tables / "consumerFilter.json", clock=clock)
        self.clients = ClientRegistry(clock=clock)
        self.locks = RebalanceLockManager(clock=clock)
        self._lock_file = LockFile(self.locks, Path(config.store_path_root_dir) / "comet" / "locks.json")
        self.processors = ProcessorTable()
        self.stats = BrokerStats(config.broker_cluster_name, clock=clock)
        self._registration: BrokerRegistration | None = None
        self._stops = AsyncExitStack()
        self._servers: list[RemotingServer] = []
        self._registrar: RemotingClient | None = None

    @property
    def config(self) -> BrokerConfig:
        """The configuration of this moment."""
        return self.live.current

    @property
    def is_slave(self) -> bool:
        """Whether this broker follows a master."""
        return self.config.broker_role == SLAVE

    @property
    def address(self) -> str:
        """``host:port`` that clients reach this broker at."""
        return format_address(self.config.broker_ip1, self.server.port)

    async def start(self) -> None:
        """Open the store, listen, register; when it returns the broker serves.

        :raises StoreError: the store cannot be opened.
        :raises OSError: the port is taken or not allowed.
        """
        try:
            self._open_store()
            await self._listen()
            self._start_services()
            await self._start_registration()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Leave the nameservers, answer what is under way, close everything; harmless when it never started."""
        await self._stops.aclose()

    async def cut_off(self) -> None:
        """End every connection at once, answer nobody and tell no nameserver; ``stop`` is still due.

        For the test kit: what others see of a broker that was killed.
        """
        for server in self._servers:
            server.cut_off()
        self.ha.cut_off()
        if self.is_slave:
            await self.slave.cut_off()
        if self._registrar is not None:
            await self._registrar.close()

    # --- parts ----------------------------------------------------------------------------------
    def _open_store(self) -> None:
        self.store = MessageStore.open(self.config, clock=self.clock, disk=self._disk)
        self._stops.push_async_callback(self.store.close)
        self.live.on_change.append(self.store.reconfigure)
        findings = [*self.topics.load(), *self.groups.load(), *self.offsets.load(), *self.filters.load()]
        for finding in (*findings, *recover_tables(self.topics, self.groups, self.offsets, self.store)):
            _log.warning("%s", finding)
        self._lock_file.load()
        self._stops.callback(self._save_tables)
        self._stops.callback(self.offsets.save)
        self._stops.callback(self.filters.save)
        self.store.start()

    async def _listen(self) -> None:
        config = self.config
        self.server = self._new_server(self.processors)
        await self.server.start(config.bind_address, config.listen_port)
        self._stops.push_async_callback(self.server.stop)
        # Nothing may wait between listening and this: a request would find no processors.
        self._register_processors()
        tables = TurnWriter(self._save_tables, self.server.schedule_turn)
        self.topics.on_due = self.groups.on_due = self._lock_file.on_due = tables.changed
        # First the tables: messages of a topic that is in no file would be hidden after a crash.
        self.server.turn_hooks += (tables.end_turn, self.turn.end, self.ha.end_turn)
        if not self.is_slave:
            self.server.turn_hooks += (self.timer.end_turn,)
        self._stops.push_async_callback(self.ha.stop)
        self._stops.push_async_callback(self.schedule.stop)
        self._stops.push_async_callback(self._finish_requests)
        await self._listen_fast()
        port = config.ha_listen_port or (config.listen_port and config.listen_port + HA_PORT_DISTANCE)
        await self.ha.start(config.bind_address, port)

    async def _listen_fast(self) -> None:
        """Listen on the port for clients that keep pulls and all else apart (``vipChannelEnabled``)."""
        port = self.config.listen_port - FAST_PORT_DISTANCE
        if port <= 0:
            return
        server = self._new_server(self.processors.without(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
        server.turn_hooks += self.server.turn_hooks
        try:
            await server.start(self.config.bind_address, port)
        except OSError as error:
            _log.warning("cannot listen on port %d for clients with vipChannelEnabled: %s", port, error)
        else:
            self._stops.push_async_callback(server.stop)

    def _new_server(self, processors: ProcessorTable) -> RemotingServer:
        config = self.config
        server = RemotingServer(
            processors,
            hooks=self._hooks.for_server(lambda: self.address, config.region_id),
            clock=self.clock,
            idle_timeout_s=config.server_channel_max_idle_time_seconds,
            max_connections=config.server_max_connections,
        )
        self._servers.append(server)
        return server

    def _register_processors(self) -> None:
        config = self.config
        host = encode_host(config.broker_ip1, self.server.port)
        answers = SendAnswers(host, region=config.region_id, trace_on=config.trace_on)
        targets = SendTargets(self.live, self.topics, self.groups, self.store, clock=self.clock)
        transfers = GroupTransferService(
            clock=self.clock,
            timeout_s=config.slave_timeout / 1000,
            fall_behind_max=config.ha_slave_fallbehind_max,
        )
        self.ha = HAService(config, self.store, transfers, clock=self.clock)
        flush_timeout_s = config.sync_flush_timeout / 1000
        waiters = SendWaiters(
            self.store,
            transfers if config.broker_role == SYNC_MASTER else None,
            answers,
            clock=self.clock,
            timeout_s=flush_timeout_s,
        )
        self.turn = StoreTurn(
            targets,
            self.store,
            self.stats,
            answers,
            host,
            self.server.schedule_turn,
            clock=self.clock,
            waiters=waiters,
        )
        self.schedule = ScheduleMessageService(
            self.store, self.turn, DelayOffsets(self.store.config.root), clock=self.clock
        )
        self.producers = ProducerSequenceLog(
            self.store, Path(config.store_path_root_dir) / "comet" / "producers.json", clock=self.clock
        )
        sequenced = SequencedSends(self.producers, self.turn, self.store, answers, host, clock=self.clock)
        detours: list[Detour] = []
        if self.is_slave:
            self._make_slave()
        else:
            self._make_master(host)
            sequenced.register(self.processors)
            detours = self._master.detours
        sends = SendMessageProcessor(self.live, targets, self.store, self.turn, answers, sequenced, detours)
        self.hold = PullRequestHoldService(self.store, clock=self.clock)
        pulls = PullMessageProcessor(
            self.live,
            self.topics,
            self.groups,
            PullFilters(self.live, self.clients.consumers, self.filters, FilterScan(self.store)),
            self.offsets,
            self.store,
            self.stats,
            self.hold,
            clock=self.clock,
        )
        self.hold.answer = pulls.again
        self.store.on_arrival = self._replicated if self.is_slave else self.hold.arrived
        consumers = ConsumerManageProcessor(self.live, self.clients.consumers, self.offsets, self.store)
        sends.register(self.processors)
        SendBackProcessor(
            self.live, self.topics, self.groups, self.store, self.turn, self.schedule.levels, self.stats
        ).register(self.processors)
        self.schedule.register(self.processors)
        pulls.register(self.processors)
        consumers.register(self.processors)
        ClientManageProcessor(
            self.live, self.clients, self.topics, self.groups, self.filters, self.locks, clock=self.clock
        ).register(self.processors)
        LockProcessor(self.locks, self.clients).register(self.processors)
        ReplyMessageProcessor(
            self.live, targets, self.turn, self.clients.producers, answers, self.address, clock=self.clock
        ).register(self.processors)
        QueryProcessor(self.live, self.store).register(self.processors)
        StoreFileProcessor(self.store.config.root).register(self.processors)
        register_administration(
            self.processors,
            live=self.live,
            address=self.address,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            clients=self.clients,
            store=self.store,
            stats=self.stats,
            schedule=self.schedule,
            of_role=self.slave if self.is_slave else self._master,
            permission_changed=self.topics.new_version,
            when_registered=self._when_registered,
            clock=self.clock,
        )
        if self.is_slave:
            self.slave.register(self.processors)

    def _make_master(self, store_host: bytes) -> None:
        master = self._master = MasterServices(
            self.live,
            self.topics,
            self.offsets,
            self.clients.producers,
            self.store,
            self.stats,
            self.turn,
            self.schedule,
            self.producers,
            store_host,
            self.server.schedule_turn,
            clock=self.clock,
        )
        self.transactions, self.timer = master.transactions, master.timer
        master.register(self.processors)
        HaStatusAdmin(self.live, self.ha).register(self.processors)

    def _make_slave(self) -> None:
        self.turn.forbid(no_messages())
        self.slave = Slave(self.config, self.store, self.topics, self.groups, self.offsets, clock=self.clock)

    def _replicated(self, queues: Iterable[TopicQueue]) -> None:
        queues = list(queues)
        self.slave.arrived(queues)
        self.hold.arrived(queues)

    def _start_services(self) -> None:
        config = self.config
        clock = self.clock
        self.hold.start()
        self.stats.start()
        self._stops.callback(self.stats.stop)
        if self.is_slave:
            self.slave.start()
            self._stops.push_async_callback(self.slave.stop)
        else:
            self._master.start(self._stops)
        expiry = OffsetExpiry(
            self.offsets,
            lambda topic: self.topics.get(topic) is not None or topic in self.store.queues(),
            lambda group: self.clients.consumers.get(group) is not None,
            clock=clock,
        )
        for periodic in (
            Periodic("expire offsets", OFFSET_LOOK_SECONDS, expiry.look, clock=clock),
            Periodic("expire clients", CLIENT_SCAN_SECONDS, self.clients.expire, clock=clock),
            Periodic("expire locks", CLIENT_SCAN_SECONDS, self.locks.expire, clock=clock),
            Periodic(
                "write consumer offsets",
                config.flush_consumer_offset_interval / 1000,
                self.offsets.save_in_background,
                clock=clock,
            ),
            Periodic("write filters", FILTER_SAVE_SECONDS, self.filters.save_in_background, clock=clock),
            Periodic("write tables", TABLE_RETRY_SECONDS, self._save_tables, clock=clock),
        ):
            periodic.start()
            self._stops.push_async_callback(periodic.stop)

    async def _start_registration(self) -> None:
        config = self.config
        if not config.namesrv_addr:
            return
        client = self._registrar = RemotingClient(clock=self.clock)
        self._stops.push_async_callback(client.close)
        registration = self._registration = BrokerRegistration(
            self.live,
            self.topics,
            client,
            address=self.address,
            ha_address=format_address(config.broker_ip2, self.ha.port),
            clock=self.clock,
        )
        if self.is_slave:
            registration.on_answer = self.slave.master.registered
        self._stops.push_async_callback(registration.stop)
        await registration.start()

    def _when_registered(self, then: Callable[[], None]) -> None:
        if self._registration is None:
            then()
        else:
            self._registration.when_known(then)

    # --- stopping -------------------------------------------------------------------------------
    async def _finish_requests(self) -> None:
        """Refuse new sends, answer those under way and the pulls that wait."""
        self.schedule.halt()
        self.turn.stop()
        self.turn.end()
        self.hold.stop()
        await self.turn.finished()

    def _save_tables(self) -> None:
        self.topics.save()
        self.groups.save()
        self._lock_file.save()


def _plain(ip: str) -> str:
    """An address without the brackets of IPv6."""
    return ip.removeprefix("[").removesuffix("]")
