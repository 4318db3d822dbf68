"""A cluster, and the MCP package's own client on the server of its tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from cometmq.client import Admin
from cometmq.client.instance import ClientInstance
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.integrations.mcp.calls import Calls
from cometmq.integrations.mcp.options import McpOptions
from cometmq.integrations.mcp.serving import make_server
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials
from cometmq.testing import Cluster

Answer = dict[str, Any]


class Agent:
    """An MCP client, and what its server wrote down."""

    def __init__(self, client: Client, calls: Calls) -> None:
        self.client = client
        self.calls = calls

    async def ask(self, tool: str, **arguments: Any) -> Answer:
        """Call a tool that must succeed."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        answer: Answer = result.structured_content
        assert json.loads(result.content[0].text) == answer  # type: ignore[union-attr]
        return answer

    async def fail(self, tool: str, **arguments: Any) -> str:
        """Call a tool that must fail; return the error."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        text: str = result.content[0].text  # type: ignore[union-attr]
        return text

    async def change(self, tool: str, **arguments: Any) -> Answer:
        """Plan a change and carry it out."""
        plan = await self.ask(tool, dry_run=True, **arguments)
        assert plan["status"] == "PLANNED"
        done = await self.ask(tool, confirm_token=plan["confirm_token"], **arguments)
        assert done["status"] == "EXECUTED"
        return done


@asynccontextmanager
async def connected(client: Client) -> AsyncIterator[Client]:
    """Connect a client in a task of its own, since fixtures begin and end in different tasks."""
    ready, done = asyncio.Event(), asyncio.Event()

    async def keep() -> None:
        async with client:
            ready.set()
            await done.wait()

    task = asyncio.create_task(keep())
    await ready.wait()
    try:
        yield client
    finally:
        done.set()
        await task


MakeAgent = Callable[..., Awaitable[Agent]]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        await cluster.create_topic("orders", 1)
        yield cluster


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with Admin(instance=cluster.client_instance()) as admin:
        yield admin


@pytest.fixture
async def make_agent(tmp_path: Path) -> AsyncIterator[MakeAgent]:
    """Makes agents, each with a server of its own."""
    async with AsyncExitStack() as stack:

        async def make(
            cluster: Cluster, *, clock: Clock = SYSTEM_CLOCK, as_account: tuple[str, str] | None = None, **options: Any
        ) -> Agent:
            chosen = McpOptions(cluster.namesrv_address, tmp_path / "mcp", **options)
            instance = cluster.client_instance()
            if as_account is not None:
                instance = ClientInstance(cluster.namesrv_address, security=Security(Credentials(*as_account)))
            calls = Calls(chosen, clock=clock, instance=instance)
            await calls.start()
            stack.push_async_callback(calls.stop)
            return Agent(await stack.enter_async_context(connected(Client(make_server(calls)))), calls)

        yield make


@pytest.fixture
async def agent(cluster: Cluster, make_agent: MakeAgent) -> Agent:
    """An agent that may only read."""
    return await make_agent(cluster)


@pytest.fixture
async def writer(cluster: Cluster, make_agent: MakeAgent) -> Agent:
    """An agent that may write."""
    return await make_agent(cluster, allow_writes=True)
