"""``cometmq namesrv``: run a single nameserver, configured by Apache's ``namesrv.conf``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cometmq.cli.lazy_group import LazyGroup
from cometmq.cli.local_path import LocalPath
from cometmq.cli.servers.logs import log_options
from cometmq.cli.servers.memory import tune_memory
from cometmq.cli.servers.process import (
    Stopping,
    announce,
    listener_option,
    parse_overrides,
    run_server,
    run_service,
    set_option,
    show_config_keys,
    warn,
)


@click.group(
    "namesrv",
    cls=LazyGroup,
    members={"config": ("admin.namesrv_config", "Show and change the configuration of running nameservers.")},
    package="cometmq.cli",
    invoke_without_command=True,
)
@click.option("-c", "--config", type=LocalPath(path_type=Path), help="Configuration file (Apache's namesrv.conf).")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0 selects a free port (listenPort)."
)
@listener_option
@click.option("--host", help="Address to listen on (bindAddress).")
@set_option
@click.option(
    "--help-config", is_flag=True, help="Print every configuration key with its meaning, as a namesrv.conf file."
)
@log_options
@click.pass_context
def command(
    ctx: click.Context,
    config: Path | None,
    port: int | None,
    listeners: tuple[str, ...],
    host: str | None,
    settings: tuple[str, ...],
    help_config: bool,
) -> None:
    """Run a nameserver, where brokers register and clients look up the routes of topics.

    To configure running nameservers, use `cometmq namesrv config`.
    """
    if ctx.invoked_subcommand is not None:
        return
    from cometmq.namesrv.config import NamesrvConfig, load_namesrv_config
    from cometmq.namesrv.server import NameServer

    if help_config:
        show_config_keys(NamesrvConfig)
        return
    overrides: dict[str, Any] = parse_overrides(NamesrvConfig, settings)
    if port is not None:
        overrides["listen_port"] = port
    if host is not None:
        overrides["bind_address"] = host
    if listeners:
        overrides["listeners"] = ",".join(listeners)
    loaded, warnings = load_namesrv_config(config, **overrides)
    for line in warnings:
        warn(line)

    async def main(stopping: Stopping) -> None:
        server = NameServer(loaded)
        async with run_service(server, what="nameserver", port=loaded.listen_port):
            tune_memory()
            announce(f"CometMQ nameserver ready: {server.address}")
            await stopping.wait()

    run_server(main)
