"""The console's server: uvicorn on the running event loop, with an open socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.console.app import build
from cometmq.console.console import Console
from cometmq.console.limits import MAX_CONNECTIONS
from cometmq.console.listening import listen
from cometmq.console.options import ConsoleOptions
from cometmq.message.hosts import address_here

_HEAD_BYTES = 64 * 1024
_STOP_SECONDS = 2


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the command that runs it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class ConsoleServer:
    """Serves one console over HTTP or HTTPS.

    :param listening: a listening socket, for example from `serve`. By default, the options determine the socket.
    """

    def __init__(
        self, options: ConsoleOptions, *, listening: socket.socket | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.console = Console(options, clock=clock)
        self._options = options
        self._listening = listening
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Return the address of the first page, for browsers on this machine."""
        scheme = "https" if self._options.certificate else "http"
        return f"{scheme}://{address_here(self._options.host, self.console.port)}"

    async def start(self) -> None:
        """Start serving the console.

        :raises ConsolePortError: the port is in use, or the address does not belong to this machine.
        :raises ConsoleRefusedError: the console would be accessible to strangers.
        """
        listening = self._listening or listen(self._options.host, self._options.port)
        try:
            self.console.port = listening.getsockname()[1]
            await self.console.start()
        except BaseException:
            listening.close()
            await self.console.stop()
            raise
        config = uvicorn.Config(
            build(self.console),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            ssl_certfile=self._options.certificate,
            ssl_keyfile=self._options.key,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        listens = asyncio.create_task(self._server.listens.wait())
        await asyncio.wait({listens, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        listens.cancel()
        if self._serving.done():
            await self._serving

    async def stop(self) -> None:
        """Stop serving, and close the console."""
        self.console.streams.stopping.set()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
            self._server = self._serving = None
        await self.console.stop()
