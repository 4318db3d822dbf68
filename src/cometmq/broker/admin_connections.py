"""Who is connected: consumers of a group (203), producers of a group (204), all producers (328).

(``AdminBrokerProcessor``.)
"""

from __future__ import annotations

from cometmq.broker.clients import ClientChannel, ClientRegistry
from cometmq.remoting.bodies import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    NoHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection


class ConnectionAdmin:
    """Answers administrators about connected clients."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes about connected clients."""
        code = RequestCode
        processors.register(code.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionListRequestHeader, self.consumers)
        processors.register(code.GET_PRODUCER_CONNECTION_LIST, GetProducerConnectionListRequestHeader, self.producers)
        processors.register(code.GET_ALL_PRODUCER_INFO, NoHeader, self.all_producers)

    def consumers(
        self, _connection: ServerConnection, request: Request[GetConsumerConnectionListRequestHeader], _body: bytes
    ) -> Response:
        """GET_CONSUMER_CONNECTION_LIST (203)."""
        name = request.header.consumer_group
        group = self._clients.consumers.get(name)
        if group is None:
            return Response(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{name}] not online")
        return Response(
            body=encode_body(
                ConsumerConnection(
                    connection_set=[_describe(channel) for channel in group.channels.values()],
                    subscription_table=group.subscriptions,
                    consume_type=group.consume_type,
                    message_model=group.message_model,
                    consume_from_where=group.consume_from_where,
                )
            )
        )

    def producers(
        self, _connection: ServerConnection, request: Request[GetProducerConnectionListRequestHeader], _body: bytes
    ) -> Response:
        """GET_PRODUCER_CONNECTION_LIST (204)."""
        name = request.header.producer_group
        channels = self._clients.producers.groups.get(name)
        if channels is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")
        listed = [_describe(channel) for channel in channels.values()]
        return Response(body=encode_body(ProducerConnection(connection_set=listed)))

    def all_producers(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """GET_ALL_PRODUCER_INFO (328)."""
        table = {
            name: [
                ProducerInfo(
                    client_id=channel.client_id,
                    remote_ip=f"/{channel.connection.remote_address}",
                    language=channel.language,
                    version=channel.version,
                    last_update_timestamp=channel.last_update_ms,
                )
                for channel in channels.values()
            ]
            for name, channels in self._clients.producers.groups.items()
        }
        return Response(body=encode_body(ProducerTableInfo(data=table)))


def _describe(channel: ClientChannel) -> Connection:
    return Connection(
        client_id=channel.client_id,
        client_addr=channel.connection.remote_address,
        language=channel.language,
        version=channel.version,
    )
