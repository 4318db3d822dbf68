"""``cometmq broker``: run a single broker, configured by Apache's ``broker.conf``."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click

from cometmq.cli.contexts import NAMESRV_VARIABLE
from cometmq.cli.lazy_group import LazyGroup
from cometmq.cli.local_path import LocalPath
from cometmq.cli.servers.logs import log_options
from cometmq.cli.servers.memory import tune_memory
from cometmq.cli.servers.process import (
    Stopping,
    advertise_option,
    announce,
    begin_anew_option,
    parse_overrides,
    run_server,
    run_service,
    set_option,
    show_config_keys,
    stop_when_stdin_ends,
    until_stdin_ends_option,
    warn,
)


@click.group(
    "broker",
    cls=LazyGroup,
    members={
        "config": ("admin.broker_config", "Show, change and compare the configuration of running brokers."),
        "drain": (
            "admin.broker_drain",
            "Stop new messages to a broker, and wait until consumers have read all its messages.",
        ),
    },
    package="cometmq.cli",
    invoke_without_command=True,
)
@click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT[;…]",
    help=f"Nameservers to register with. By default, they are read from the file or from ${NAMESRV_VARIABLE}.",
)
@click.option("-c", "--config", type=LocalPath(path_type=Path), help="Configuration file (Apache's broker.conf).")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0 selects a free port (listenPort)."
)
@click.option("--host", help="Address to listen on (bindAddress).")
@advertise_option
@click.option("--data", type=LocalPath(path_type=Path), help="Store directory (storePathRootDir).")
@set_option
@begin_anew_option
@click.option(
    "--help-config", is_flag=True, help="Print every configuration key with its meaning, as a broker.conf file."
)
@until_stdin_ends_option
@log_options
@click.pass_context
def command(
    ctx: click.Context,
    namesrv: str | None,
    config: Path | None,
    port: int | None,
    host: str | None,
    advertise: tuple[str, ...],
    data: Path | None,
    settings: tuple[str, ...],
    begin_anew: bool,
    help_config: bool,
    until_stdin_ends: bool,
) -> None:
    """Run a broker, which stores messages and serves them to consumers.

    To configure running brokers, use `cometmq broker config`.
    """
    if ctx.invoked_subcommand is not None:
        return
    from cometmq.broker.config import BrokerConfig, load_broker_config
    from cometmq.broker.controller import Broker

    if help_config:
        show_config_keys(BrokerConfig)
        return
    given = {
        "namesrvAddr": namesrv,
        "listenPort": port,
        "bindAddress": host,
        "storePathRootDir": data,
        "advertisedListeners": ",".join(advertise) or None,
    }
    named = tuple(f"{key}={value}" for key, value in given.items() if value is not None)
    overrides: dict[str, Any] = parse_overrides(BrokerConfig, named + settings)
    loaded, warnings = load_broker_config(config, **overrides)
    if not loaded.namesrv_addr:
        overrides["namesrv_addr"] = os.environ.get(NAMESRV_VARIABLE, "")
        loaded, warnings = load_broker_config(config, **overrides)
    for line in warnings:
        warn(line)

    async def main(stopping: Stopping) -> None:
        if until_stdin_ends:
            stop_when_stdin_ends(stopping)
        broker = Broker(loaded, begin_anew=begin_anew)
        async with AsyncExitStack() as services:
            await services.enter_async_context(run_service(broker, what="broker", port=loaded.listen_port))
            if loaded.grpc_server_port and not broker.is_slave:
                from cometmq.proxy.embedded import BrokerEndpoint

                endpoint = BrokerEndpoint(broker)
                services.push_async_callback(endpoint.stop)
                await endpoint.start(loaded.grpc_server_port)
            tune_memory()
            announce(f"CometMQ broker {broker.config.broker_name} ready: {broker.address}")
            await stopping.wait()

    run_server(main)
