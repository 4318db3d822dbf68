"""The connection of a slave to its master's HA port (``HAConnection``)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, Protocol, cast

from cometmq.broker.limits import TRANSFER_HIGH_WATER_BYTES, TRANSFER_ROUND_BYTES
from cometmq.broker.replication.frames import (
    COPY_TABLES,
    ReplicationError,
    ReportReader,
    member_transfer_head,
    transfer_head,
)
from cometmq.broker.replication.member_sign_in import Follower, SignInRefusedError
from cometmq.broker.replication.refusal_log import RefusalLog
from cometmq.clock import Clock
from cometmq.remoting.connections.peer import peer_of
from cometmq.remoting.permissions import Caller
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

NOT_BEGUN: Final = -1


class Owner(Protocol):
    """The service that has the connections (:class:`~cometmq.broker.replication.ha_service.HAService`)."""

    @property
    def store(self) -> MessageStore:
        """Return the store whose log is sent."""

    @property
    def clock(self) -> Clock:
        """Return the clock."""

    @property
    def batch_bytes(self) -> int:
        """Return the maximum size of a transfer in bytes."""

    @property
    def closings(self) -> RefusalLog:
        """Return the log of slaves whose connections are closed."""

    def opened(self, slave: HAConnection) -> None:
        """Register a connection after its first bytes have arrived."""

    def admit(self, slave: HAConnection, signed_in: bytes | None) -> None:
        """Check a slave before its first report.

        :param signed_in: the frame with which it has signed in.
        :raises ReplicationError: it must not copy the log.
        """

    def began(self, slave: HAConnection) -> None:
        """Handle a slave's first report.

        :raises ReplicationError: it must not copy the log any more.
        """

    def reported(self, slave: HAConnection) -> None:
        """Handle a later report.

        :raises ReplicationError: it must not copy the log any more.
        """

    def tables_copied(self, slave: HAConnection) -> None:
        """Take note that a follower has copied the tables after it was asked to."""

    def sendable_end(self, slave: HAConnection) -> int:
        """Return the log offset up to which the slave may be sent the log."""

    def confirmed_end(self) -> int:
        """Return the log offset up to which all members in sync have the log."""

    def is_in_sync(self, slave: HAConnection) -> bool:
        """Return whether the slave has every message that was answered as stored."""

    def lost(self, slave: HAConnection) -> None:
        """Remove a connection that has ended."""

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call ``work`` once, in the next round of the loop."""


class HAConnection(asyncio.Protocol):
    """The connection of a slave: receives its reports and sends it new bytes of the log (``HAConnection``)."""

    def __init__(self, service: Owner) -> None:
        self._service = service
        self._reports = ReportReader()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._goes_on = False
        self.is_admitted = False
        """True once it has signed in, or has sent its first report."""
        self.peer_ip = ""
        self.account: Caller | None = None
        """The slave's account, which the guard sets."""
        self.follower: Follower | None = None
        """The member of this broker's set that has signed in; ``None`` for other slaves."""
        self.address = ""
        """``host:port`` of the slave's side of the connection."""
        self.next_offset: int = NOT_BEGUN
        """Log offset of the next transfer; everything before it has been sent."""
        self.ack_offset: int = NOT_BEGUN
        """The end of the slave's log according to its last report."""
        self.told_confirmed = 0
        """The confirmed end that a follower was told last."""
        self.counted_end = NOT_BEGUN
        """The end of a follower's log that it has reported."""
        self.tables_asked: int | None = None
        """The number of the last change of tables when a follower was asked to copy them; ``None`` if it has."""
        self.tables_copied = NOT_BEGUN
        """The number of the last change of tables that a follower has copied."""
        self.sent_bytes = 0
        """Number of log bytes sent since the service's last sweep."""
        self.bytes_per_s = 0
        """Number of log bytes sent in the second before the last sweep."""
        self.opened_at = self.read_at = self.wrote_at = service.clock.monotonic()

    def __str__(self) -> str:
        return self.address if self.follower is None else f"{self.follower.member} at {self.address}"

    # --- asyncio.Protocol -----------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the slave, or refuse it if too many slaves are connected."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = transport = cast(asyncio.Transport, transport)
        self.peer_ip, _, _, self.address = peer_of(transport)
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
            if not self.is_admitted and (report is not None or self._reports.signed_in is not None):
                self.is_admitted = True
                self._service.admit(self, self._reports.signed_in)
            if report is not None:
                self._handle_report(report)
            if self._reports.tables_copied:
                self._reports.tables_copied = 0
                self._service.tables_copied(self)
        except SignInRefusedError:  # logged by the service; the answer with the reason is sent
            self.close()
        except ReplicationError as error:
            self._service.closings.closed(self.address, error)
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
        if not self.has_begun:
            first = self._reports.first
            assert first is not None
            self.next_offset = self._start_offset(first)
            _log.info("slave %s has the log up to %d; sending starts at %d", self, first, self.next_offset)
            self.ack_offset = first
            self._service.began(self)
            self.transfer()
        if self._reports.count > 1:
            if report > self.next_offset:
                raise ReplicationError(f"its report {report} is past the last byte sent, {self.next_offset}")
            self.ack_offset = report
            self._service.reported(self)
            self.transfer()

    def _start_offset(self, report: int) -> int:
        """Return the log offset of the first transfer to a slave whose log ends at ``report``."""
        store = self._service.store
        end = store.max_physical_offset
        if report == 0 and self.follower is None:
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
    def is_learner(self) -> bool:
        """Return whether this is a slave that follows without being a member of the broker's set."""
        return self.has_begun and self.follower is None

    @property
    def behind(self) -> int:
        """Return the number of log bytes that the slave has not acknowledged, or 0 before its first report."""
        return self._service.store.max_physical_offset - self.ack_offset if self.has_begun else 0

    @property
    def is_in_sync(self) -> bool:
        """Return whether the slave has every message that was answered as stored."""
        return self.has_begun and self._service.is_in_sync(self)

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return a value that changes whenever the slave gets closer to the end of the log."""
        return self.next_offset, self.ack_offset, self.unsent_bytes

    # --- transfers ------------------------------------------------------------------------------
    def transfer(self) -> None:
        """Send log bytes that the slave lacks, up to the limit for one round of the loop."""
        service = self._service
        store = service.store
        at, end = self.next_offset, service.sendable_end(self)
        if at >= end or at == NOT_BEGUN or self._paused or self._goes_on or self._transport is None:
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
            body = body[: end - at]
            parts += (self._head(at, len(body)), body)
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
            self._write(self._head(self.next_offset, 0))

    def ask_for_tables(self) -> None:
        """Ask a follower to copy the tables; it answers once it has."""
        self._write(self._head(self.next_offset, COPY_TABLES))

    def answer(self, frame: bytes) -> None:
        """Answer a sign-in."""
        self._write(frame)

    def _head(self, offset: int, size: int) -> bytes:
        if self.follower is None:
            return transfer_head(offset, size)
        self.told_confirmed = self._service.confirmed_end()
        return member_transfer_head(offset, size, self.told_confirmed)

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
