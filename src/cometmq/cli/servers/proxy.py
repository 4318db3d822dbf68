"""``cometmq proxy``: run the gRPC endpoint in front of several brokers, configured by Apache's ``rmq-proxy.json``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cometmq.cli.contexts import NAMESRV_VARIABLE
from cometmq.cli.local_path import LocalPath
from cometmq.cli.servers.logs import log_options
from cometmq.cli.servers.memory import tune_memory
from cometmq.cli.servers.process import (
    Stopping,
    announce,
    parse_overrides,
    run_server,
    run_service,
    set_option,
    show_config_keys,
    warn,
)


@click.command("proxy")
@click.option("-c", "--config", type=LocalPath(path_type=Path), help="Configuration file (Apache's rmq-proxy.json).")
@click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT[;…]",
    help=f"The brokers' nameservers. By default, they are read from the file or from ${NAMESRV_VARIABLE}.",
)
@click.option(
    "-p", "--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0 selects a free port (grpcServerPort)."
)
@click.option("--host", help="Address to listen on (bindAddress).")
@set_option
@click.option("--help-config", is_flag=True, help="Print every configuration key with its meaning.")
@log_options
def command(
    config: Path | None,
    namesrv: str | None,
    port: int | None,
    host: str | None,
    settings: tuple[str, ...],
    help_config: bool,
) -> None:
    """Serve RocketMQ 5 clients (gRPC) in front of CometMQ or Apache RocketMQ brokers.

    `cometmq serve` and `cometmq broker -o grpcServerPort=8081` do not need a proxy.
    """
    from cometmq.proxy.proxy_config import ProxyConfig, load_proxy_config
    from cometmq.proxy.standalone import FleetProxy

    if help_config:
        show_config_keys(ProxyConfig)
        return
    given = {"namesrvAddr": namesrv, "grpcServerPort": port, "bindAddress": host}
    named = tuple(f"{key}={value}" for key, value in given.items() if value is not None)
    overrides: dict[str, Any] = parse_overrides(ProxyConfig, named + settings)
    loaded, warnings = load_proxy_config(config, overrides)
    if not loaded.namesrv_addr:
        overrides["namesrv_addr"] = os.environ.get(NAMESRV_VARIABLE, "")
        loaded, warnings = load_proxy_config(config, overrides)
    for line in warnings:
        warn(line)

    async def main(stopping: Stopping) -> None:
        proxy = FleetProxy(loaded)
        async with run_service(proxy, what="proxy", port=loaded.grpc_server_port):
            tune_memory()
            announce(f"CometMQ proxy ready: gRPC {proxy.address}")
            await stopping.wait()

    run_server(main)
