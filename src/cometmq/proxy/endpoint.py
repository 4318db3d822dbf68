"""The endpoint: the list of its parts, and the order in which they start and stop."""

from __future__ import annotations

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.proxy.backend.backend import Answer, Backend
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.context import Checker, EndpointContext
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.server import GrpcServer
from cometmq.proxy.service import methods_of
from cometmq.proxy.services.commands import ClientCommands
from cometmq.proxy.services.transactions import TransactionService
from cometmq.proxy.sessions import ClientSession, Sessions
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import Header
from cometmq.remoting.tls.server import ServerTls


class GrpcEndpoint:
    """The gRPC endpoint before some brokers."""

    def __init__(
        self,
        backend: Backend,
        *,
        tls: ServerTls,
        checker: Checker,
        config: EndpointConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.sessions = Sessions(backend, clock)
        self._backend = backend
        context = EndpointContext(config or EndpointConfig(), backend, self.sessions, checker, clock)
        self._transactions = TransactionService(context)
        self.renewals = Renewals(context.config, self.sessions, clock)
        self._commands = ClientCommands(context)
        methods = methods_of(context, self._transactions, self.renewals, self._commands)
        self.server = GrpcServer(methods, tls=tls, clock=clock)
        self.sessions.on_command = self._asked

    @property
    def port(self) -> int:
        """The port of the endpoint."""
        return self.server.port

    async def start(self, host: str, port: int) -> None:
        """Connect to the brokers and listen; port 0 takes a free one.

        :raises OSError: the port is taken or not allowed.
        """
        await self._backend.start()
        await self.server.start(host, port)
        self.sessions.start()
        self.renewals.start()

    async def stop(self) -> None:
        """End all calls, and leave the brokers."""
        await self.server.stop()
        await self.renewals.stop()
        await self.sessions.stop()
        await self._backend.stop()

    def cut_off(self) -> None:
        """End all connections at once, as the system does for a killed process."""
        self.server.cut_off()

    def _asked(
        self, session: ClientSession, broker: str, code: int, header: Header | dict[str, str], body: bytes, give: Answer
    ) -> None:
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            self._transactions.check(session, broker, header, body)
        elif code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
            self._commands.ask(session, broker, code, header, body, give)
