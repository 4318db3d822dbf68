"""A broker with its parts, and the order in which they start and stop (``BrokerController``).

To start, a broker opens the store and the tables, binds the port, builds all parts, listens, starts the background
services and registers with the nameservers. To stop, it unregisters, refuses sends, answers the waiting pulls, ends
connections, writes the tables and closes the store.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Awaitable, Callable
from pathlib import Path

from cometmq import __version__
from cometmq.broker.admin.broker import BrokerAdmin
from cometmq.broker.admin.failover import FailoverAdmin
from cometmq.broker.advertised_check import AdvertisedCheck
from cometmq.broker.archived.archived_messages import ArchivedMessages
from cometmq.broker.config import SLAVE, BrokerConfig, LiveConfig, ip_of_clients, with_host
from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.schedule_message import ScheduleMessageService
from cometmq.broker.delay.timer_message import TimerMessageService
from cometmq.broker.handlers import account_handlers, common_handlers
from cometmq.broker.hooks.message_hooks import BrokerHooks, load_hooks
from cometmq.broker.lite.service import LiteService
from cometmq.broker.master_parts import MasterParts
from cometmq.broker.membership import Membership, build_slave, open_replication, open_store
from cometmq.broker.metrics.monitor import BrokerMonitor, MonitoredParts
from cometmq.broker.periodic_work import periodic_work
from cometmq.broker.pop.service import PopService
from cometmq.broker.port_security import BrokerAccess
from cometmq.broker.ports import ClientPorts
from cometmq.broker.pull.consumer_filters import ConsumerFilterManager
from cometmq.broker.pull.filters import PullFilters
from cometmq.broker.pull.pull_message import PullMessageProcessor
from cometmq.broker.pull.pull_request_hold import PullRequestHoldService
from cometmq.broker.registration import WARN_S, BrokerRegistration, warn_of_no_nameserver
from cometmq.broker.replication.ha_service import HAService
from cometmq.broker.replication.slave import Slave, message_refusal
from cometmq.broker.send.plain_batches import PlainBatches
from cometmq.broker.send.producer_sequence_log import ProducerSequenceLog
from cometmq.broker.send.send_back import SendBackProcessor
from cometmq.broker.send.send_message import SendMessageProcessor
from cometmq.broker.send.sequenced_sends import SequencedSends
from cometmq.broker.slices import do_in_slices
from cometmq.broker.statistics.stats import BrokerStats
from cometmq.broker.statistics.traffic import Traffic
from cometmq.broker.stops import Stops
from cometmq.broker.tables.broker_tables import BrokerTables
from cometmq.broker.tables.clients import ClientRegistry
from cometmq.broker.tables.deletions import Deletions
from cometmq.broker.transaction.transactions import TransactionalMessageService
from cometmq.broker.turn.answers import SendAnswers
from cometmq.broker.turn.confirm_service import ConfirmService
from cometmq.broker.turn.failed_messages import FailedMessages
from cometmq.broker.turn.inner_message import Detour
from cometmq.broker.turn.plain_sends import PlainSends
from cometmq.broker.turn.store_turn import StoreTurn
from cometmq.broker.turn.targets import SendTargets
from cometmq.broker.turn.waiters import SendWaiters
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.core import CORE, NEXT_STEP, PATH
from cometmq.log_level import LogLevel
from cometmq.message.hosts import encode_host, format_address, parse_address
from cometmq.message.ports import HA_PORT_DISTANCE
from cometmq.periodic import Periodic
from cometmq.quantity import quantity
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.processors import ProcessorTable
from cometmq.remoting.rpc_latency import RpcLatency
from cometmq.store.disk import Disk
from cometmq.store.message_store import MessageStore
from cometmq.threads import look_up

_log = logging.getLogger(__name__)


class Broker:
    """A broker in this process.

    The test kit and tests use its parts: ``live``, ``topics``, ``groups``, ``offsets``, ``filters``, ``clients``,
    ``locks``, ``processors``, ``server`` and ``stats`` exist from the beginning, the others once ``start`` is called; a
    master has ``transactions`` and ``timer``, a slave has ``slave``.

    :param hooks: hooks to call before those in the configuration (``hookNames``).
    :param disk: writes the files of the store; tests replace it to simulate failures.
    :raises TlsError: a TLS file cannot be used.
    """

    store: MessageStore
    turn: StoreTurn
    ha: HAService
    confirms: ConfirmService
    schedule: ScheduleMessageService
    producers: ProducerSequenceLog
    hold: PullRequestHoldService
    archived: ArchivedMessages | None
    registration: BrokerRegistration
    advertised_check: AdvertisedCheck
    transactions: TransactionalMessageService
    timer: TimerMessageService
    pops: PopService
    lite: LiteService
    slave: Slave
    _master: MasterParts
    _context: BrokerContext

    def __init__(
        self,
        config: BrokerConfig,
        *,
        hooks: BrokerHooks | None = None,
        clock: Clock = SYSTEM_CLOCK,
        disk: Disk | None = None,
        begin_anew: bool = False,
        member: Membership | None = None,
    ) -> None:
        """Create a broker, which :meth:`start` then starts.

        :param begin_anew: start even if the store's log is missing although its queues have messages.
        :param member: the member of a set whose present life this broker is; ``None`` without failover.
        """
        self._member = member
        self._begin_anew = begin_anew
        self._hooks = (hooks or BrokerHooks()) + load_hooks(config)
        self.live = LiveConfig(with_host(config))
        self.clock = clock
        self._disk = disk
        self.plain_sends: PlainSends | None = None
        """The sends in the compiled core; ``None`` on a slave and without a core."""
        root = Path(config.store_path_root_dir)
        self.clients = ClientRegistry(clock=clock, do=do_in_slices)
        tables = self._tables = BrokerTables(self.live, root, self.clients.consumers, clock=clock)
        self.topics, self.groups, self.offsets, self.locks = tables.topics, tables.groups, tables.offsets, tables.locks
        self.filters = ConsumerFilterManager(self.live, root / "config" / "consumerFilter.json", clock=clock)
        self.processors = ProcessorTable()
        traffic = Traffic() if config.has_metrics else None
        self.stats = BrokerStats(config.broker_cluster_name, traffic, clock=clock, do=do_in_slices)
        self._latency = RpcLatency(clock) if config.has_metrics else None
        self.monitor: BrokerMonitor | None = None
        access = self._access = BrokerAccess(self.config, lambda name: self.topics.get(name) is not None, clock=clock)
        self.access, self.audit, self.limiter = access.accounts, access.audit, access.limiter
        self._ports = ClientPorts(self.live, self.processors, access, self._hooks, self._latency, clock=clock)
        self.server = self._ports.main
        self._registrar = RemotingClient(clock=clock, security=access.own)
        self._stops = Stops(clock)
        self._leaves = True

    @property
    def config(self) -> BrokerConfig:
        """Return the current configuration."""
        return self.live.current

    @property
    def is_slave(self) -> bool:
        """Return whether this broker is a slave."""
        return self.config.broker_role == SLAVE

    @property
    def address(self) -> str:
        """Return the broker's ``host:port`` for clients that use no listener."""
        return self._ports.address

    @property
    def addresses(self) -> dict[str, str]:
        """Return the broker's ``host:port`` for clients, by the nameserver listener that the clients use."""
        return self._ports.addresses

    async def start(self) -> None:
        """Open the store, listen and register; after this the broker serves clients.

        :raises ConfigError: the name of the address for clients cannot be resolved.
        :raises StoreError: the store cannot be opened.
        :raises OSError: the port is in use or not allowed.
        """
        began = self.clock.monotonic()
        try:
            await self.open()
            await self.listen_for_slaves()
            await self.serve()
            await self.register()
        except BaseException:
            await self.stop()
            raise
        _log.info(
            "broker %s serves clients at %s and slaves at port %d; started in %.2f s",
            *(self.config.broker_name, self.address, self.ha.port, self.clock.monotonic() - began),
        )

    async def open(self) -> None:
        """Open the store, bind the port and build all parts; nobody can connect yet. It raises what :meth:`start` does.

        After an error, or in the end, :meth:`stop` must be called.
        """
        config = self.config
        _log.info(
            "broker %s of cluster %s is starting: %s with id %d, CometMQ %s, Python %s, code for plain sends: %s, "
            "store %s",
            *(config.broker_name, config.broker_cluster_name, config.broker_role, config.broker_id),
            *(__version__, platform.python_version(), PATH, config.store_path_root_dir),
        )
        if CORE is None:
            _log.info("to use the compiled core: %s", NEXT_STEP)
        ip = await look_up(ip_of_clients, config)
        await self._open_store()
        self._access.start(self._stops)
        await self._ports.bind(self._stops)
        self._context = self._build(encode_host(ip, parse_address(self.address)[1]))

    async def listen_for_slaves(self) -> None:
        """Accept slaves.

        :raises ReplicationError: the port is in use or not allowed.
        """
        config = self.config
        self._stops.add("slaves", self.ha.stop)
        port = config.ha_listen_port or (config.listen_port and config.listen_port + HA_PORT_DISTANCE)
        await self.ha.start(config.bind_address, port)

    async def serve(self) -> None:
        """Serve clients, and start all background services."""
        await self._listen()
        self._start_services(self._context)
        if self.monitor is not None:
            await self.monitor.start(listens=self._member is None)
            self._stops.add("metrics", self.monitor.stop)

    async def register(self) -> None:
        """Register with the nameservers, so that clients find this broker."""
        if self.config.namesrv_addr:
            self._stops.add("connections to nameservers", self._registrar.close)
            self._stops.add("leaving the nameservers", lambda: self.registration.stop(leaves=self._leaves))
            await self.registration.start(format_address(self.config.broker_ip2, self.ha.port))
            self.advertised_check.start()
            self._stops.add("check advertised addresses", self.advertised_check.stop)
        else:
            warn_of_no_nameserver()
        if self.monitor is not None and self._member is None:
            self.monitor.not_ready = ""

    def on_stop(self, name: str, work: Callable[[], Awaitable[object] | None]) -> None:
        """Call ``work`` first when the broker stops."""
        self._stops.add(name, work)

    async def stop(self, *, leaves: bool = True) -> None:
        """Unregister, answer the pending requests and close everything; do nothing before ``start``.

        :param leaves: False to remain registered, because this process registers again in another role.
        """
        self._leaves = leaves
        if not self._stops:
            return
        began = self.clock.monotonic()
        slow = await self._stops.run()
        took = self.clock.monotonic() - began
        _log.info("broker %s stopped in %.2f s%s", self.config.broker_name, took, f": {slow}" if slow else "")

    async def cut_off(self) -> None:
        """Close every connection immediately and without responses, as if the process had been killed; ``stop`` must
        still be called.
        """
        self._ports.cut_off()
        self.ha.cut_off()
        if self.is_slave:
            await self.slave.cut_off()
        await self._registrar.close()

    # --- before the parts -----------------------------------------------------------------------
    async def _open_store(self) -> None:
        began = self.clock.monotonic()
        self.store = await open_store(
            self.config,
            self._member,
            clock=self.clock,
            disk=self._disk,
            is_slave=self.is_slave,
            begin_anew=self._begin_anew,
        )
        self._stops.add("store", self.store.close)
        _log.info(
            "opened the store in %.2f s: %s, log from %d to %d",
            self.clock.monotonic() - began,
            quantity(len(self.store.queues()), "topic"),
            self.store.min_physical_offset,
            self.store.max_physical_offset,
        )
        level = LogLevel()
        level.set(self.config.log_level)
        self.live.on_change += (self.store.reconfigure, lambda config: level.set(config.log_level))
        for finding in (*self._tables.load(self.store, is_slave=self.is_slave), *self.filters.load()):
            _log.warning("%s", finding)
        self._stops.add("tables", self._tables.save_last)
        self._stops.add("filters", self.filters.save_last)
        self.store.start()

    # --- the parts ------------------------------------------------------------------------------
    def _build(self, host: bytes) -> BrokerContext:
        """Create all parts that handle requests or work in the background.

        :param host: see :attr:`BrokerContext.host`.
        """
        context = self._build_context(host)
        self.schedule = ScheduleMessageService(context)
        self.producers = ProducerSequenceLog(self.store)
        self.advertised_check = AdvertisedCheck(
            self.config, self.addresses, self.stats.boot_ms, self._access.own, clock=self.clock
        )
        sequenced = SequencedSends(context, self.producers)
        batches = None if CORE is None else PlainBatches(CORE, context, sequenced)
        detours: list[Detour] = []
        of_master: list[object] = []
        filters = PullFilters(context, self.filters)
        if self.is_slave:
            self.slave = build_slave(context, self._access, self._member)
        else:
            master = self._build_master(context, filters)
            detours, of_master = master.detours(self.schedule), master.handlers(self.ha)
            self._tables.take_as_own()
        self.registration = self._build_registration()
        pulls = PullMessageProcessor(context, filters)
        self.hold = pulls.hold
        member = self._member
        failover = () if member is None else (FailoverAdmin(context, member.operated),)
        of_role = (self.slave,) if self.is_slave else (self.transactions, self.timer, self.ha)
        for part in (
            SendMessageProcessor(context, sequenced, detours, batches),
            sequenced,
            SendBackProcessor(context, self.schedule),
            pulls,
            self.schedule,
            BrokerAdmin(context, self.schedule, (*of_role, *failover), None if member is None else member.keys),
            *common_handlers(context, self.filters, self.registration, self._tables.write_deletions),
            *failover,
            *of_master,
        ):
            self.processors.add(part)
        for part in account_handlers(context, self.access, None if member is None else member.sides):
            self.processors.add(part)
        if self.is_slave:
            self.processors.add(self.slave, replaces=True)
        if member is not None:
            member.join(self.processors, is_slave=self.is_slave)
        self._build_monitor(context)
        return context

    def _build_registration(self) -> BrokerRegistration:
        return BrokerRegistration(
            self.live,
            self.topics,
            self._registrar,
            self.slave.master.registered if self.is_slave else None,
            addresses=self.addresses,
            member=None if self._member is None else self._member.sides,
            clock=self.clock,
        )

    def _build_monitor(self, context: BrokerContext) -> None:
        if self.stats.traffic is not None and self._latency is not None:
            parts = MonitoredParts(
                self.stats.traffic,
                self._latency,
                self._ports.servers,
                self.hold,
                self.ha,
                self.advertised_check,
                self._access.samples,
                None if self.is_slave else self.transactions.open,
                None if self.is_slave else self.timer,
                None if self.is_slave else self.pops.log,
                None if self._member is None else self._member.operated,
            )
            self.monitor = BrokerMonitor(context, parts)

    def _build_context(self, host: bytes) -> BrokerContext:
        config, store, clock = self.config, self.store, self.clock
        answers = SendAnswers(host, region=config.region_id, trace_on=config.trace_on, latency=self._latency)
        tables = self._tables.written_by_rounds(self.server.schedule_round)
        targets = SendTargets(self.live, self.topics, self.groups, store, tables)
        deletions = Deletions(self._tables, store, self.stats)
        deletions.on_topic.append(targets.forget)
        self.archived = ArchivedMessages.configured(config, store, self._tables, deletions)
        self.ha, transfers = open_replication(config, store, self._access, self._member)
        if isinstance(transfers, ConfirmService):
            self.confirms = transfers
        tables.when_others_have = self.ha.when_tables_copied
        waiters = SendWaiters(store, transfers, answers, timeout_s=config.sync_flush_timeout / 1000)
        forbidden = message_refusal() if self.is_slave else None
        self.turn = StoreTurn(targets, waiters, self.stats, self.server.schedule_round, forbidden)
        return BrokerContext(
            live=self.live,
            clock=clock,
            store=store,
            stats=self.stats,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            tables=tables,
            deletions=deletions,
            clients=self.clients,
            locks=self.locks,
            turn=self.turn,
            targets=targets,
            failed=FailedMessages(self.topics, self.groups),
            answers=answers,
            schedule_round=self.server.schedule_round,
            at_end_of_round=self.server.at_end_of_round,
            limiter=self.limiter,
            archived=self.archived,
            address=self.address,
            host=host,
        )

    def _build_master(self, context: BrokerContext, filters: PullFilters) -> MasterParts:
        master = self._master = MasterParts(context, filters, self._access, self._registrar)
        self.transactions, self.timer, self.pops = master.transactions, master.timer, master.pops
        self.plain_sends, self.lite = master.plain_sends, master.lite
        self._stops.add("popped messages", self.pops.save)
        self._stops.add("lite topics", master.lite.save)
        self.pops.modes.on_due = self._tables.add(self.pops.modes.writer)
        return master

    # --- listening ------------------------------------------------------------------------------
    async def _listen(self) -> None:
        # First the tables: requests that waited for them may store messages.
        ends = () if self.is_slave else self._master.ends_of_round
        of_member = () if self._member is None else (self._member.sides.round_ended,)
        after = of_member if self.is_slave else (*of_member, self.timer.end_round)
        end_of_round = (*ends, self._tables.end_round, self.turn.end, self.ha.end_round, *after)
        self._stops.add("delay levels", self.schedule.stop)
        self._stops.add("connections", self._ports.stop)
        self._stops.add("requests under way", self._finish_requests)
        self._stops.add("quotas", self.limiter.stop)
        await self._ports.listen(end_of_round, None if self.plain_sends is None else self.plain_sends.taker)

    # --- services -------------------------------------------------------------------------------
    def _start_services(self, context: BrokerContext) -> None:
        config = self.config
        self.hold.start()
        if self.archived is not None:
            self.archived.start(self._stops)
        self.stats.start()
        self._stops.add("statistics", self.stats.stop)
        repeated = periodic_work(context, self._tables, self.filters, self._access.topic_owners)
        if not config.namesrv_addr:
            repeated.append(("warn", WARN_S, warn_of_no_nameserver))
        if self.is_slave:
            self.slave.start()
            self._stops.add("master of this slave", self.slave.stop)
        else:
            self._master.start(self.producers, self.schedule, self._stops)
            repeated += self._master.periodic_work(self.producers, self.schedule)
        for name, seconds, work in repeated:
            periodic = Periodic(name, seconds, work, clock=self.clock)
            periodic.start()
            self._stops.add(name, periodic.stop)

    # --- stopping -------------------------------------------------------------------------------
    async def _finish_requests(self) -> None:
        """Refuse new sends, and answer the pending sends and the waiting pulls."""
        self._ports.halt()
        self.schedule.halt()
        if not self.is_slave:
            self._master.halt()
        self.turn.stop()
        self.turn.end()
        self.hold.stop()
        await self._tables.finish()
        await self.turn.finished()
