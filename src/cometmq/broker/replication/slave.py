"""A broker's parts as a slave: it follows its master's log, copies its tables, refuses what a master does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups import SubscriptionGroupManager
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.broker.replication.ha_client import HAClient
from cometmq.broker.replication.master_address import MasterAddress
from cometmq.broker.replication.slave_synchronize import SlaveSynchronize
from cometmq.broker.replication.unknown_topics import UnknownTopics
from cometmq.broker.send_targets import SendRefusedError
from cometmq.broker.topics import TopicConfigManager
from cometmq.clock import Clock
from cometmq.limits import MAX_TABLE_ANSWER_BYTES
from cometmq.remoting.bodies import HAClientRuntimeInfo, HARuntimeInfo, encode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore, TopicQueue

_OF_MASTERS: Final = (
    RequestCode.END_TRANSACTION,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.GET_OPEN_TRANSACTIONS,
    RequestCode.RECALL_MESSAGE,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_TIMER_METRICS,
    RequestCode.GET_WAITING_MESSAGES,
    RequestCode.OPEN_PRODUCER,
)
"""Requests about what only a master does."""

_OF_TABLES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)
"""Requests that change what is copied from the master."""


def no_messages() -> SendRefusedError:
    """Why a slave takes no message (``DefaultMessageStore.checkStoreStatus``)."""
    return SendRefusedError(
        ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: this broker is a slave, send to its master"
    )


class Slave:
    """Follows the master until it is stopped."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        *,
        clock: Clock,
    ) -> None:
        self.master: Final = MasterAddress(config.ha_master_address)
        self._client = RemotingClient(clock=clock, max_frame_bytes=MAX_TABLE_ANSWER_BYTES)
        self.follower: Final = HAClient(config, store, self.master, self._client, clock=clock)
        self.tables: Final = SlaveSynchronize(
            store, topics, groups, offsets, self.master, self._client, self.follower, clock=clock
        )
        self._unknown = UnknownTopics(store, topics)

    def register(self, processors: ProcessorTable) -> None:
        """Answer about itself, and refuse what only a master does; after administration, which would do it."""
        for code in _OF_MASTERS:
            processors.register(code, NoHeader, self.refuse)
        for code in _OF_TABLES:
            processors.register(code, NoHeader, self.refuse_change)
        processors.register(RequestCode.GET_BROKER_HA_STATUS, NoHeader, self.status)

    def refuse(self, _connection: ServerConnection, _request: Request[Any], _body: bytes) -> Response:
        """SLAVE_NOT_AVAILABLE, as Apache's slave answers the end of a transaction."""
        return Response(ResponseCode.SLAVE_NOT_AVAILABLE, remark="this broker is a slave, ask its master")

    def refuse_change(self, _connection: ServerConnection, _request: Request[Any], _body: bytes) -> Response:
        """In the words of ``AdminBrokerProcessor.validateSlave``."""
        return Response(
            ResponseCode.SYSTEM_ERROR,
            remark="Can't modify topic or subscription group from slave broker, please execute it from master broker.",
        )

    def status(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """GET_BROKER_HA_STATUS (907): what this slave follows."""
        followed = HAClientRuntimeInfo(
            master_addr=self.master.ha or "",
            max_offset=self.follower.end,
            last_read_timestamp=self.follower.read_at_ms,
            is_activated=self.follower.is_following,
        )
        info = HARuntimeInfo(
            master=False, master_commit_log_max_offset=0, in_sync_slave_nums=0, ha_client_runtime_info=followed
        )
        return Response(body=encode_body(info))

    def arrived(self, queues: Iterable[TopicQueue]) -> None:
        """Messages came in these queues."""
        if self._unknown.arrived(queues):
            self.tables.soon()

    def start(self) -> None:
        """Begin, on the running loop."""
        self.follower.start()
        self.tables.start()

    async def stop(self) -> None:
        """Follow no more, put what was copied in its place."""
        await self.follower.stop()
        await self._client.close()  # so that nothing waits for a master that does not answer
        await self.tables.stop()

    async def cut_off(self) -> None:
        """End every connection at once; ``stop`` is still due."""
        self.follower.cut_off()
        await self._client.close()

    def runtime_info(self) -> dict[str, str]:
        """What the runtime information (28) tells of it: where the log comes from, and what does not come and why."""
        return {
            "haMasterAddress": self.master.ha or "",
            "replicationTrouble": self.follower.trouble or "",
            "tablesTrouble": self.tables.trouble,
        }
