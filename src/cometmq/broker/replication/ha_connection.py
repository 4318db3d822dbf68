"""One slave's connection: its reports come in, new bytes of the log go out (``HAConnection``).

The slave's first report says where its log ends, and so where the transfers begin; a slave without a log (0)
begins with the master's last log file. Each later report acknowledges everything below it.

A slave that cannot go on from where it is, is told so by the end of its connection, and the log says why: its log
has bytes that this one has not (Apache waits until this log has grown over them, and the two differ from then on),
or its next byte is deleted here already (Apache waits for ever).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final, cast

from cometmq.broker.replication.frames import ReplicationError, ReportReader, transfer_head
from cometmq.limits import TRANSFER_HIGH_WATER_BYTES, TRANSFER_TURN_BYTES
from cometmq.message.hosts import format_address

if TYPE_CHECKING:
    from cometmq.broker.replication.ha_service import HAService

_log = logging.getLogger(__name__)
NOT_BEGUN: Final = -1


class HAConnection(asyncio.Protocol):
    """What one slave has, was sent, and is still to get."""

    def __init__(self, service: HAService) -> None:
        self._service = service
        self._reports = ReportReader()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._goes_on = False
        self.address = ""
        """``host:port`` of the slave's side of the connection."""
        self.next_offset: int = NOT_BEGUN
        """Where the next transfer begins; all before it is on its way or there."""
        self.ack_offset: int = NOT_BEGUN
        """Up to where the slave has the log, by its last report."""
        self.sent_bytes = 0
        """Bytes of the log sent since the last sweep of the service …"""
        self.bytes_per_s = 0
        """… and in the second before it."""
        self.read_at = self.wrote_at = service.clock.monotonic()

    # --- asyncio.Protocol -----------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the slave; refuse it when there are too many."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        self.address = format_address(str(peer[0]).removeprefix("::ffff:"), int(peer[1]))
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(TRANSFER_HIGH_WATER_BYTES)
        self._service.opened(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """The slave is gone."""
        self._service.lost(self)

    def data_received(self, data: bytes) -> None:
        """Take the slave's reports."""
        self.read_at = self._service.clock.monotonic()
        try:
            report = self._reports.feed(data)
            if report is not None:
                self._take(report)
        except ReplicationError as error:
            _log.error("closing the connection of slave %s: %s", self.address, error)
            self.abort()

    def pause_writing(self) -> None:
        """The slave does not keep up: send no more."""
        self._paused = True

    def resume_writing(self) -> None:
        """The slave has caught up with what was sent."""
        self._paused = False
        self.transfer()

    # --- reports --------------------------------------------------------------------------------
    def _take(self, report: int) -> None:
        began = self.has_begun
        if not began:
            self.next_offset = self._start(report)
            _log.info("slave %s has the log up to %d and gets it from %d on", self.address, report, self.next_offset)
        elif report > self.next_offset:
            raise ReplicationError(f"it reports {report}, and was sent the log up to {self.next_offset}")
        self.ack_offset = report
        self._service.reported(self, is_first=not began)
        self.transfer()

    def _start(self, report: int) -> int:
        """Where transfers to a slave begin whose log ends at ``report``."""
        store = self._service.store
        end = store.max_physical_offset
        if report == 0:
            return end - end % store.config.mapped_file_size_commit_log
        if report > end:
            raise ReplicationError(
                f"its log ends at {report}, and that of this master at {end}: what is behind that is the slave's alone",
                next_step="save what you need of it, then empty the slave's store, or let the slave be the master",
            )
        if report < store.min_physical_offset:
            raise ReplicationError(
                f"its log ends at {report}, and this master keeps no byte before {store.min_physical_offset}",
                next_step="empty the slave's store: it then begins with the last log file",
            )
        return report

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the system does not take now, since the slave does not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def has_begun(self) -> bool:
        """Whether the slave has reported."""
        return self.next_offset != NOT_BEGUN

    @property
    def behind(self) -> int:
        """Bytes of the log that the slave has not acknowledged; 0 before it reports."""
        return self._service.store.max_physical_offset - self.ack_offset if self.has_begun else 0

    @property
    def progress(self) -> tuple[int, int, int]:
        """What changes whenever the slave comes nearer to the end of the log."""
        return self.next_offset, self.ack_offset, self.unsent_bytes

    # --- transfers ------------------------------------------------------------------------------
    def transfer(self) -> None:
        """Send what the slave does not have, as much as one turn of the loop is for; the rest goes in the next."""
        service = self._service
        store = service.store
        at, end = self.next_offset, store.max_physical_offset
        if at in (end, NOT_BEGUN) or self._paused or self._goes_on or self._transport is None:
            return
        parts: list[bytes | memoryview] = []
        most = at + TRANSFER_TURN_BYTES
        while at < min(end, most):
            body = store.log_part(at, service.batch_bytes)
            if body is None:
                _log.error("closing the connection of slave %s: what comes next for it is deleted", self.address)
                self.abort()
                return
            parts += (transfer_head(at, len(body)), body)
            at += len(body)
        self.sent_bytes += at - self.next_offset
        self.next_offset = at
        self._write(b"".join(parts))
        if at < end:
            self._goes_on = True
            service.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self.transfer()

    def heartbeat(self) -> None:
        """Tell the slave that the master lives, unless it does not read what it was sent."""
        if self.has_begun and not self._paused:
            self._write(transfer_head(self.next_offset, 0))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            self.wrote_at = self._service.clock.monotonic()

    # --- the end --------------------------------------------------------------------------------
    def close(self) -> None:
        """Send what is queued, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
