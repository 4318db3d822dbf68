"""Asks nameservers and brokers on behalf of administration, and decodes what they answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from cometmq.client.errors import BrokerError, ClientError
from cometmq.client.instance import ClientInstance
from cometmq.message.names import MASTER_ID
from cometmq.remoting.bodies import ClusterInfo, TopicRouteData, decode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import Header

T = TypeVar("T")


class AdminRequests:
    """Every call may raise ``BrokerError`` (refused) and ``RemotingError`` (no answer)."""

    def __init__(self, instance: ClientInstance, timeout_s: float) -> None:
        self._instance = instance
        self._timeout_s = timeout_s

    async def cluster_info(self) -> ClusterInfo:
        """All clusters and brokers that the nameserver knows."""
        return await self.namesrv(ClusterInfo, RequestCode.GET_BROKER_CLUSTER_INFO, None, "asking for the cluster")

    async def masters(self, cluster: str | None) -> dict[str, str]:
        """brokerName → address of its master, of one cluster or of all."""
        info = await self.cluster_info()
        return {
            name: broker.broker_addrs[MASTER_ID]
            for name, broker in sorted(info.broker_addr_table.items())
            if MASTER_ID in broker.broker_addrs and cluster in (None, broker.cluster)
        }

    async def route(self, topic: str) -> TopicRouteData:
        """Where a topic lives."""
        return (await self._instance.routes.refresh(topic)).data

    async def targets(self, cluster: str | None, broker_address: str | None) -> Sequence[str]:
        """The broker given, or all masters of the cluster, or of all.

        :raises ClientError: there is none.
        """
        if broker_address is not None:
            return (broker_address,)
        masters = await self.masters(cluster)
        if not masters:
            raise ClientError(
                "the nameserver knows no broker"
                if cluster is None
                else f"the nameserver knows no master of cluster {cluster}",
                next_step="start a broker that registers at this nameserver, or check the names",
            )
        return list(masters.values())

    async def brokers_of(self, topic: str) -> Iterable[str]:
        """The addresses of the brokers that hold a topic."""
        return (await self.named_brokers_of(topic)).values()

    async def named_brokers_of(self, topic: str) -> dict[str, str]:
        """brokerName → address of the brokers that hold a topic, masters where there are any."""
        data = await self.route(topic)
        return {
            broker.broker_name: broker.broker_addrs.get(MASTER_ID) or next(iter(broker.broker_addrs.values()))
            for broker in data.broker_datas
            if broker.broker_addrs
        }

    async def first_answer(self, kind: type[T], broker_address: str | None, code: int, header: Header, doing: str) -> T:
        """The answer of the first broker that does not refuse."""
        failure: BrokerError | None = None
        for address in await self.targets(None, broker_address):
            try:
                return await self.broker(kind, address, code, header, doing)
            except BrokerError as error:
                failure = error
        assert failure is not None
        raise failure

    async def call(
        self, address: str, code: int, header: Header | None = None, body: bytes = b"", *, doing: str
    ) -> bytes:
        """The body of a successful answer."""
        answer = await self._instance.call(address, code, header, body, doing=doing, timeout_s=self._timeout_s)
        return answer.body

    async def broker(self, kind: type[T], address: str, code: int, header: Header | None, doing: str) -> T:
        """The answer of a broker."""
        return decode_body(kind, await self.call(address, code, header, doing=doing))

    async def namesrv(self, kind: type[T], code: int, header: Header | None, doing: str) -> T:
        """The answer of a nameserver."""
        answer = await self._instance.routes.ask_namesrv(code, header, timeout_s=self._timeout_s)
        return decode_body(kind, self._instance.expect(answer, self._instance.routes.namesrv[0], doing).body)
