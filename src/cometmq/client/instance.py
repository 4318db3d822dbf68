"""What all producers and consumers with one client id share: connections, routes, heartbeats (``MQClientInstance``)."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Self

from cometmq.client.errors import (
    BrokerError,
    ClientStateError,
    MasterNotFoundError,
    RemotingError,
    RouteNotFoundError,
    refusal,
)
from cometmq.client.group_member import GroupMember
from cometmq.client.identity import new_client_id
from cometmq.client.relayed import RelayedQuestions
from cometmq.client.replies import Replies
from cometmq.client.route import REFRESH_S, RouteTable, TopicRoute, namesrv_addresses
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.message import MessageExt, split_records
from cometmq.message.names import MASTER_ID, reply_topic
from cometmq.message.properties import PGROUP
from cometmq.message.record import RecordError
from cometmq.remoting.bodies import (
    GetConsumerStatusBody,
    HeartbeatData,
    MessageQueue,
    ProducerData,
    ResetOffsetBody,
    decode_body,
    encode_body,
)
from cometmq.remoting.client import DEFAULT_TIMEOUT_S, ClientRpcHook, RemotingClient
from cometmq.remoting.client_connection import ClientConnection
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    CheckTransactionStateRequestHeader,
    GetConsumerStatusRequestHeader,
    Header,
    NotifyConsumerIdsChangedRequestHeader,
    ReplyMessageRequestHeader,
    ResetOffsetRequestHeader,
    UnregisterClientRequestHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.security import Security

log = logging.getLogger(__name__)

CheckTransaction = Callable[[str, CheckTransactionStateRequestHeader, MessageExt], None]
"""Called with the address of the broker that asks, its header and the half message."""


class ClientInstance:
    """Connections, routes and heartbeats of one client id.

    Producers and consumers make one each unless they are given one to share; then they also share its
    connections. Two consumers of one group cannot share one: they would be one member.

    :param namesrv: ``host:port;host:port``; default ``$NAMESRV_ADDR``, else ``127.0.0.1:9876``.
    :param client_id: unique among all clients of the cluster; made up by default.
    :param hooks: see every request and its answer.
    :param security: credentials and TLS; default: what the environment says, see ``docs/security.md``.
    :raises SecurityConfigError: the environment cannot be followed.
    :raises TlsError: a file that TLS needs cannot be used.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        client_id: str | None = None,
        hooks: Sequence[ClientRpcHook] = (),
        security: Security | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        security = Security.from_environment() if security is None else security
        self.client_id = client_id or new_client_id()
        self.clock = clock
        processors = ProcessorTable()
        self.remoting = RemotingClient(processors=processors, hooks=hooks, security=security, clock=clock)
        self.routes = RouteTable(self.remoting, namesrv_addresses(namesrv), clock)
        self._producers: set[str] = set()
        self._consumers: dict[str, GroupMember] = {}
        self._checkers: dict[str, CheckTransaction] = {}
        self._heard: set[str] = set()
        self._introduced: set[str] = set()
        """Brokers that have heard of all producers of now, or were told and did not answer."""
        self.replies = Replies(clock)
        self._users = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self.remoting.on_open.append(self._reconnected)
        processors.register(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChangedRequestHeader, self._members_changed
        )
        RelayedQuestions(self._consumers, self.spawn).register(processors)
        processors.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ReplyMessageRequestHeader, self.replies.arrived)
        processors.register(
            RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionStateRequestHeader, self._check_transaction
        )
        processors.register(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetRequestHeader, self._reset_offsets)
        processors.register(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, GetConsumerStatusRequestHeader, self._positions
        )

    @classmethod
    def given_or_new(
        cls,
        instance: ClientInstance | None,
        namesrv: str | None,
        security: Security | None,
        *,
        client_id: str | None = None,
    ) -> ClientInstance:
        """The instance that a producer or consumer was given, else one of its own.

        :raises ValueError: there is one, with a security of its own, and another security is asked for.
        """
        if instance is None:
            return cls(namesrv, client_id=client_id, security=security)
        if security is not None:
            raise ValueError("give security to the ClientInstance that is shared, not to what shares it")
        return instance

    async def __aenter__(self) -> Self:
        self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    # --- life ---

    def acquire(self) -> None:
        """Count one user in; the first one starts the heartbeats."""
        self._users += 1
        if self._users == 1:
            self._keeper = self.spawn(self._keep_up())

    async def release(self) -> None:
        """Count one user out; the last one closes everything."""
        self._users -= 1
        if self._users > 0:
            return
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.remoting.close()

    def is_ending(self) -> bool:
        """Whether the instance is being closed, or its event loop ends without that and cancels every task."""
        keeper = self._keeper
        return keeper is None or keeper.cancelled() or keeper.cancelling() > 0 or not keeper.get_loop().is_running()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until it ends or the instance is closed; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work of %s failed", self.client_id, exc_info=error)

    async def _keep_up(self) -> None:
        await self.clock.sleep(1.0)
        while True:
            try:
                await self.routes.refresh_all()
                await self.send_heartbeats()
            except Exception:
                log.exception("routes and heartbeats of %s: tried again in %g s", self.client_id, REFRESH_S)
            await self.clock.sleep(REFRESH_S)

    # --- requests ---

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        doing: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ext: dict[str, str] | None = None,
    ) -> RemotingCommand:
        """Ask a server for something that must succeed; ``doing`` names it in the error.

        :raises BrokerError: it answered with another code than 0.
        :raises RemotingError: it did not answer.
        """
        answer = await self.remoting.invoke(address, code, header, body, timeout_s=timeout_s, ext=ext)
        return self.expect(answer, address, doing)

    @staticmethod
    def expect(answer: RemotingCommand, address: str, doing: str) -> RemotingCommand:
        """The answer, which must be a success.

        :raises BrokerError: it is not.
        """
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(address, answer.code, answer.remark, doing)
        return answer

    async def master_of(self, queue: MessageQueue) -> str:
        """The address of the master that holds a queue.

        :raises MasterNotFoundError: no route names it.
        """
        address = self.routes.master(queue.broker_name)
        if address is None:
            try:
                await self.routes.refresh(queue.topic)
            except RouteNotFoundError as error:
                raise MasterNotFoundError(queue.topic, "no nameserver knows it now") from error
            address = self.routes.master(queue.broker_name)
        if address is None:
            raise MasterNotFoundError(queue.topic, f"broker {queue.broker_name} has no master now")
        return address

    async def reader_of(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
        """The address to read a queue from, and to keep a group's offsets in it: of that id, else of any of its set.

        :raises RouteNotFoundError: no route names one.
        """
        routes = self.routes
        address = routes.readable(queue.broker_name, broker_id)
        if address is None:
            await routes.refresh(queue.topic)
            address = routes.readable(queue.broker_name, broker_id)
        if address is None:
            raise RouteNotFoundError(queue.topic, f"broker {queue.broker_name} is not there now")
        return address

    # --- groups ---

    def add_producer(self, group: str) -> None:
        """Name a producer group in the heartbeats."""
        self._producers.add(group)
        self._introduced.clear()

    def add_checker(self, group: str, check: CheckTransaction) -> None:
        """Hand on what brokers ask about transactions of a producer group.

        :raises ClientStateError: another producer of this instance answers for the group.
        """
        if self._checkers.setdefault(group, check) != check:
            raise ClientStateError(
                f"{self.client_id} already answers for transactions of group {group}",
                next_step="give every transaction producer of a group an instance of its own",
            )

    def remove_checker(self, group: str, check: CheckTransaction) -> None:
        """Answer no more for a producer group."""
        if self._checkers.get(group) == check:
            del self._checkers[group]

    def say_hello(self, address: str) -> None:
        """Send a broker that does not know all producers of now a heartbeat."""
        if address not in self._introduced:
            self._introduced.add(address)
            self.spawn(self._heartbeat(address, self._heartbeat_body()))

    def add_consumer(self, group: str, member: GroupMember) -> None:
        """Name a consumer in the heartbeats.

        :raises ClientStateError: this client id already is a member of the group.
        """
        if group in self._consumers:
            raise ClientStateError(
                f"{self.client_id} already consumes as group {group}",
                next_step="give every consumer of a group an instance of its own",
            )
        self._consumers[group] = member

    def has_consumer(self, group: str) -> bool:
        """Whether this client id is a member of the group, as far as its heartbeats tell."""
        return group in self._consumers

    def drop_consumer(self, group: str) -> None:
        """Take a consumer out of the heartbeats, without a word to the brokers yet."""
        self._consumers.pop(group, None)

    async def remove(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Take a group out of the heartbeats and tell the brokers."""
        if producer_group is not None:
            self._producers.discard(producer_group)
        if consumer_group is not None:
            self._consumers.pop(consumer_group, None)
        header = UnregisterClientRequestHeader(self.client_id, producer_group, consumer_group)
        await asyncio.gather(*(self._unregister(address, header) for address in sorted(self._heard)))

    async def _unregister(self, address: str, header: UnregisterClientRequestHeader) -> None:
        try:
            await self.remoting.invoke(address, RequestCode.UNREGISTER_CLIENT, header)
        except RemotingError as error:
            log.info("%s was not told that %s leaves: %s", address, self.client_id, error)

    async def send_heartbeats(self) -> None:
        """Tell every broker of every route who is here; producers alone tell masters only."""
        if not self._producers and not self._consumers:
            return
        body = self._heartbeat_body()
        everyone = bool(self._consumers)
        addresses = {
            address
            for broker in self.routes.brokers.values()
            for broker_id, address in broker.items()
            if everyone or broker_id == MASTER_ID
        }
        await asyncio.gather(*(self._heartbeat(address, body) for address in sorted(addresses)))

    async def introduce(self, route: TopicRoute) -> None:
        """See that every broker that a reply may come from knows the producers here, before a request is sent."""
        for cluster in {broker.cluster for broker in route.data.broker_datas}:
            topic = reply_topic(cluster)
            if self.routes.known(topic) is None:
                with suppress(RouteNotFoundError):
                    await self.routes.get(topic)
        masters = {broker.get(MASTER_ID) for broker in self.routes.brokers.values()}
        strangers = {address for address in masters if address is not None} - self._introduced
        if strangers:
            body = self._heartbeat_body()
            await asyncio.gather(*(self._heartbeat(address, body) for address in sorted(strangers)))
            self._introduced |= strangers

    async def is_answering(self, address: str, timeout_s: float) -> bool:
        """Whether a broker answers a heartbeat within ``timeout_s`` seconds, whatever it says."""
        try:
            await self.remoting.invoke(
                address, RequestCode.HEART_BEAT, None, self._heartbeat_body(), timeout_s=timeout_s
            )
        except RemotingError:
            return False
        return True

    def _heartbeat_body(self) -> bytes:
        return encode_body(
            HeartbeatData(
                client_id=self.client_id,
                producer_data_set=[ProducerData(group_name=group) for group in sorted(self._producers)],
                consumer_data_set=[member.heartbeat for member in self._consumers.values()],
            )
        )

    def _reconnected(self, address: str) -> None:
        """A broker that was lost forgot us with the connection: tell it again at once."""
        if address in self._heard and self._users:
            self.spawn(self._heartbeat(address, self._heartbeat_body()))

    async def _heartbeat(self, address: str, body: bytes) -> None:
        try:
            await self.call(address, RequestCode.HEART_BEAT, None, body, doing="heartbeat")
            self._heard.add(address)
        except (RemotingError, BrokerError) as error:
            log.warning("heartbeat: %s", error)

    # --- what brokers ask ---

    def _check_transaction(
        self, connection: ClientConnection, request: Request[CheckTransactionStateRequestHeader], body: bytes
    ) -> None:
        try:
            (message,) = split_records(body)
            group = message.properties.get(PGROUP, "")
        except (RecordError, ValueError, struct.error) as error:
            log.warning("%s asks about a transaction by a message that cannot be read: %s", connection.address, error)
            return
        check = self._checkers.get(group)
        if check is None:
            log.debug("%s asks about a transaction of group %s, which is not here", connection.address, group)
        else:
            check(connection.address, request.header, message)

    def _members_changed(self, _: object, request: Request[NotifyConsumerIdsChangedRequestHeader], body: bytes) -> None:
        member = self._consumers.get(request.header.consumer_group)
        if member is not None:
            member.members_changed()

    def _reset_offsets(self, _: object, request: Request[ResetOffsetRequestHeader], body: bytes) -> None:
        member = self._consumers.get(request.header.group)
        if member is not None:
            member.reset_offsets(request.header.topic, decode_body(ResetOffsetBody, body).offset_table)

    def _positions(self, _: object, request: Request[GetConsumerStatusRequestHeader], body: bytes) -> Response:
        member = self._consumers.get(request.header.group)
        table = {} if member is None else member.positions(request.header.topic)
        return Response(body=encode_body(GetConsumerStatusBody(message_queue_table=table)))
