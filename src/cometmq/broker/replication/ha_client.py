"""The slave's side of replication: connects to the master's HA port and appends what comes (``HAClient``).

A connection begins with a report of where the log here ends; each transfer that made it longer is reported back, and
after ``haSendHeartbeatInterval`` without a report one is sent to show that the slave lives. Whatever goes wrong ends
the connection, and a new one is tried five seconds later: the log here is then still a beginning of the master's.

With SYNC_FLUSH what is reported is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast

from cometmq.broker.config import BrokerConfig
from cometmq.broker.replication.frames import ReplicationError, Transfer, TransferReader, encode_report
from cometmq.broker.replication.master_address import MasterAddress
from cometmq.broker.replication.master_log import PARTED_NEXT_STEP, find_common_ground
from cometmq.clock import Clock, TimerHandle
from cometmq.errors import CometMQError, reason_of
from cometmq.limits import REPLICATION_CONNECT_SECONDS, REPLICATION_RETRY_SECONDS
from cometmq.message.hosts import parse_address
from cometmq.remoting.bodies import BodyError
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.deadline import within
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)


class HAClient:
    """Follows one master until it is stopped."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, master: MasterAddress, client: RemotingClient, *, clock: Clock
    ) -> None:
        self._store = store
        self._master = master
        self._client = client
        self._clock = clock
        self._has_nameservers = bool(config.namesrv_addr)
        self._heartbeat_s = config.ha_send_heartbeat_interval / 1000
        self._housekeeping_s = config.ha_housekeeping_interval / 1000
        self._task: asyncio.Task[None] | None = None
        self._connection: _Connection | None = None
        self._compare_at: int | None = None
        """Where what the log here has already comes once more, to be compared; ``None`` once it is."""
        self.is_following = False
        """Whether there is a connection, and the log there goes on where the one here ends."""
        self.read_at_ms = 0
        """When something last came from the master; 0 for never."""
        self.trouble: str | None = None
        """Why the master is not followed now; ``None`` while it is."""

    def start(self) -> None:
        """Begin to follow, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="follow the master")

    async def stop(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def cut_off(self) -> None:
        """End the connection at once and make no other; ``stop`` is still due."""
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.abort()

    async def _run(self) -> None:
        while True:
            address = self._master.ha
            if address is None:  # the nameservers may not have been asked yet
                await self._pause()
                address = self._master.ha
            try:
                if address is None:
                    raise ReplicationError("no nameserver knows a master of this broker name")
                await self._follow(address)
            except (CometMQError, BodyError, OSError, TimeoutError, ValueError) as error:
                self._failed(address, error)
            except Exception as error:
                _log.exception("following the master failed")
                self._failed(address, error)
            await self._pause()

    async def _pause(self) -> None:
        """Wait before the next attempt, unless the master has another address meanwhile."""
        retry = self._clock.call_later(REPLICATION_RETRY_SECONDS, self._master.changed.set)
        await self._master.changed.wait()
        retry.cancel()
        self._master.changed.clear()

    def _failed(self, address: str | None, error: Exception) -> None:
        """Say it once, however often it is tried again."""
        trouble = f"{reason_of(error) if isinstance(error, OSError) else error}"
        if trouble != self.trouble:
            self.trouble = trouble
            _log.error("master %s is not followed: %s; it is tried again", address or "", trouble)

    async def _follow(self, address: str) -> None:
        """Follow the master until the connection ends.

        :raises ReplicationError: the master hung up, was silent, or sent what cannot be.
        :raises StoreError: the store did not take what came.
        :raises OSError: no connection.
        """
        host, port = parse_address(address)
        if self._master.remoting is None and self._has_nameservers:
            raise ReplicationError("no nameserver has told where it answers requests, so that its log can be compared")
        await self._ready_to_report()
        connection = self._connection = _Connection(self)
        opening = asyncio.get_running_loop().create_connection(lambda: connection, host, port)
        try:
            await within(self._clock, REPLICATION_CONNECT_SECONDS, opening)
            if self._master.remoting is not None:
                await find_common_ground(self._store, self._client, self._master.remoting)
            connection.begin()
            self.is_following = True
            raise await connection.ended
        finally:
            self.is_following = False
            connection.abort()
            self._connection = None

    async def _ready_to_report(self) -> None:
        """Take back a record that is begun, which may go on otherwise when the master was down; with SYNC_FLUSH, let
        the disk have all that the first report speaks of."""
        self._store.replicated.drop_tail()
        if not self._store.sync_flush:
            return
        flushed: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self._store.when_flushed(self._store.max_physical_offset, flushed.set_result)
        error = await flushed
        if error is not None:
            raise error

    # --- called by the connection ---------------------------------------------------------------
    @property
    def clock(self) -> Clock:
        """What its timers go by."""
        return self._clock

    @property
    def heartbeat_s(self) -> float:
        """Seconds without a report after which one is sent."""
        return self._heartbeat_s

    @property
    def housekeeping_s(self) -> float:
        """Seconds that the master may be silent."""
        return self._housekeeping_s

    @property
    def end(self) -> int:
        """Where the log here ends."""
        return self._store.replicated.end

    def first_report(self) -> int:
        """Where the master is to begin: at the end of the log here, which was compared with the master's.

        One that cannot be asked begins with the last record here, so that what it sends shows whether it has that.
        """
        self._compare_at = None
        offset, size = self._store.last_record
        if self._master.remoting is not None or self._store.replicated.is_empty or not size:
            return self.end
        self._compare_at = max(offset, 1)  # to a report of 0 a master sends its last file
        return self._compare_at

    def _append(self, transfer: Transfer) -> None:
        log = self._store.replicated
        if transfer.body and transfer.offset == self._compare_at:
            transfer = self._compare(transfer)
            if not transfer.body:
                return
        if transfer.body or not log.is_empty:
            log.append(transfer.offset, transfer.body)

    def _compare(self, transfer: Transfer) -> Transfer:
        """What the log here does not have of a transfer.

        :raises ReplicationError: what it has already is not the same.
        """
        known = min(self.end - transfer.offset, len(transfer.body))
        here = self._store.log_part(transfer.offset, known)
        if here is None or bytes(here) != transfer.body[:known]:
            raise ReplicationError(
                f"the record at log offset {transfer.offset} is another one at the master: the logs have parted",
                next_step=PARTED_NEXT_STEP,
            )
        at = transfer.offset + known
        self._compare_at = at if at < self.end else None
        return Transfer(at, transfer.body[known:])

    def take(self, transfers: list[Transfer], connection: _Connection) -> None:
        """Append what came, and have it reported.

        :raises StoreError: it is not how the log goes on, or cannot be written.
        :raises ReplicationError: what comes once more is not what the log here has.
        """
        store = self._store
        log = store.replicated
        before = log.end if self._compare_at is None else self._compare_at
        self.read_at_ms = self._clock.now_ms()
        error = store.writable()
        if error is not None:
            raise error
        for transfer in transfers:
            self._append(transfer)
        if self.trouble is not None:
            _log.info("the master is followed again, from log offset %d on", before)
            self.trouble = None
        if log.end == before or self._compare_at is not None:
            return
        if not store.sync_flush:
            connection.report(log.end)
            return
        position = store.max_physical_offset

        def flushed(failure: StoreError | None) -> None:
            if failure is None:
                connection.report(position)
            else:
                connection.end(failure)

        store.when_flushed(position, flushed)


class _Connection(asyncio.Protocol):
    """One connection to the master."""

    def __init__(self, client: HAClient) -> None:
        self._client = client
        self._transfers = TransferReader()
        self._transport: asyncio.Transport | None = None
        self._beat: TimerHandle | None = None
        self._silence: TimerHandle | None = None
        self._reported = 0
        self.ended: Final[asyncio.Future[Exception]] = asyncio.get_running_loop().create_future()
        """Why it came to its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for ``begin``."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """The master hung up, or is gone."""
        self.end(error or ReplicationError("the master closed the connection; its log says why"))

    def begin(self) -> None:
        """Send the first report, upon which the master begins."""
        self._listen()
        self.report(self._client.first_report())

    def data_received(self, data: bytes) -> None:
        """Take in transfers."""
        if self.ended.done():
            return
        self._listen()
        try:
            transfers = self._transfers.feed(data)
            if transfers:
                self._client.take(transfers, self)
        except (ReplicationError, StoreError) as error:
            self.end(error)

    def report(self, end: int) -> None:
        """Tell the master where the log here ends; again after each ``haSendHeartbeatInterval`` without a report."""
        if self._transport is None or self._transport.is_closing():
            return
        self._reported = end
        self._transport.write(encode_report(end))
        if self._beat is not None:
            self._beat.cancel()
        self._beat = self._client.clock.call_later(self._client.heartbeat_s, self._report_again)

    def _report_again(self) -> None:
        self.report(self._reported)

    def _listen(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self._client.clock.call_later(self._client.housekeeping_s, self._too_silent)

    def _too_silent(self) -> None:
        self.end(ReplicationError(f"the master sent nothing for {self._client.housekeeping_s:g} s"))

    def end(self, why: Exception) -> None:
        """Close it; the first reason counts."""
        if not self.ended.done():
            self.ended.set_result(why)
        self.abort()

    def abort(self) -> None:
        """Close it at once."""
        for timer in (self._beat, self._silence):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            self._transport.abort()
