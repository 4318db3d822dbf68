"""The slave's side of replication, which copies the master's log from its HA port (``HAClient``).

A connection begins with a report of the end of the slave's log. Each appended transfer is reported. If no report was
sent for ``haSendHeartbeatInterval``, one is sent as a heartbeat. Any failure ends the connection, and the slave
reconnects five seconds later. With SYNC_FLUSH the slave reports only what it has flushed. It never reports a message
whose topic has not been saved, because it would hide the message if it were killed and then became the master.

Apache's replication protocol shows neither where the master's log begins nor whether it is the same log. A slave
without a log would receive only the master's last file, and a slave whose log has diverged from the master's would
still append to it. Therefore CometMQ's slave first sends ordinary requests, which Apache's master also answers: a new
slave receives everything that the master still has, and a diverged slave stops. If a CometMQ master checks accounts,
its response says that slaves must sign in; a slave does so with its own account.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.failover.document import Replica
from cometmq.broker.limits import REPLICATION_CONNECT_SECONDS, REPLICATION_RETRY_SECONDS
from cometmq.broker.replication.copied_log import CopiedLog, KnowTopics
from cometmq.broker.replication.frames import (
    REPORT_FIELD,
    SIGN_IN,
    SIGNS_IN,
    ReplicationError,
    Transfer,
    TransferReader,
)
from cometmq.broker.replication.master_connection import MasterConnection
from cometmq.errors import CometMQError, reason_of
from cometmq.remoting.admin_headers import RegisterBrokerResponseHeader
from cometmq.remoting.bodies import BodyError, KVTable, decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ViewMessageRequestHeader
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

_EMPTY_STORE: Final = "save the messages that you need, then start with an empty store, which is filled from the master"
_DIVERGED_NEXT_STEP: Final = f"{_EMPTY_STORE}; or make this broker the master"


class MasterAddress:
    """The addresses of a slave's master, from the configuration or from the nameservers.

    :param ha_master_address: ``host:port`` of ``haMasterAddress``; empty to ask the nameservers.
    """

    def __init__(self, ha_master_address: str) -> None:
        self._is_configured = bool(ha_master_address)
        self.ha: str | None = ha_master_address or None
        """``host:port`` of the master's HA port, or the last known address if the master is down."""
        self.remoting: str | None = None
        """``host:port`` of the master for requests, or ``None`` until a nameserver has reported it."""
        self.changed = asyncio.Event()
        """Set when an address has changed."""
        self._is_elected = False

    def elected(self, master: Replica | None) -> None:
        """Take over the addresses of a set's master, which the nameservers do not change any more."""
        self._is_elected = True
        self.remoting, self.ha = (None, None) if master is None else (master.address, master.ha_address)

    def registered(self, answer: RegisterBrokerResponseHeader) -> None:
        """Read the master's addresses from a nameserver's response to a registration."""
        if self._is_elected:
            return
        before = (self.ha, self.remoting)
        if answer.master_addr:
            self.remoting = answer.master_addr
        if answer.ha_server_addr and not self._is_configured:
            self.ha = answer.ha_server_addr
        if (self.ha, self.remoting) != before:
            _log.info("the master is at %s, its HA port at %s", self.remoting, self.ha)
            self.changed.set()


async def check_common_log(store: MessageStore, client: RemotingClient, master: str) -> bool:
    """Fetch the beginning of the master's log for an empty log; otherwise check that this log is a prefix of it.

    Return True if slaves must sign in.

    :param master: ``host:port`` for requests.
    :raises ReplicationError: the master's log does not continue this one.
    :raises RemotingError: the master does not answer.
    :raises BodyError: the answer is malformed.
    :raises StoreError: the beginning cannot be stored.
    """
    first, end, signs_in = await get_log_range(client, master)
    log = store.replicated
    if log.is_empty:
        if first > 0 and end > first:
            log.begin_at(first)
        elif first == 0 and end > 0:
            record = await _record(client, master, 0)
            if not record:
                raise ReplicationError(f"master {master} did not return the first message of its log; will retry")
            log.append(0, record)
        return signs_in
    if log.end > end:
        raise ReplicationError(
            f"this broker's log ends at {log.end}, but the log of master {master} ends earlier, at {end}",
            next_step=_DIVERGED_NEXT_STEP,
        )
    if log.end < first:
        raise ReplicationError(
            f"this broker's log ends at {log.end}, but the log of master {master} begins at {first}",
            next_step=_EMPTY_STORE,
        )
    offset, size = store.last_record
    if offset >= first and await _record(client, master, offset) != store.record_at(offset, size):
        raise ReplicationError(
            f"the record at log offset {offset} differs from the one on master {master}: the logs have diverged",
            next_step=_DIVERGED_NEXT_STEP,
        )
    return signs_in


