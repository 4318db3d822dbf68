"""``cometmq broker``: run a single broker, configured by Apache's ``broker.conf``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.contexts import NAMESRV_VARIABLE
from cometmq.cli.failures import WrongUseError
from cometmq.cli.lazy_group import LazyGroup
from cometmq.cli.local_path import LocalPath
from cometmq.cli.servers.logs import log_options
from cometmq.cli.servers.memory import collect_rarely, tune_memory
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

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.controller import Broker


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
    "--bootstrap",
    is_flag=True,
    help="Found a set with the messages of this store if the engine has no document of it (failover).",
)
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
    bootstrap: bool,
    help_config: bool,
    until_stdin_ends: bool,
) -> None:
    """Run a broker, which stores messages and serves them to consumers.

    To configure running brokers, use `cometmq broker config`.
    """
    if ctx.invoked_subcommand is not None:
        return
    from cometmq.broker.config import BrokerConfig, load_broker_config

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
    if bootstrap and not loaded.failover:
        raise WrongUseError("--bootstrap founds a set that elects its master: set failover=etcd or failover=kubernetes")

    async def main(stopping: Stopping) -> None:
        if until_stdin_ends:
            stop_when_stdin_ends(stopping)
        await _run(loaded, stopping, begin_anew=begin_anew, bootstraps=bootstrap)

    run_server(main)


async def _run(config: BrokerConfig, stopping: Stopping, *, begin_anew: bool, bootstraps: bool) -> None:
    """Run a broker, or the member of a set, until it is asked to stop."""
    from cometmq.broker.controller import Broker
    from cometmq.broker.member.lives import LifeOptions
    from cometmq.broker.member.set_member import SetMember

    collect_rarely()
    service: Broker | SetMember
    if config.failover:
        service = SetMember(config, bootstraps=bootstraps, options=LifeOptions(begin_anew=begin_anew, extend=_add_grpc))
    else:
        service = Broker(config, begin_anew=begin_anew)
    async with run_service(service, what="broker", port=config.listen_port):
        if isinstance(service, Broker):
            await _add_grpc(service)
        tune_memory()
        announce(f"CometMQ broker {service.config.broker_name} ready: {service.address}")
        await stopping.wait()


async def _add_grpc(broker: Broker) -> None:
    """Start a master's endpoint for RocketMQ 5 clients, which stops with the broker."""
    if broker.config.grpc_server_port and not broker.is_slave:
        from cometmq.proxy.embedded import BrokerEndpoint

        endpoint = BrokerEndpoint(broker)
        broker.on_stop("gRPC endpoint", endpoint.stop)
        await endpoint.start(broker.config.grpc_server_port)
