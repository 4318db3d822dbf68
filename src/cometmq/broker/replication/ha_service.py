"""The master's side of replication (``HAService``, ``HAConnection``).

Theory of operation. A slave connects to the master's HA port and reports where its log ends; the master sends every
later byte of its log as it is stored (:mod:`cometmq.broker.replication.frames`). At the end of each turn, its records
are sent to every slave, on the same loop. A slave that is behind receives the missing bytes in pieces, turn by turn.
While nothing is stored, slaves receive a heartbeat every ``haSendHeartbeatInterval``; a slave that does not report for
``haHousekeepingInterval`` is disconnected.

The states of a connection: open (no report yet), behind, up to date, and paused while the slave does not read.

Invariants.

* A slave's log equals the master's, byte by byte, starting at the slave's first file. A slave that has no log begins
with the master's last file, or with its first file if the slave requests that
(:mod:`cometmq.broker.replication.ha_client`).
* ``ack_offset`` <= ``next_offset`` <= the end of the log. A report acknowledges everything below it. If the slave uses
SYNC_FLUSH, all of this is on the slave's disk.
* With SYNC_MASTER a send is answered as stored once every slave in sync has acknowledged it, and at least
``inSyncReplicas`` - 1 of them (:mod:`cometmq.broker.turn.in_sync_set`).
* Data that is not in the log is copied every ten seconds (:mod:`cometmq.broker.replication.slave_synchronize`). A file
with a log offset takes effect at the slave once the slave's log up to that offset is on disk.

Fault model. A connection may end anywhere, and either side may crash or lose the end of its log. The slave removes an
incomplete record and connects again. A slave that cannot continue is disconnected, with the reason in the log: its log
has bytes that the master's log lacks (Apache waits until the master's log has grown past them, and the two logs differ
from then on), or its next byte is already deleted on the master (Apache waits forever). No broker changes its role by
itself: a network failure never results in two masters with the same name.

If accounts are checked, a slave signs in before its first report, with a signed and time-stamped request that is valid
only once. Slaves with an address on the white list need not sign in. Apache's slaves cannot sign in.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, cast

from cometmq.auth.guard import AccessGuard, fields_of
from cometmq.auth.model import DeniedError
from cometmq.broker.config import BrokerConfig
from cometmq.broker.limits import (
    MAX_PORT,
    MAX_SIGN_IN_BYTES,
    MAX_SLAVES,
    SLAVE_STILL_SECONDS,
    SLAVES_CATCH_UP_SECONDS,
    TRANSFER_HIGH_WATER_BYTES,
    TRANSFER_ROUND_BYTES,
)
from cometmq.broker.replication.frames import REPORT_FIELD, SIGNS_IN, ReplicationError, ReportReader, transfer_head
from cometmq.broker.turn.group_transfer import GroupTransferService
from cometmq.broker.turn.in_sync_set import State
from cometmq.errors import reason_of
from cometmq.message.hosts import format_address, stored_ip, unmapped
from cometmq.periodic import Alarm
from cometmq.remoting.admin_bodies import HAConnectionRuntimeInfo, HARuntimeInfo
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.frame import JSON, Frame, FrameDecoder, FrameError
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.listener import Listener, close_all
from cometmq.remoting.permissions import Action, Caller, needs_cluster
from cometmq.remoting.processors import Request, Response, RpcRejectedError, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.remoting.tls.opening import OpeningConnections
from cometmq.remoting.tls.server import ServerTls
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

NOT_BEGUN: Final = -1
_UNSIGNED: Final = Frame(JSON, b'{"code":%d}' % RequestCode.GET_BROKER_RUNTIME_INFO, b"")
"""The request used to check the permissions of a slave that has not signed in."""
_SWEEP_SECONDS: Final = 1.0
_PAUSE_S: Final = 0.01


class HAConnection(asyncio.Protocol):
    """The connection of a slave: receives its reports and sends it new bytes of the log (``HAConnection``)."""

    def __init__(self, service: HAService) -> None:
        self._service = service
        self._reports = ReportReader()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._goes_on = False
        self.peer_ip = ""
        self.account: Caller | None = None
        """The slave's account, which the guard sets."""
        self.address = ""
        """``host:port`` of the slave's side of the connection."""
        self.next_offset: int = NOT_BEGUN
        """Log offset of the next transfer; everything before it has been sent."""
        self.ack_offset: int = NOT_BEGUN
        """The end of the slave's log according to its last report."""
        self.sent_bytes = 0
        """Number of log bytes sent since the service's last sweep."""
        self.bytes_per_s = 0
        """Number of log bytes sent in the second before the last sweep."""
        self.read_at = self.wrote_at = service.clock.monotonic()

    def __str__(self) -> str:
        return self.address

    # --- asyncio.Protocol -----------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the slave, or refuse it if too many slaves are connected."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        self.peer_ip = stored_ip(str(peer[0])) or str(peer[0])
        self.address = format_address(unmapped(str(peer[0])), int(peer[1]))
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(TRANSFER_HIGH_WATER_BYTES)
        self._service.opened(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Remove the slave after it has disconnected."""
        self._service.lost(self)

    def data_received(self, data: bytes) -> None:
        """Read the slave's reports."""
        self.read_at = self._service.clock.monotonic()
        try:
            report = self._reports.feed(data)
            if report is not None:
                self._handle_report(report)
        except ReplicationError as error:
            _log.error("closing the connection of slave %s: %s", self.address, error)
            self.abort()

    def pause_writing(self) -> None:
        """Stop sending because the slave is not reading."""
        self._paused = True

    def resume_writing(self) -> None:
        """Continue sending because the slave has read the queued bytes."""
        self._paused = False
        self.transfer()

    # --- reports --------------------------------------------------------------------------------
    def _handle_report(self, report: int) -> None:
        began = self.has_begun
        if not began:
            self._service.admit(self, self._reports.signed_in)
            self.next_offset = self._start_offset(report)
            _log.info("slave %s has the log up to %d; sending starts at %d", self.address, report, self.next_offset)
        elif report > self.next_offset:
            raise ReplicationError(f"its report {report} is past the last byte sent, {self.next_offset}")
        self.ack_offset = report
        self._service.reported(self, is_first=not began)
        self.transfer()

    def _start_offset(self, report: int) -> int:
        """Return the log offset of the first transfer to a slave whose log ends at ``report``."""
        store = self._service.store
        end = store.max_physical_offset
        if report == 0:
            return end - end % store.config.mapped_file_size_commit_log
        if report > end:
            raise ReplicationError(
                f"its log ends at {report}, but this master's log ends earlier, at {end}",
                next_step="save the messages that you need from the slave, then empty its store; or make it the master",
            )
        if report < store.min_physical_offset:
            raise ReplicationError(
                f"its log ends at {report}, but this master's log begins at {store.min_physical_offset}",
                next_step="empty the slave's store, so that it starts with the last log file",
            )
        return report

    @property
    def unsent_bytes(self) -> int:
        """Return the number of queued bytes that have not been sent yet because the slave is not reading."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def has_begun(self) -> bool:
        """Return whether the slave has sent a report."""
        return self.next_offset != NOT_BEGUN

    @property
    def behind(self) -> int:
        """Return the number of log bytes that the slave has not acknowledged, or 0 before its first report."""
        return self._service.store.max_physical_offset - self.ack_offset if self.has_begun else 0

    @property
    def is_in_sync(self) -> bool:
        """Return whether the slave has every message that was answered as stored."""
        return self._service.in_sync.state_of(self) is State.IN_SYNC

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return a value that changes whenever the slave gets closer to the end of the log."""
        return self.next_offset, self.ack_offset, self.unsent_bytes

    # --- transfers ------------------------------------------------------------------------------
    def transfer(self) -> None:
        """Send log bytes that the slave lacks, up to the limit for one round of the loop."""
        service = self._service
        store = service.store
        at, end = self.next_offset, store.max_physical_offset
        if at in (end, NOT_BEGUN) or self._paused or self._goes_on or self._transport is None:
            return
        parts: list[bytes | memoryview] = []
        most = at + TRANSFER_ROUND_BYTES
        while at < min(end, most):
            body = store.log_part(at, service.batch_bytes)
            if body is None:
                _log.error(
                    "closing the connection of slave %s: the part of the log that it needs next has been deleted",
                    self.address,
                )
                self.abort()
                return
            parts += (transfer_head(at, len(body)), body)
            at += len(body)
        self.sent_bytes += at - self.next_offset
        self.next_offset = at
        self._write(b"".join(parts))
        if at < end:
            self._goes_on = True
            service.call_soon(self._continue)

    def _continue(self) -> None:
        self._goes_on = False
        self.transfer()

    def heartbeat(self) -> None:
        """Send a heartbeat, unless the slave is not reading."""
        if self.has_begun and not self._paused:
            self._write(transfer_head(self.next_offset, 0))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            self.wrote_at = self._service.clock.monotonic()

    # --- the end --------------------------------------------------------------------------------
    def close(self) -> None:
        """Send the queued bytes, then close the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()


class HAService:
    """Accepts slaves, sends them the log, and disconnects silent slaves (``HAService``)."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        transfers: GroupTransferService,
        tls: ServerTls,
        guard: AccessGuard | None = None,
    ) -> None:
        """Create the service, which does not listen yet.

        :param guard: checks slaves, if accounts are checked.
        """
        self._guard = guard
        self.store: Final = store
        self.clock: Final = store.clock
        self.batch_bytes: Final = config.ha_transfer_batch_size
        self.slaves: dict[HAConnection, None] = {}
        """The slaves' connections in the order in which they were opened."""
        self._heartbeat_s = config.ha_send_heartbeat_interval / 1000
        self._housekeeping_s = config.ha_housekeeping_interval / 1000
        self._transfers = transfers
        self.in_sync: Final = transfers.in_sync
        self._listener = Listener(self._accepted, clock=store.clock)
        self._openings = OpeningConnections(
            lambda: HAConnection(self), tls, clock=store.clock, silence_s=self._housekeeping_s
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper = Alarm(self._sweep, clock=store.clock)

    @property
    def port(self) -> int:
        """Return the port for slaves."""
        return self._listener.port

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port``; port 0 selects a free port.

        :raises ReplicationError: the port is in use or not allowed.
        """
        self._loop = asyncio.get_running_loop()
        try:
            if port > MAX_PORT:
                raise OSError("the port is out of range")
            await self._listener.bind(host, port)
            self._listener.listen(MAX_SLAVES)
        except OSError as error:
            why = reason_of(error)
            raise ReplicationError(
                f"cannot listen on port {port} for slaves: {why}",
                next_step="stop the program that listens there, or choose another port with haListenPort",
            ) from error

    async def stop(self) -> None:
        """Accept no further slaves, send the remaining log to the connected ones, and close."""
        if not self._listener.is_open:
            return
        self._listener.close()
        await self._openings.stop()
        await self._catch_up()
        await close_all(self.slaves)

    async def _catch_up(self) -> None:
        """Wait while slaves get closer to the end of the log, for a limited time."""
        self.end_round()
        before: dict[HAConnection, tuple[int, int, int]] = {}
        still = 0
        for _ in range(int(SLAVES_CATCH_UP_SECONDS / _PAUSE_S)):
            behind = {slave: slave.progress for slave in self.slaves if slave.behind}
            still = still + 1 if behind == before else 0
            if not behind or still * _PAUSE_S >= SLAVE_STILL_SECONDS:
                break
            before = behind
            await asyncio.sleep(_PAUSE_S)
        for slave in self.slaves:
            if slave.behind:
                _log.warning(
                    "the master is stopping although slave %s lacks %d bytes of the log", slave.address, slave.behind
                )

    def cut_off(self) -> None:
        """Close every connection immediately and stop listening."""
        self._listener.close()
        self._openings.abort()
        for slave in list(self.slaves):
            slave.abort()

    def end_round(self) -> None:
        """Send the records of the turn to every slave."""
        for slave in self.slaves:
            slave.transfer()

    def _accepted(self, sock: socket.socket) -> None:
        """Accept a connection. At the maximum, close the oldest one without a report, or the new one if all have
        reported.
        """
        if len(self._openings) + len(self.slaves) >= MAX_SLAVES and not self._make_room():
            _log.warning("refusing a slave: %d slaves are already connected", len(self.slaves))
            sock.close()
        else:
            self._openings.accept(sock)

    def _make_room(self) -> bool:
        if len(self._openings):
            self._openings.abort_oldest()
            return True
        silent = next((slave for slave in self.slaves if not slave.has_begun), None)
        if silent is None:
            return False
        _log.warning("refusing slave %s: %d slaves are already connected", silent.address, len(self.slaves))
        del self.slaves[silent]
        silent.abort()
        return True

    # --- called by connections ------------------------------------------------------------------
    def opened(self, slave: HAConnection) -> None:
        """Register a connection after its first bytes have arrived."""
        self.slaves[slave] = None
        if not self._sweeper.is_set:
            self._transfers.marked(self.store.max_physical_offset)
            self._sweeper.after(_SWEEP_SECONDS)

    def admit(self, slave: HAConnection, signed_in: bytes | None) -> None:
        """Refuse a slave whose account does not belong to a server in the cluster.

        :param signed_in: the frame with which the slave has signed in.
        :raises ReplicationError: accounts are checked, and the slave's account may not change the cluster.
        """
        if self._guard is None:
            return
        try:
            frames = [_UNSIGNED] if signed_in is None else FrameDecoder(MAX_SIGN_IN_BYTES).feed(signed_in)
            if len(frames) != 1 or (signed_in is not None and REPORT_FIELD not in fields_of(frames[0])):
                raise FrameError("it signed in with the wrong kind of request")
            self._guard.admit_server(slave, RequestCode.GET_BROKER_RUNTIME_INFO, frames[0])
        except (DeniedError, RpcRejectedError, FrameError) as error:
            step = (
                "give the slave an account that may change the cluster (tools.yml, or "
                "innerClientAuthenticationCredentials), and namesrvAddr"
            )
            if signed_in is None:
                step += (
                    f"; a slave of Apache's cannot sign in: put {slave.peer_ip} on globalWhiteRemoteAddresses (ACL 1.0)"
                )
            raise ReplicationError(f"it may not copy the log: {error}", next_step=step) from error

    def runtime_info(self) -> dict[str, str]:
        """Return the runtime information key that tells CometMQ's slaves to sign in."""
        return {} if self._guard is None else {SIGNS_IN: "true"}

    def reported(self, slave: HAConnection, *, is_first: bool) -> None:
        """Handle a slave's report."""
        if is_first:
            for other in self.slaves:
                if other is not slave and other.peer_ip == slave.peer_ip:
                    self._transfers.doubt(other, other.next_offset)
        self._transfers.reported(slave, slave.ack_offset)

    def lost(self, slave: HAConnection) -> None:
        """Remove a connection that has ended."""
        if slave in self.slaves:
            del self.slaves[slave]
            if slave.has_begun:
                state = self.in_sync.state_of(slave)
                _log.info(
                    "slave %s disconnected; it has the log up to %d and was %s",
                    slave.address,
                    slave.ack_offset,
                    "not in sync" if state is None else state.value,
                )
                self._transfers.remove_slave(slave)
            if not self.slaves:
                self._sweeper.cancel()

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call ``work`` once, in the next round of the loop."""
        assert self._loop is not None
        self._loop.call_soon(work)

    # --- housekeeping ---------------------------------------------------------------------------
    def _sweep(self) -> None:
        now = self.clock.monotonic()
        self._transfers.marked(self.store.max_physical_offset)
        for slave in list(self.slaves):
            slave.bytes_per_s, slave.sent_bytes = slave.sent_bytes, 0
            if now - slave.read_at > self._housekeeping_s:
                _log.warning("closing the connection of slave %s: silent for %g s", slave.address, now - slave.read_at)
                slave.abort()
            elif now - slave.wrote_at >= self._heartbeat_s:
                slave.heartbeat()
        if self.slaves:
            self._sweeper.after(_SWEEP_SECONDS)


class HaStatusAdmin:
    """Handles requests for the slaves' progress (``DefaultHAService.getRuntimeInfo``)."""

    def __init__(self, ha: HAService) -> None:
        self._ha = ha

    @answers(RequestCode.GET_BROKER_HA_STATUS, permission=needs_cluster(Action.GET))
    def status(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return the state of every slave that has reported, for RocketMQ 5 and CometMQ tools."""
        slaves = [self._of(slave) for slave in self._ha.slaves if slave.has_begun]
        return Response(
            body=encode_body(
                HARuntimeInfo(
                    master=True,
                    master_commit_log_max_offset=self._ha.store.max_physical_offset,
                    in_sync_slave_nums=sum(slave.in_sync for slave in slaves),
                    ha_connection_info=slaves,
                )
            )
        )

    def _of(self, slave: HAConnection) -> HAConnectionRuntimeInfo:
        return HAConnectionRuntimeInfo(
            addr=slave.address,
            slave_ack_offset=slave.ack_offset,
            diff=slave.behind,
            in_sync=slave.is_in_sync,
            transferred_byte_in_second=slave.bytes_per_s,
            transfer_from_where=slave.next_offset,
        )