async def get_log_range(client: RemotingClient, master: str) -> tuple[int, int, bool]:
    """Return the start and end offset of a master's log, and whether its slaves must sign in.

    :raises ReplicationError: the answer lacks the offsets.
    :raises RemotingError: the master does not answer.
    :raises BodyError: the answer is malformed.
    """
    answer = await client.invoke(master, RequestCode.GET_BROKER_RUNTIME_INFO)
    info = decode_body(KVTable, answer.body).table
    try:
        return int(info["commitLogMinOffset"]), int(info["commitLogMaxOffset"]), info.get(SIGNS_IN) == "true"
    except (KeyError, ValueError) as error:
        raise ReplicationError(f"master {master} did not report the start and end of its log: {error}") from error


async def _record(client: RemotingClient, master: str, offset: int) -> bytes:
    """Return a record of the master's log.

    :raises ReplicationError: the master does not return one, because it has none there or does not serve now.
    """
    answer = await client.invoke(master, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))
    if answer.code != ResponseCode.SUCCESS:
        raise ReplicationError(
            f"master {master} did not return the record at log offset {offset} (code {answer.code}, {answer.remark}); "
            "will retry",
            next_step=f"if this persists while the master serves clients, the logs have diverged: "
            f"{_DIVERGED_NEXT_STEP}",
        )
    return answer.body


