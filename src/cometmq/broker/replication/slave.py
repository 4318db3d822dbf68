"""The slave role of a broker: it follows its master's log, copies its tables, and refuses requests for masters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.failover.document import Replica
from cometmq.broker.failover.history import HistoryError
from cometmq.broker.limits import MAX_TABLE_ANSWER_BYTES, MEMBER_RETRY_SECONDS
from cometmq.broker.replication.copies.set_copy import SetCopy
from cometmq.broker.replication.ha_client import HAClient, MasterAddress, check_common_log
from cometmq.broker.replication.member_link import MemberLink
from cometmq.broker.replication.members import FollowerSide
from cometmq.broker.replication.slave_synchronize import SlaveSynchronize
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.broker.turn.targets import NotServingError, RefusedError
from cometmq.errors import CometMQError
from cometmq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from cometmq.message.properties import REAL_TOPIC, property_mark
from cometmq.remoting.admin_bodies import HAClientRuntimeInfo, HARuntimeInfo
from cometmq.remoting.bodies import BodyError, encode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.permissions import ANY_ACCOUNT, Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.security import Security
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue, MessageStore

_OF_MASTERS: Final = (
    RequestCode.END_TRANSACTION,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.GET_OPEN_TRANSACTIONS,
    RequestCode.RECALL_MESSAGE,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_TIMER_METRICS,
    RequestCode.GET_WAITING_MESSAGES,
    RequestCode.OPEN_PRODUCER,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.NOTIFICATION,
    RequestCode.PEEK_MESSAGE,
    RequestCode.POLLING_INFO,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.LITE_SUBSCRIPTION_CTL,
    RequestCode.ACK_LITE_MESSAGE,
    RequestCode.GET_BROKER_LITE_INFO,
    RequestCode.GET_PARENT_TOPIC_INFO,
    RequestCode.GET_LITE_TOPIC_INFO,
    RequestCode.GET_LITE_CLIENT_INFO,
    RequestCode.GET_LITE_GROUP_INFO,
    RequestCode.TRIGGER_LITE_DISPATCH,
    RequestCode.GET_LITE_TOPICS,
    RequestCode.EXPIRE_LITE_TOPICS,
)
"""Requests that only a master handles."""

_OF_TABLES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)
"""Requests that change tables copied from the master."""

_WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC})
"""Topics that park messages for other topics; each record contains its target topic."""
_REAL_TOPIC: Final = re.compile(rb"\b" + property_mark(REAL_TOPIC).encode() + rb"([%|\w-]+)", re.ASCII)


class UnknownTopics:
    """Creates missing topics, and queues of retry topics, for replicated messages, so that no message is hidden.

    The master may fail before the slave copies the table of topics again.
    """

    def __init__(self, store: MessageStore, topics: TopicConfigManager) -> None:
        self._store = store
        self._topics = topics
        self._seen: dict[tuple[str, int], int] = {}
        """The queue offset up to which parked messages have been checked, for each queue."""

    def arrived(self, queues: Iterable[ConsumeQueue]) -> bool:
        """Create missing topics for queues that received messages; return whether any was created."""
        made = False
        for queue in queues:
            if queue.topic in _WAITING_TOPICS:
                for topic in self._waited_for(queue):
                    made = self._topics.note_queue(topic, 0) or made
            elif (known := self._topics.get(queue.topic)) is None or queue.queue_id >= known.read_queue_nums:
                made = self._topics.note_queue(queue.topic, queue.queue_id) or made
        return made

    def _waited_for(self, queue: ConsumeQueue) -> set[str]:
        """Return the target topics of newly parked messages in a queue."""
        start = self._seen.get(queue.key, queue.known_from)
        self._seen[queue.key] = queue.committed
        topics: set[str] = set()
        for offset in range(start, queue.committed):
            unit = queue.unit(offset)
            record = self._store.view(unit[0], unit[1]) if unit is not None else None
            found = _REAL_TOPIC.findall(record) if record is not None else []
            if found:
                topics.add(found[-1].decode())  # the properties are last; a body may contain the same text
        return topics


def message_refusal() -> RefusedError:
    """Return the error with which a slave refuses all messages (``DefaultMessageStore.checkStoreStatus``)."""
    return NotServingError("this broker is a slave, send to its master")


class Slave:
    """Follows the master until it is stopped, and replaces a master's request handlers.

    :param member: the member of a set that this process is; ``None`` for a slave that was made by hand.
    :param copies: returns what only the members of a set copy from their master.
    """

    def __init__(
        self,
        broker: BrokerContext,
        security: Security,
        member: FollowerSide | None = None,
        copies: Callable[[RemotingClient], Sequence[SetCopy]] = lambda _: (),
    ) -> None:
        self.master: Final = MasterAddress(broker.config.ha_master_address)
        self._client = RemotingClient(clock=broker.clock, security=security, max_frame_bytes=MAX_TABLE_ANSWER_BYTES)
        self.link: Final = None if member is None else MemberLink(broker, member, self._client, self._know_topics)
        """The connection to the master of a set."""
        self.follower: Final = self.link or HAClient(broker, self.master, self._client, self._know_topics)
        self.tables: Final = SlaveSynchronize(broker, self.master, self._client, self.follower, copies(self._client))
        self._last_copy: asyncio.Task[None] | None = None
        if self.link is not None:
            self.master.elected(None)
            self.link.on_tables_wanted = self._copy_tables
        self._store = broker.store
        self._written = broker.tables
        self._unknown = UnknownTopics(broker.store, broker.topics)
        broker.store.batch.on_stored.append(self._arrived)

    @answers(*_OF_MASTERS, permission=ANY_ACCOUNT)
    def refuse(self, _connection: ServerConnection, _request: Request[Any], _body: bytes) -> Response:
        """Refuse with SLAVE_NOT_AVAILABLE, as Apache's slaves refuse END_TRANSACTION."""
        return Response(
            ResponseCode.SLAVE_NOT_AVAILABLE, remark="this broker is a slave, send the request to its master"
        )

    @answers(*_OF_TABLES, permission=ANY_ACCOUNT)
    def refuse_change(self, _connection: ServerConnection, _request: Request[Any], _body: bytes) -> Response:
        """Refuse with SYSTEM_ERROR and the text of ``AdminBrokerProcessor.validateSlave``."""
        return Response(
            ResponseCode.SYSTEM_ERROR,
            remark="Can't modify topic or subscription group from slave broker, please execute it from master broker.",
        )

    @answers(RequestCode.GET_BROKER_HA_STATUS, permission=needs_cluster(Action.GET))
    def status(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return the master that this slave follows, and the slave's progress."""
        followed = HAClientRuntimeInfo(
            master_addr=self.master.ha or "",
            max_offset=self.follower.end,
            last_read_timestamp=self.follower.read_at_ms,
            is_activated=self.follower.is_following,
            in_sync_timestamp=self.tables.in_sync_at_ms,
        )
        info = HARuntimeInfo(
            master=False, master_commit_log_max_offset=0, in_sync_slave_nums=0, ha_client_runtime_info=followed
        )
        return Response(body=encode_body(info))

    def _arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Record the queues that received messages."""
        if self._unknown.arrived(queues):
            self.tables.copy_soon()

    async def _know_topics(self) -> None:
        """Add the topics of this broker's messages to its table, which may lack them after a crash.

        :raises CometMQError: the master did not return its topics.
        """
        if self.master.remoting is not None and self.link is None:
            await self.tables.copy_topics(self.master.remoting)
        else:  # the master of a set answers requests only once its followers have reported
            by_topic = self._store.queues().values()
            self._unknown.arrived(queue for queues in by_topic for queue in queues.values() if queue.committed)

    def start(self) -> None:
        """Start following the master, on the running loop; a member waits for :meth:`follow`."""
        if isinstance(self.follower, HAClient):
            self.follower.start()
        self.tables.start()

    async def stop(self) -> None:
        """Stop following the master, and install the copied files that can take effect."""
        await self.follower.stop()
        await self._client.close()  # so that nothing waits for an unresponsive master
        if self._last_copy is not None:
            self._last_copy.cancel()
            await asyncio.gather(self._last_copy, return_exceptions=True)
        await self.tables.stop()

    # --- a member of a set ------------------------------------------------------------------------
    def follow(self, epoch: int, master: Replica | None) -> None:
        """Follow the master of an epoch; ``None`` while it is not known."""
        assert self.link is not None
        self.link.leave()
        self.master.elected(master)
        if self._last_copy is not None:
            self._last_copy.cancel()
        self.tables.begin_with_master()
        if master is not None:
            self.link.follow(epoch, master)

    def leave(self) -> None:
        """Append and report nothing any more until :meth:`follow`."""
        assert self.link is not None
        self.link.leave()
        if self._last_copy is not None:
            self._last_copy.cancel()

    def report(self) -> None:
        """Report the end of the log that counts, which may have grown."""
        assert self.link is not None
        self.link.report()

    async def compare_log(self) -> None:
        """Check that this log, which has no epochs because its broker was never a member of a set, is the master's.

        :raises HistoryError: it is another log, or the master cannot be asked now.
        """
        assert self.master.remoting is not None
        try:
            await check_common_log(self._store, self._client, self.master.remoting)
        except (CometMQError, BodyError) as error:
            raise HistoryError(
                f"this store has messages that were stored before it was a member of the set, and they may not be the "
                f"master's: {error}",
                next_step="if the store belongs to another set or cluster, correct brokerName and the engine's keys; "
                "otherwise start with an empty store, which is filled from the master",
            ) from error

    def _copy_tables(self) -> None:
        """Copy the tables because the master asks for it; an earlier copy may have begun before the last change."""
        if self._last_copy is not None:
            self._last_copy.cancel()
        self._last_copy = asyncio.get_running_loop().create_task(self._copy_and_tell(), name="copy tables once more")

    async def _copy_and_tell(self) -> None:
        assert self.link is not None
        while not await self.tables.copy_changes():
            await self._store.clock.sleep(MEMBER_RETRY_SECONDS)
        await self._written.finish()
        self.link.tables_copied()

    async def cut_off(self) -> None:
        """Close every connection immediately; ``stop`` must still be called."""
        self.follower.cut_off()
        await self._client.close()

    def runtime_info(self) -> dict[str, str]:
        """Return runtime information: the master's address, and any reason for not following it."""
        return {
            "haMasterAddress": self.master.ha or "",
            "replicationTrouble": self.follower.trouble or "",
            "tablesTrouble": self.tables.trouble,
        }
