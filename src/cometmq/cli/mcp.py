"""``cometmq mcp``: give agents the tools of a cluster, over stdio or HTTP."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import click

from cometmq.cli.connection import namesrv_alone
from cometmq.cli.failures import WrongUseError
from cometmq.cli.local_path import LocalPath
from cometmq.cli.output import notify
from cometmq.cli.servers.logs import log_options
from cometmq.cli.servers.memory import tune_memory
from cometmq.cli.servers.process import Stopping, default_data, run_server
from cometmq.errors import require
from cometmq.message.ports import MCP_PORT


def _patterns(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    try:
        return tuple(re.compile(value) for value in values)
    except re.error as error:
        raise click.BadParameter(f"not a regular expression: {error}") from None


@click.command("mcp")
@namesrv_alone
@click.option("--allow-writes", is_flag=True, help="Offer tools that change the cluster, in two steps.")
@click.option("--bodies/--no-bodies", default=True, show_default=True, help="Show message bodies, masked and cut.")
@click.option("--mask", multiple=True, callback=_patterns, help="Regular expression of texts to mask. May be repeated.")
@click.option("--dotted-names", is_flag=True, help="List tools as rmq.topic.list instead of rmq_topic_list.")
@click.option(
    "--call-timeout",
    type=click.FloatRange(1, 600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for a tool call.",
)
@click.option(
    "--data",
    type=LocalPath(path_type=Path),
    default=lambda: default_data() / "mcp",
    show_default="mcp in the user's data directory",
    help="Directory for the audit log.",
)
@click.option("--http", is_flag=True, help="Serve streamable HTTP instead of stdin and stdout.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address for HTTP; others need a token of yours.")
@click.option("--port", type=click.IntRange(0, 65_535), default=MCP_PORT, show_default=True, help="Port for HTTP.")
@click.option(
    "--token-file",
    type=LocalPath(path_type=Path),
    help="File with the token that HTTP clients must send.  [default: $COMETMQ_MCP_TOKEN, or a new one is shown]",
)
@click.option("--name", "names", multiple=True, help="Further host name of the HTTP server, for example of a proxy.")
@click.option("--certificate", type=LocalPath(path_type=Path), help="PEM file with the certificate for HTTPS.")
@click.option("--key", type=LocalPath(path_type=Path), help="PEM file with the certificate's private key.")
@log_options
def command(
    namesrv: str,
    allow_writes: bool,
    bodies: bool,
    mask: tuple[re.Pattern[str], ...],
    dotted_names: bool,
    call_timeout: float,
    data: Path,
    http: bool,
    host: str,
    port: int,
    token_file: Path | None,
    names: tuple[str, ...],
    certificate: Path | None,
    key: Path | None,
) -> None:
    """Serve a cluster's tools to agents over MCP (Model Context Protocol).

    Programs such as Claude Desktop and Cursor start this command and use stdin and stdout. Only tools that read are
    offered, unless --allow-writes is given. Every call is written to audit.log in the --data directory.
    """
    require("cometmq mcp", "mcp", "mcp")
    from cometmq.integrations.mcp.calls import Calls
    from cometmq.integrations.mcp.options import (
        LOOPBACK,
        TOKEN_VARIABLE,
        HttpOptions,
        McpOptions,
        new_token,
        read_token,
    )
    from cometmq.integrations.mcp.serving import serve_http, serve_stdio

    if not http and (token_file or names or certificate or key):
        raise WrongUseError("--token-file, --name, --certificate and --key belong to HTTP", next_step="add --http")
    options = McpOptions(namesrv, data, allow_writes, bodies, mask, dotted_names, call_timeout)
    listening, made = None, ""
    if http:
        token = os.environ.get(TOKEN_VARIABLE, "") if token_file is None else read_token(token_file)
        made = new_token() if not token and host in LOOPBACK else ""
        listening = HttpOptions(token or made, host, port, names, certificate, key)

    def ready(url: str) -> None:
        tune_memory()
        if made:
            notify(f"Clients send the header: Authorization: Bearer {made} (${TOKEN_VARIABLE} sets another token)")
        notify(f"CometMQ MCP server ready: {url}")

    async def main(stopping: Stopping) -> None:
        calls = Calls(options)
        await calls.start()
        try:
            if listening is not None:
                await serve_http(calls, listening, ready, stopping.wait())
                return
            serving = asyncio.ensure_future(serve_stdio(calls))
            stopped = asyncio.ensure_future(stopping.wait())
            await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                await calls.stop()
                os._exit(0)  # a thread still reads stdin, which may never end
            stopped.cancel()
            await serving
        finally:
            await calls.stop()

    run_server(main, is_server=http)