class HAClient:
    """Follows a master until it is stopped.

    :param know_topics: called before the first report on each connection; adds the topics of this broker's messages to
        its table of topics.
    """

    def __init__(
        self,
        broker: BrokerContext,
        master: MasterAddress,
        client: RemotingClient,
        know_topics: KnowTopics,
    ) -> None:
        config = broker.config
        store = self._store = broker.store
        self._copied = CopiedLog(broker, know_topics)
        self._master = master
        self._client = client
        self.clock: Final = store.clock
        self._has_nameservers = bool(config.namesrv_addr)
        self.heartbeat_s: Final = config.ha_send_heartbeat_interval / 1000
        """Seconds without a report after which a heartbeat is sent."""
        self.housekeeping_s: Final = config.ha_housekeeping_interval / 1000
        """Seconds without data from the master after which the connection is considered lost."""
        tls = config.outgoing_tls
        self._tls = None if tls is None else tls.fresh_context()
        self._task: asyncio.Task[None] | None = None
        self._connection: MasterConnection | None = None
        self._compare_at: int | None = None
        """The log offset at which the master resends part of the log for comparison, or ``None`` after the
        comparison.
        """
        self.is_following = False
        """True while the slave is connected and the master's log continues the slave's log."""
        self.read_at_ms = 0
        """Time at which the master's last bytes arrived, or 0 if nothing has arrived."""
        self.trouble: str | None = None
        """The reason why the slave is not following the master, or ``None`` if it is."""

    @property
    def local_address(self) -> str:
        """Return the ``host:port`` of this side of the connection to the master, by which the master knows this slave,
        or an empty text if there is no connection.
        """
        return "" if self._connection is None else self._connection.local_address

    def start(self) -> None:
        """Start following the master, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="follow the master")

    async def stop(self) -> None:
        """Stop following the master."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def cut_off(self) -> None:
        """Close the connection immediately and do not reconnect; ``stop`` must still be called."""
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
                    raise ReplicationError("no nameserver knows a master for this broker name")
                await self._follow(address)
            except (CometMQError, BodyError, OSError, TimeoutError, ValueError) as error:
                self._log_failure(address, error)
            except Exception as error:
                _log.exception("cannot follow the master")
                self._log_failure(address, error)
            await self._pause()

    async def _pause(self) -> None:
        """Wait before the next attempt; a change of the master's address ends the wait."""
        retry = self.clock.call_later(REPLICATION_RETRY_SECONDS, self._master.changed.set)
        await self._master.changed.wait()
        retry.cancel()
        self._master.changed.clear()

    def _log_failure(self, address: str | None, error: Exception) -> None:
        """Log the reason for a failure, but only once while it recurs."""
        trouble = f"{reason_of(error) if isinstance(error, OSError) else error}"
        if trouble != self.trouble:
            self.trouble = trouble
            _log.error("cannot follow master %s: %s; will retry", address or "", trouble)

    async def _follow(self, address: str) -> None:
        """Follow the master until the connection ends.

        :raises ReplicationError: the master disconnected, was silent, or sent invalid data.
        :raises StoreError: the store refused the bytes.
        :raises OSError: the connection failed.
        """
        if self._master.remoting is None and self._has_nameservers:
            raise ReplicationError(
                "no nameserver knows the master's address for requests, which is needed to compare the logs"
            )
        self._copied.drop_tail()
        if self._store.sync_flush:
            await self._store.wait_flushed(self._store.max_physical_offset)
        transfers = TransferReader()
        connection = self._connection = MasterConnection(
            lambda data: self.append_transfers(transfers.feed(data), connection),
            clock=self.clock,
            heartbeat_s=self.heartbeat_s,
            silence_s=self.housekeeping_s,
        )
        try:
            tls = None if self._tls is None else self._tls.current()
            await connection.open(address, REPLICATION_CONNECT_SECONDS, tls)
            master = self._master.remoting
            signs_in = False
            if master is not None:
                signs_in = await check_common_log(self._store, self._client, master)
            await self._copied.save_topics()
            connection.listen()
            first = self._first_report_offset()
            if signs_in and self._client.credentials is not None:
                connection.write(self._sign_in(first))
            connection.report(first)
            self.is_following = True
            raise await connection.ended
        finally:
            self.is_following = False
            connection.abort()
            self._connection = None

    def _sign_in(self, report: int) -> bytes:
        """Return the bytes with which this slave signs in, signed like its other requests to the master."""
        request = self._client.request(
            self._master.remoting or "", RequestCode.GET_BROKER_RUNTIME_INFO, None, b"", {REPORT_FIELD: str(report)}
        )
        return SIGN_IN + request.encode()

    # --- the log --------------------------------------------------------------------------------
    @property
    def end(self) -> int:
        """Return the end of the slave's log."""
        return self._store.replicated.end

    def _first_report_offset(self) -> int:
        """Return the log offset at which the master starts sending.

        This is the end of the slave's log, which has been compared with the master's. A master that does not answer
        requests starts with the slave's last record, so that the transfer can be compared.
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
        if log.is_empty and transfer.offset != log.end and self._master.remoting is not None:
            raise ReplicationError("the master's log has a new file since the comparison; will retry")
        if transfer.body or not log.is_empty:
            log.append(transfer.offset, transfer.body)

    def _compare(self, transfer: Transfer) -> Transfer:
        """Compare a transfer with the slave's log; return the part that the log lacks.

        :raises ReplicationError: the other part differs from the slave's log.
        """
        known = min(self.end - transfer.offset, len(transfer.body))
        here = self._store.log_part(transfer.offset, known)
        if here is None or bytes(here) != transfer.body[:known]:
            raise ReplicationError(
                f"the record at log offset {transfer.offset} differs from the master's: the logs have diverged",
                next_step=_DIVERGED_NEXT_STEP,
            )
        at = transfer.offset + known
        self._compare_at = at if at < self.end else None
        return Transfer(at, transfer.body[known:])

    def append_transfers(self, transfers: list[Transfer], connection: MasterConnection) -> None:
        """Append transfers, and report the new end of the log.

        :raises StoreError: the transfers do not continue the log, or cannot be written.
        :raises ReplicationError: the part that was sent again differs from the slave's log.
        """
        if not transfers:
            return
        store = self._store
        log = store.replicated
        before = log.end if self._compare_at is None else self._compare_at
        self.read_at_ms = self.clock.now_ms()
        self._copied.check_writable()
        for transfer in transfers:
            self._append(transfer)
        if self.trouble is not None:
            _log.info("following the master again, starting at log offset %d", before)
            self.trouble = None
        if log.end == before or self._compare_at is not None:
            return
        if not store.sync_flush:
            self._report(connection, log.end)
            return
        position = store.max_physical_offset

        def flushed(failure: StoreError | None) -> None:
            if failure is None:
                self._report(connection, position)
            else:
                connection.end(failure)

        store.when_flushed(position, flushed)

    def _report(self, connection: MasterConnection, end: int) -> None:
        """Report the end of the slave's log once the topics of all messages have been saved."""
        self._copied.when_topics_saved(lambda: connection.report(end))
