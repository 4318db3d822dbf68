"""Hooks of a server that runs."""

from __future__ import annotations

from dataclasses import replace

from cometmq.remoting.processors import RpcHook
from cometmq.remoting.server import RemotingServer


def add_hooks(server: RemotingServer, *hooks: RpcHook) -> None:
    """Let the requests of a server pass through further hooks from now on."""
    server.path = replace(server.path, hooks=(*server.path.hooks, *hooks))
