"""A follower's connection to the master of its set (``AutoSwitchHAClient``).

A member signs in, receives the master's epochs, and compares them with its own. The driver of the machine cuts what
only this log has; then the member requests the rest, appends it and reports it, as every slave does. A connection
belongs to one epoch. After :meth:`MemberLink.leave` returns, nothing of that epoch is appended or reported any more.

The member connects again after 0.2 seconds, whatever ended the connection, or sooner if the master is new. If the
master closed it and then its port refuses, its process is dead: the set does not wait for its lease. A port that
refuses without that proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.failover.document import Replica
from cometmq.broker.failover.engines.interface import Presence
from cometmq.broker.failover.epochs import EpochLog
from cometmq.broker.failover.halts import address_taken
from cometmq.broker.failover.history import HistoryError
from cometmq.broker.limits import MEMBER_FIRST_RETRY_SECONDS, MEMBER_RETRY_SECONDS
from cometmq.broker.replication.copied_log import CopiedLog, KnowTopics
from cometmq.broker.replication.frames import TABLES_COPIED, ReplicationError, Transfer, TransferReader, encode_report
from cometmq.broker.replication.master_connection import MasterConnection
from cometmq.broker.replication.member_sign_in import Accepted, AnswerReader, SignInRefusedError, sign_in_frame
from cometmq.broker.replication.members import FollowerSide
from cometmq.broker.replication.twin_call import has_twin
from cometmq.errors import CometMQError, reason_of
from cometmq.remoting.client import RemotingClient
from cometmq.store.errors import StoreError

_log = logging.getLogger(__name__)

_CONNECT_HEARTBEATS: Final = 0.75
"""Time limit for a connection, as part of a heartbeat: a machine that is gone must not look slow."""
_HURRY_HEARTBEATS: Final = 1
"""Number of heartbeats in which a master that has just been elected is expected to take office."""
_SILENT_HEARTBEATS: Final = 2
"""Number of heartbeats without a byte from the master after which the connection is considered lost."""


class MemberLink:
    """Follows the masters of a set, one after the other.

    :param client: signs the sign-in with this broker's account.
    """

    def __init__(
        self, broker: BrokerContext, side: FollowerSide, client: RemotingClient, know_topics: KnowTopics
    ) -> None:
        self._side: Final = side
        self._client = client
        self._copied = CopiedLog(broker, know_topics)
        self._log_file_bytes = broker.store.config.mapped_file_size_commit_log
        self.clock: Final = broker.store.clock
        tls = broker.config.outgoing_tls
        self._tls = None if tls is None else tls.fresh_context()
        self._task: asyncio.Task[None] | None = None
        self._ended: list[asyncio.Task[None]] = []
        self._connection: MasterConnection | None = None
        self._is_accepted = False
        """True once the master of this epoch has accepted a connection."""
        self._was_closed = False
        """True if the master has closed an accepted connection, and has not been reached since."""
        self._hurries_until = 0.0
        """The time until which the master of this epoch is expected to take office."""
        self._told: bool | None = None
        """The last ``is_refused`` that the member was told; ``None`` while the connection is not lost."""
        self.on_tables_wanted: Callable[[], None] = lambda: None
        """Is called when the master asks for a copy of the tables; :meth:`tables_copied` answers."""
        self.is_following = False
        """True while the master sends its log, which continues this one."""
        self.read_at_ms = 0
        """Time at which the master's last bytes arrived, or 0 if nothing has arrived."""
        self.trouble: str | None = None
        """The reason why this member is not following, or ``None`` if it is."""
        self.refusal = ""
        """The reason why it cannot follow until a person has done something."""

    @property
    def local_address(self) -> str:
        """Return the ``host:port`` by which the master knows this connection, or an empty text."""
        return "" if self._connection is None else self._connection.local_address

    @property
    def end(self) -> int:
        """Return the end of this member's log."""
        return self._copied.end

    def follow(self, epoch: int, master: Replica) -> None:
        """Follow the master of an epoch, on the running loop, until :meth:`leave`."""
        self.leave()
        self._hurries_until = self.clock.monotonic() + _HURRY_HEARTBEATS * self._side.heartbeat_s
        self._task = asyncio.get_running_loop().create_task(self._run(epoch, master), name="follow the master")

    async def has_twin(self, twin: Presence) -> bool:
        """Return whether another process with this member's name answers (:mod:`.twin_call`)."""
        tls = None if self._tls is None else self._tls.current()
        limit_s = _CONNECT_HEARTBEATS * self._side.heartbeat_s
        return await has_twin(self._side, self._client, twin, tls, limit_s, clock=self.clock)

    def leave(self) -> None:
        """Close the connection; after this nothing is appended or reported until :meth:`follow`."""
        self.is_following = self._is_accepted = self._was_closed = False
        self._told = None
        self.refusal = ""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        if self._task is not None:
            self._task.cancel()
            self._ended = [task for task in (*self._ended, self._task) if not task.done()]
            self._task = None

    async def stop(self) -> None:
        """Leave the master, and wait until nothing runs any more."""
        self.leave()
        await asyncio.gather(*self._ended, return_exceptions=True)

    def cut_off(self) -> None:
        """Close the connection immediately; ``stop`` must still be called."""
        self.leave()

    def report(self) -> None:
        """Report the end of the log that counts, once the topics of all messages have been saved."""
        connection = self._connection
        if connection is None or not self.is_following:
            return
        end = min(self._side.counted_end, self.end)
        self._copied.when_topics_saved(lambda: self._send_report(connection, end))

    def _send_report(self, connection: MasterConnection, end: int) -> None:
        if connection is self._connection:
            connection.report(end)

    def tables_copied(self) -> None:
        """Tell the master that the tables were copied after it asked for it."""
        if self._connection is not None and self.is_following:
            self._connection.write(encode_report(TABLES_COPIED))

    # --- connections ------------------------------------------------------------------------------
    async def _run(self, epoch: int, master: Replica) -> None:
        while True:
            is_hopeless = False
            try:
                if not await self._follow(epoch, master):
                    return
            except (CometMQError, OSError, ValueError) as error:
                is_hopeless = isinstance(error, HistoryError)
                self._log_failure(master, error)
            except Exception as error:
                _log.exception("cannot follow the master")
                self._log_failure(master, error)
            await self.clock.sleep(self._side.heartbeat_s if is_hopeless else self._pause_s)

    @property
    def _pause_s(self) -> float:
        """Return the pause before the next attempt in seconds."""
        is_new = not self._is_accepted and self.clock.monotonic() < self._hurries_until
        is_dying = self._was_closed and not self._told
        return MEMBER_FIRST_RETRY_SECONDS if is_new or is_dying else MEMBER_RETRY_SECONDS

    def _log_failure(self, master: Replica, error: Exception) -> None:
        """Log the reason for a failure, but only once while it recurs."""
        trouble = f"{reason_of(error) if isinstance(error, OSError) else error}"
        is_lasting = isinstance(error, HistoryError) or (
            isinstance(error, SignInRefusedError) and not error.ends_by_itself
        )
        self.refusal = trouble if is_lasting else ""
        if trouble != self.trouble:
            self.trouble = trouble
            level = error.log_level if isinstance(error, SignInRefusedError) else logging.WARNING
            _log.log(level, "cannot follow master %s at %s: %s; will retry", master.name, master.ha_address, trouble)

    async def _follow(self, epoch: int, master: Replica) -> bool:
        """Follow the master until the connection ends; return False if this member must not connect again.

        :raises CometMQError: the master refused this member, was silent or sent invalid data, or the store refused it.
        :raises OSError: the connection failed.
        """
        self._copied.drop_tail()
        answered: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        link = _Stream(self, epoch, answered)
        beat_s = self._side.heartbeat_s
        connection = self._connection = MasterConnection(
            link.received, clock=self.clock, heartbeat_s=beat_s, silence_s=_SILENT_HEARTBEATS * beat_s
        )
        try:
            tls = None if self._tls is None else self._tls.current()
            await connection.open(master.ha_address, _CONNECT_HEARTBEATS * beat_s, tls)
            connection.listen()
            connection.write(sign_in_frame(self._side, self._client, master.address, epoch, self._log_file_bytes))
            accepted = await self._answer(connection, answered)
            offset = await self._side.compared(epoch, accepted.history)
            if offset is None:
                self._connection = None
                return False
            await self._begin(connection, offset, accepted)
            self.is_following = True
            self.report()
            raise await connection.ended
        except SignInRefusedError as error:
            if error.known_epoch > epoch:
                self._side.epoch_seen(error.known_epoch)
            if error.twin == self._side.process:
                reason, next_step = address_taken(self._side.me.name, master.name, master.address)
                raise SignInRefusedError(reason, next_step=next_step) from error
            raise
        finally:
            connection.abort()
            if self._connection is connection:  # otherwise this member has left the master
                self._connection = None
                self.is_following = False
                self._lost(connection, epoch)

    async def _answer(self, connection: MasterConnection, answered: asyncio.Future[Accepted]) -> Accepted:
        """Return the master's answer, or raise the reason why the connection ended."""
        ended = connection.ended
        await asyncio.wait((answered, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise ended.result()
        self._is_accepted = True
        self._was_closed, self._told, self.refusal = False, None, ""
        connection.expect_nothing()
        return answered.result()

    async def _begin(self, connection: MasterConnection, offset: int, accepted: Accepted) -> None:
        """Request the log from an offset on."""
        log = self._copied.log
        if log.is_empty and offset != log.end:
            EpochLog(self._copied.store).adopt(accepted.history)
            log.begin_at(offset)
            self._side.log_moved()
        if offset != log.end:
            raise ReplicationError(f"the log ends at {log.end}, and the member asks for the master's from {offset} on")
        await self._copied.save_topics()
        if connection.ended.done():
            raise connection.ended.result()
        connection.listen(_SILENT_HEARTBEATS * max(self._side.heartbeat_s, accepted.heartbeat_s))
        connection.write(encode_report(offset))

    def _lost(self, connection: MasterConnection, epoch: int) -> None:
        """Tell the member that the connection is lost, but not again while nothing changes."""
        if connection.is_closed_by_master:
            self._was_closed = self._was_closed or self._is_accepted
        elif not connection.is_refused:
            self._was_closed = False
        is_refused = connection.is_refused and self._was_closed
        if self._told is not is_refused:
            self._told = is_refused
            self._side.link_lost(epoch, is_refused=is_refused)

    # --- called by the stream ---------------------------------------------------------------------
    def append(self, epoch: int, transfers: list[Transfer]) -> None:
        """Append transfers, and report the new end of the log.

        :raises ReplicationError: the member does not copy from this master any more.
        :raises StoreError: the transfers do not continue the log, or cannot be written.
        """
        if not self._side.copies(epoch):
            raise ReplicationError("this member does not copy from this master any more")
        store, log = self._copied.store, self._copied.log
        before = log.end
        self.read_at_ms = self.clock.now_ms()
        self._copied.check_writable()
        for transfer in transfers:
            if transfer.asks_for_tables:
                self.on_tables_wanted()
            else:
                log.append(transfer.offset, transfer.body)
        if self.trouble is not None:
            _log.info("following the master again, starting at log offset %d", before)
            self.trouble = None
        if log.end != before:
            self._side.log_moved()
            self.report()
            if store.sync_flush:
                connection = self._connection
                store.when_flushed(store.max_physical_offset, lambda failure: self._flushed(connection, failure))
        self._side.heard(epoch, transfers[-1].confirmed)

    def _flushed(self, connection: MasterConnection | None, failure: StoreError | None) -> None:
        if connection is None or connection is not self._connection:
            return
        if failure is not None:
            connection.end(failure)
            return
        self._side.log_moved()
        self.report()


class _Stream:
    """The bytes of one connection: the answer to the sign-in, then transfers."""

    def __init__(self, link: MemberLink, epoch: int, answered: asyncio.Future[Accepted]) -> None:
        self._link = link
        self._epoch = epoch
        self._answer = AnswerReader(epoch)
        self._answered = answered
        self._transfers = TransferReader(is_member=True)

    def received(self, data: bytes) -> None:
        """Handle received bytes.

        :raises ReplicationError: they are malformed.
        :raises StoreError: they cannot be appended.
        """
        if not self._answered.done():
            accepted = self._answer.feed(data)
            if accepted is not None:
                self._answered.set_result(accepted)
            return
        transfers = self._transfers.feed(data)
        if transfers:
            if not self._link.is_following:
                raise ReplicationError("the master sent its log before it was asked for")
            self._link.append(self._epoch, transfers)
