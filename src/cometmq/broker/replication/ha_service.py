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
``inSyncReplicas`` - 1 of them (:mod:`cometmq.broker.turn.slaves_in_sync`).
* Data that is not in the log is copied every ten seconds (:mod:`cometmq.broker.replication.slave_synchronize`). A file
with a log offset takes effect at the slave once the slave's log up to that offset is on disk.

Fault model. A connection may end anywhere, and either side may crash or lose the end of its log. The slave removes an
incomplete record and connects again. A slave that cannot continue is disconnected, with the reason in the log: its log
has bytes that the master's log lacks (Apache waits until the master's log has grown past them, and the two logs differ
from then on), or its next byte is already deleted on the master (Apache waits forever). No broker changes its role by
itself: a network failure never results in two masters with the same name.

If accounts are checked, a slave signs in before its first report, with a signed and time-stamped request that is valid
only once. Slaves with an address on the white list need not sign in. Apache's slaves cannot sign in.

In a set, 16 places are for members that the document names, and other slaves share the rest. Connections without a
sign-in or a report have places of their own, in which the newest replaces the oldest, for ten seconds at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from cometmq.auth.guard import AccessGuard, fields_of
from cometmq.auth.model import DeniedError
from cometmq.broker.config import BrokerConfig
from cometmq.broker.failover.document import Member
from cometmq.broker.limits import (
    LAST_COPY_SECONDS,
    MAX_LEARNERS,
    MAX_PORT,
    MAX_SET_CONNECTIONS,
    MAX_SLAVES,
    SIGN_IN_SECONDS,
    SLAVE_STILL_SECONDS,
    SLAVES_CATCH_UP_SECONDS,
)
from cometmq.broker.replication.followers import Followers
from cometmq.broker.replication.frames import REPORT_FIELD, SIGNS_IN, ReplicationError
from cometmq.broker.replication.ha_connection import HAConnection
from cometmq.broker.replication.member_sign_in import (
    SIGN_IN_CODE,
    Follower,
    SignInRefusedError,
    accept_frame,
    check_member,
    refuse_frame,
    sign_in_request,
)
from cometmq.broker.replication.members import MasterSide
from cometmq.broker.replication.refusal_log import RefusalLog
from cometmq.broker.replication.slave_reports import Reports, SlaveReports
from cometmq.broker.tables.table_writer import OnWritten
from cometmq.broker.turn.group_transfer import GroupTransferService
from cometmq.broker.turn.slaves_in_sync import SlavesInSync
from cometmq.errors import reason_of
from cometmq.loop import resolver
from cometmq.periodic import Alarm
from cometmq.remoting.admin_bodies import HAConnectionRuntimeInfo, HARuntimeInfo
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.connections.accepted import Accepted
from cometmq.remoting.connections.listener import Listener, close_all
from cometmq.remoting.frame import JSON, Frame, FrameError
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, RpcRejectedError, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.remoting.tls.opening import OpeningConnections
from cometmq.remoting.tls.server import ServerTls
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

_UNSIGNED: Final = Frame(JSON, b'{"code":%d}' % RequestCode.GET_BROKER_RUNTIME_INFO, b"")
"""The request used to check the permissions of a slave that has not signed in."""
_TOO_MANY: Final = f"{MAX_LEARNERS} slaves that the set's document does not name are already connected"
_FEWER: Final = "stop those that do not belong to the set; with accounts, only its members and slaves can connect"
_SWEEP_SECONDS: Final = 1.0
_PAUSE_S: Final = 0.01


class HAService:
    """Accepts slaves, sends them the log, and disconnects silent slaves (``HAService``)."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        transfers: GroupTransferService | None,
        tls: ServerTls,
        guard: AccessGuard | None = None,
        members: MasterSide | None = None,
    ) -> None:
        """Create the service, which does not listen yet.

        :param transfers: the responses that wait for slaves; ``None`` in a set, where they wait for its members.
        :param guard: checks slaves, if accounts are checked.
        :param members: the member of a set that this process is.
        """
        self._guard = guard
        self._members = members
        self.store: Final = store
        self.clock: Final = store.clock
        self.batch_bytes: Final = config.ha_transfer_batch_size
        self.slaves: dict[HAConnection, None] = {}
        """The slaves' connections in the order in which they were opened."""
        self._heartbeat_s = config.ha_send_heartbeat_interval / 1000
        self._housekeeping_s = config.ha_housekeeping_interval / 1000
        self.followers: Final = None if members is None else Followers(members, store)
        """The members of this broker's set that follow it."""
        if self.followers is not None:
            self._reports: Reports = self.followers
        else:
            assert transfers is not None
            self._reports = SlaveReports(transfers, self.slaves, store)
        self._listener = Listener(self._accepted, clock=store.clock)
        self._sign_in_s = self._housekeeping_s if members is None else min(SIGN_IN_SECONDS, self._housekeeping_s)
        """Maximum time from the beginning of a connection to the sign-in or the first report."""
        self._openings = OpeningConnections(
            lambda _: HAConnection(self), tls, clock=store.clock, silence_s=self._sign_in_s
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refusals: dict[str, str] = {}
        """The reason for the last refusal of a member, by IP address."""
        self.closings: Final = RefusalLog(clock=store.clock)
        """Logs slaves whose connections are closed."""
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
        if self.followers is None:  # a set has already decided which bytes count
            await self._catch_up()
        else:
            self.followers.stop()
        await close_all(self.slaves)
        self.closings.stop()

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
        self.closings.stop()
        if self.followers is not None:
            self.followers.stop()
        for slave in list(self.slaves):
            slave.abort()

    def end_round(self) -> None:
        """Send the records of the turn to every slave."""
        for slave in self.slaves:
            slave.transfer()

    @property
    def _most_connections(self) -> int:
        return MAX_SLAVES if self._members is None else MAX_SET_CONNECTIONS

    def _accepted(self, sock: Accepted) -> None:
        """Accept a connection. At the maximum, close the oldest one without a report, or the new one if all have
        reported.
        """
        if len(self._openings) + len(self.slaves) >= self._most_connections and not self._make_room():
            self.closings.closed("(just connected)", f"{len(self.slaves)} slaves are already connected")
            sock.close()
        else:
            self._openings.accept(sock)

    def _make_room(self) -> bool:
        if len(self._openings):
            self._openings.abort_oldest()
            return True
        waiting = [slave for slave in self.slaves if not slave.has_begun]
        silent = min(waiting, key=lambda slave: slave.follower is not None, default=None)  # a member only if necessary
        if silent is None:
            return False
        self.closings.closed(silent.address, f"{len(self.slaves)} slaves are already connected")
        del self.slaves[silent]
        silent.abort()
        return True

    # --- called by connections ------------------------------------------------------------------
    def opened(self, slave: HAConnection) -> None:
        """Register a connection after its first bytes have arrived."""
        self.slaves[slave] = None
        if not self._sweeper.is_set:
            self._reports.marked()
            self._sweeper.after(_SWEEP_SECONDS)

    def admit(self, slave: HAConnection, signed_in: bytes | None) -> None:
        """Check a slave before its first report, and answer a member of this broker's set.

        :param signed_in: the frame with which the slave has signed in.
        :raises SignInRefusedError: the slave is a member that must not follow this broker; it is answered.
        :raises ReplicationError: accounts are checked, and the slave's account may not change the cluster; or there are
            too many slaves.
        """
        if signed_in is None:
            self._check_account(slave, _UNSIGNED, RequestCode.GET_BROKER_RUNTIME_INFO, is_signed=False)
        else:
            try:
                frame, request = sign_in_request(signed_in)
            except FrameError as error:
                raise ReplicationError(f"it may not copy the log: {error}") from error
            if request.code == SIGN_IN_CODE:
                self._admit_member(slave, frame, request)
                return
            self._check_account(slave, frame, RequestCode.GET_BROKER_RUNTIME_INFO, is_signed=True)
        if self.followers is not None and self._strangers() >= MAX_LEARNERS:
            raise ReplicationError(_TOO_MANY, next_step=_FEWER)

    def _strangers(self) -> int:
        """Return the number of slaves that the set's document does not name; they share a part of the places."""
        assert self._members is not None
        named = self._members.is_named
        return sum(
            slave.is_learner if slave.follower is None else not named(slave.follower.member.name)
            for slave in self.slaves
        )

    def _admit_member(self, slave: HAConnection, frame: Frame, request: RemotingCommand) -> None:
        try:
            try:
                self._check_account(slave, frame, SIGN_IN_CODE, is_signed=True)
            except ReplicationError as error:
                raise SignInRefusedError(error.message, next_step=error.next_step) from error
            slave.follower = self._check_member(request)
        except SignInRefusedError as error:
            self._log_refusal(slave, error)
            slave.answer(refuse_frame(request, error))
            raise
        assert self._members is not None
        self._refusals.pop(slave.peer_ip, None)
        slave.answer(accept_frame(self._members, request))

    def _log_refusal(self, slave: HAConnection, error: SignInRefusedError) -> None:
        """Log the reason for a refusal, but only once while it recurs, because members sign in again."""
        if self._refusals.get(slave.peer_ip) != str(error):
            if len(self._refusals) >= MAX_SLAVES:
                self._refusals.clear()
            self._refusals[slave.peer_ip] = str(error)
            _log.log(error.log_level, "refusing the member at %s: %s", slave.address, error)

    def _check_member(self, request: RemotingCommand) -> Follower:
        """Return the member that signs in; if a person must do something first, the status of this member says so.

        :raises SignInRefusedError: the member must not follow this broker, at least now.
        """
        try:
            follower = check_member(self._members, request, self.store.config.mapped_file_size_commit_log)
            assert self._members is not None
            if not self._members.is_named(follower.member.name) and self._strangers() >= MAX_LEARNERS:
                raise SignInRefusedError(_TOO_MANY, next_step=_FEWER)
            return follower
        except SignInRefusedError as error:
            if self._members is not None and not error.ends_by_itself:
                self._members.refused(request.ext_fields.get("member", ""), str(error))
            raise

    def _check_account(self, slave: HAConnection, frame: Frame, code: int, *, is_signed: bool) -> None:
        """:raises ReplicationError: the slave's account does not belong to a server in the cluster."""
        if self._guard is None:
            return
        try:
            if is_signed and REPORT_FIELD not in fields_of(frame):
                raise FrameError("it signed in with the wrong kind of request")
            self._guard.admit_server(slave, code, frame)
        except (DeniedError, RpcRejectedError, FrameError) as error:
            step = (
                "give the slave an account that may change the cluster (tools.yml, or "
                "innerClientAuthenticationCredentials), and namesrvAddr"
            )
            if not is_signed:
                step += (
                    f"; a slave of Apache's cannot sign in: put {slave.peer_ip} on globalWhiteRemoteAddresses (ACL 1.0)"
                )
            raise ReplicationError(f"it may not copy the log: {error}", next_step=step) from error

    def runtime_info(self) -> dict[str, str]:
        """Return the runtime information key that tells CometMQ's slaves to sign in."""
        return {} if self._guard is None else {SIGNS_IN: "true"}

    def began(self, slave: HAConnection) -> None:
        """Handle a slave's first report."""
        self._reports.began(slave)

    def reported(self, slave: HAConnection) -> None:
        """Handle a slave's later report."""
        self._reports.reported(slave)

    def tables_copied(self, slave: HAConnection) -> None:
        """Take note that a follower has copied the tables after it was asked to."""
        if self.followers is not None:
            self.followers.tables_copied(slave)

    def sendable_end(self, slave: HAConnection) -> int:
        """Return the log offset up to which a slave may be sent the log."""
        return self._reports.sendable_end(slave)

    def confirmed_end(self) -> int:
        """Return the log offset up to which all members in sync have the log; 0 if this broker belongs to no set."""
        return 0 if self._members is None else self._members.confirmed

    def is_in_sync(self, slave: HAConnection) -> bool:
        """Return whether a slave has every message that was answered as stored."""
        return self._reports.is_in_sync(slave)

    @property
    def in_sync(self) -> SlavesInSync:
        """Return the slaves for which answers wait, if this broker belongs to no set."""
        assert isinstance(self._reports, SlaveReports)
        return self._reports.in_sync

    @property
    def in_sync_losses(self) -> int:
        """Return the number of times that a connected slave has fallen out of sync."""
        return self._reports.losses

    def lost(self, slave: HAConnection) -> None:
        """Remove a connection that has ended."""
        if slave in self.slaves:
            del self.slaves[slave]
            if slave.has_begun:
                _log.info(
                    "slave %s disconnected; it has the log up to %d and was %s",
                    slave,
                    slave.ack_offset,
                    self._reports.state_of(slave),
                )
                self._reports.lost(slave)
            if not self.slaves:
                self._sweeper.cancel()

    # --- members of the set -----------------------------------------------------------------------
    def confirmed(self) -> None:
        """Send what has been confirmed to slaves that are not members, and tell members about it soon."""
        if self.followers is not None:
            for slave in self.slaves:
                if slave.is_learner:
                    slave.transfer()
            self.followers.tell_soon()

    def when_tables_copied(self, callback: OnWritten) -> None:
        """Call a function once the members that count have copied all changes of tables, or with the reason why not.

        It is called at once if this broker belongs to no set.
        """
        if self.followers is None:
            callback(None)
        else:
            self.followers.tables.wait(callback)

    async def copy_tables(self, member: Member) -> bool:
        """Ask a follower to copy the tables once more; return whether it has done so within 0.4 seconds."""
        if self.followers is None or self.followers.connection_of(member) is None:
            return False
        copied: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.followers.tables.wait(resolver(copied), only=member, limit_s=LAST_COPY_SECONDS)
        return await copied is None

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call ``work`` once, in the next round of the loop."""
        assert self._loop is not None
        self._loop.call_soon(work)

    # --- housekeeping ---------------------------------------------------------------------------
    def _sweep(self) -> None:
        now = self.clock.monotonic()
        self._reports.marked()
        for slave in list(self.slaves):
            slave.bytes_per_s, slave.sent_bytes = slave.sent_bytes, 0
            is_watched = slave.follower is not None and slave.has_begun  # by its heartbeats
            if not slave.is_admitted and now - slave.opened_at > self._sign_in_s:
                _log.warning("closing the connection of %s: it has not signed in for %g s", slave, self._sign_in_s)
                slave.abort()
            elif not is_watched and now - slave.read_at > self._housekeeping_s:
                _log.warning("closing the connection of slave %s: silent for %g s", slave, now - slave.read_at)
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
            learner=None if self._ha.followers is None else slave.is_learner,
        )
