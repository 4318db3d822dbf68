"""``cometmq serve``: a nameserver and one or more brokers on this machine, from one command."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.contexts import NO_CONTEXT
from cometmq.cli.output import say
from cometmq.cli.servers.console_options import console_url_option, reports_option
from cometmq.cli.servers.logs import log_options
from cometmq.cli.servers.memory import tune_memory
from cometmq.cli.servers.ports import PORTS_PER_BROKER, ServePorts, port_options
from cometmq.cli.servers.process import (
    Stopping,
    advertise_option,
    announce,
    begin_anew_option,
    data_option,
    listener_option,
    parse_overrides,
    run_server,
    run_service,
    set_option,
    tell_data,
    warn,
)
from cometmq.console.origins import Origin
from cometmq.errors import SERVER, CometMQError, require
from cometmq.message.hosts import address_here, format_address
from cometmq.message.listeners import (
    EVERY_CLIENT,
    Advertised,
    format_advertised,
    parse_advertised,
    parse_listeners,
)
from cometmq.metrics.options import PROM
from cometmq.options import options_of

if TYPE_CHECKING:
    from cometmq.broker.controller import Broker

_EVERYWHERE = ("0.0.0.0", "::")


@click.command("serve")
@click.option(
    "--brokers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of brokers. Several brokers use more CPU cores.",
)
@data_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 accepts connections from other machines.",
)
@advertise_option
@listener_option
@port_options
@click.option("--no-console", is_flag=True, help="Do not start the web console.")
@console_url_option("--console-url")
@click.option("--allow-changes", is_flag=True, help="Allow visitors to make changes in the console.")
@reports_option
@click.option("--no-metrics", is_flag=True, help="Do not serve metrics and health checks.")
@click.option("--no-grpc", is_flag=True, help="Do not serve RocketMQ 5 clients.")
@set_option
@begin_anew_option
@log_options
def command(
    brokers: int,
    data: Path,
    host: str,
    advertise: tuple[str, ...],
    listeners: tuple[str, ...],
    ports: ServePorts,
    no_console: bool,
    urls: tuple[Origin, ...],
    allow_changes: bool,
    reports: Path | None,
    no_metrics: bool,
    no_grpc: bool,
    settings: tuple[str, ...],
    begin_anew: bool,
) -> None:
    """Run a nameserver and brokers on this machine.

    A single broker runs in the nameserver's process. With --brokers N, each broker runs in its own process with its own
    store, and is restarted if it dies. Topics are spread over all brokers.
    """
    require("cometmq serve", SERVER, "numpy", "h11")
    if ports.broker == ports.namesrv != 0:
        both = f"--port and --namesrv-port are both {ports.broker}"
        raise click.UsageError(f"{both}; nameserver and broker need different ports")
    advertised = _advertised(advertise, listeners)
    options = ServeOptions(
        data=data.absolute(),
        host=host,
        advertised=advertised,
        listeners=",".join(listeners),
        ports=replace(
            ports,
            metrics=None if no_metrics else ports.metrics,
            grpc=None if no_grpc else ports.grpc,
            console=None if no_console else ports.console,
        ),
        console_urls=urls,
        allow_changes=allow_changes,
        reports=reports,
        settings=settings,
        begin_anew=begin_anew,
        log_options=_log_options(),
    )

    tell_data(options.data)

    async def main(stopping: Stopping) -> None:
        await (
            _serve_in_one_process(options, stopping)
            if brokers == 1
            else _serve_in_processes(options, brokers, stopping)
        )

    run_server(main)


@dataclass(frozen=True)
class ServeOptions:
    """The options of `serve`: its services' addresses, data directory and logs."""

    data: Path
    host: str
    advertised: Mapping[str, Advertised]
    """Addresses at which clients reach the first broker, by listener. Other brokers use higher ports."""
    listeners: str
    ports: ServePorts
    console_urls: tuple[Origin, ...]
    allow_changes: bool
    reports: Path | None
    settings: tuple[str, ...]
    begin_anew: bool
    """True to start brokers even if their log is missing. It applies only to the first start of each process."""
    log_options: tuple[str, ...]

    def broker_keys(self, number: int, namesrv_address: str) -> tuple[str, ...]:
        """Return one broker's configuration as ``key=value`` texts. The user's settings are last, so they take
        precedence.
        """
        advertised: tuple[str, ...] = () if self.host in _EVERYWHERE else (f"brokerIP1={self.host}",)
        if self.advertised:
            distance = number * PORTS_PER_BROKER
            own = {
                name: address._replace(port=address.port and address.port + distance)
                for name, address in self.advertised.items()
            }
            advertised += (f"advertisedListeners={format_advertised(own)}",)
        return (
            f"brokerName=broker-{number}",
            f"namesrvAddr={namesrv_address}",
            f"bindAddress={self.host}",
            f"listenPort={self.ports.broker_port(number)}",
            f"storePathRootDir={self.data / f'broker-{number}'}",
            *advertised,
            *self.metrics_keys(1 + number),
            *self.settings,
        )

    def metrics_keys(self, number: int) -> tuple[str, ...]:
        """Return one server's configuration keys for metrics. Server 0 is the nameserver; brokers start at 1."""
        port = self.ports.metrics_port(number)
        if port is None:
            return ()
        return f"metricsExporterType={PROM}", f"metricsPromExporterPort={port}"


def _log_options() -> tuple[str, ...]:
    """Return this command's log options, for the processes that it starts."""
    given = click.get_current_context().params
    options: tuple[str, ...] = ("--log-level", given["log_level"], "--log-format", given["log_format"])
    if given["log_file"] is not None:
        options += ("--log-file", str(given["log_file"].absolute()))
    return options


def _advertised(advertise: tuple[str, ...], listeners: tuple[str, ...]) -> Mapping[str, Advertised]:
    """Check and return the advertised addresses by listener.

    :raises click.UsageError: a value is malformed, a listener has no address, or an address has no listener.
    """
    try:
        advertised, known = parse_advertised(",".join(advertise)), parse_listeners(",".join(listeners))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    named, asked = set(advertised) - {EVERY_CLIENT}, {*known.ports, *(name for name, _ in known.networks)}
    for name in sorted(named - asked):
        raise click.UsageError(f"the address of {name} has no listener; add --listener {name}=PORT or {name}=NETWORK")
    for name in sorted(asked - named):
        raise click.UsageError(f"listener {name} has no address; add --advertise {name}=HOST[:PORT]")
    return advertised


async def _start_nameserver(options: ServeOptions, services: AsyncExitStack) -> str:
    from cometmq.namesrv.config import NamesrvConfig
    from cometmq.namesrv.server import NameServer
    from cometmq.remoting.tls.options import with_tls_file

    shared = tuple(setting for setting in options.settings if setting.startswith("tls."))
    values = parse_overrides(NamesrvConfig, shared + options.metrics_keys(0))
    config = NamesrvConfig(
        **with_tls_file(values),
        listen_port=options.ports.namesrv,
        listeners=options.listeners,
        bind_address=options.host,
        kv_config_path=str(options.data / "namesrv" / "kvConfig.json"),
    )
    server = NameServer(config)
    running = run_service(server, what="nameserver", port=options.ports.namesrv, option="--namesrv-port")
    await services.enter_async_context(running)
    return server.address


async def _start_console(options: ServeOptions, namesrv: str, services: AsyncExitStack) -> None:
    """Serve the console to this machine in a separate process, because rendering pages would delay messages here. If
    this fails, only a warning is printed. The socket is created here, so that a restarted console keeps its address.
    """
    if options.ports.console is None:
        return
    from cometmq.cli.servers.supervise import Child
    from cometmq.console.listening import listen
    from cometmq.console.options import ConsoleOptions

    console = ConsoleOptions(namesrv, options.data / "console", port=options.ports.console)
    try:
        listening = services.enter_context(listen(console.host, console.port))
        words = ["console", "--until-stdin-ends", f"--descriptor={listening.fileno()}"]
        words += [f"--context={NO_CONTEXT}", f"--namesrv={namesrv}"]
        words += [f"--data={console.data}", f"--audit-log={options.data}"]
        words += [*options.log_options, "--log-name=console"]
        words += [f"--url={url}" for url in options.console_urls]
        if options.allow_changes:
            words.append("--allow-changes")
        if options.reports is not None:
            words.append(f"--reports={options.reports}")
        child = Child("console", words, descriptors=[listening.fileno()])
        services.push_async_callback(child.stop)
        await child.start()
    except (OSError, CometMQError) as error:  # for example because no descriptor is left, or a package is missing
        warn(f"the console is not available: {error}")
        return
    say(f"Console at http://{address_here(console.host, listening.getsockname()[1])}\n")


async def _serve_in_one_process(options: ServeOptions, stopping: Stopping) -> None:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.controller import Broker
    from cometmq.remoting.tls.options import with_tls_file

    async with AsyncExitStack() as services:
        namesrv = await _start_nameserver(options, services)
        values: dict[str, Any] = parse_overrides(BrokerConfig, options.broker_keys(0, namesrv))
        broker = Broker(BrokerConfig(**with_tls_file(values)), begin_anew=options.begin_anew)
        await services.enter_async_context(
            run_service(broker, what="broker", port=options.ports.broker, option="--port")
        )
        await _start_endpoint(options, broker, services)
        tune_memory()
        if broker.monitor is not None and broker.monitor.url:
            say(f"Metrics at {broker.monitor.url}\n")
        announce(f"CometMQ ready: nameserver {namesrv}, broker {broker.address}, data in {options.data}")
        await _start_console(options, namesrv, services)
        await stopping.wait()


async def _start_endpoint(options: ServeOptions, broker: Broker, services: AsyncExitStack) -> None:
    """Start the endpoint for RocketMQ 5 clients."""
    if options.ports.grpc is None or broker.is_slave:
        return
    from cometmq.proxy.embedded import BrokerEndpoint

    endpoint = BrokerEndpoint(broker)
    services.push_async_callback(endpoint.stop)
    await endpoint.start(broker.config.grpc_server_port or options.ports.grpc)
    if endpoint.is_open:
        say(f"Clients of RocketMQ 5 (gRPC) at {endpoint.address}\n")


async def _start_proxy(options: ServeOptions, namesrv: str, services: AsyncExitStack) -> None:
    """Start the endpoint for RocketMQ 5 clients in front of several brokers."""
    if options.ports.grpc is None:
        return
    from cometmq.proxy.proxy_config import ProxyConfig
    from cometmq.proxy.standalone import FleetProxy
    from cometmq.remoting.tls.options import with_tls_file

    shared = tuple(setting for setting in options.settings if setting.partition("=")[0] in options_of(ProxyConfig))
    values = parse_overrides(ProxyConfig, shared)
    port = {"namesrv_addr": namesrv, "bind_address": options.host, "grpc_server_port": options.ports.grpc}
    proxy = FleetProxy(ProxyConfig(**with_tls_file({**port, **values})))
    services.push_async_callback(proxy.stop)
    try:
        await proxy.start()
    except OSError as error:
        warn(f"clients of RocketMQ 5 are not served: {error}; choose another port with --grpc-port")
    else:
        say(f"Clients of RocketMQ 5 (gRPC) at {proxy.address}\n")


async def _serve_in_processes(options: ServeOptions, brokers: int, stopping: Stopping) -> None:
    from cometmq.cli.servers.supervise import Child

    async with AsyncExitStack() as services:
        namesrv = await _start_nameserver(options, services)
        for number in range(brokers):
            keys = [text for key in options.broker_keys(number, namesrv) for text in ("-o", key)]
            name = f"broker-{number}"
            logs = (*options.log_options, "--log-name", name)
            words = ("broker", "--until-stdin-ends", *logs, *keys)
            child = Child(name, words, at_first=("--begin-anew",) if options.begin_anew else ())
            services.push_async_callback(child.stop)
            await child.start()
        await _start_proxy(options, namesrv, services)
        tune_memory()
        addresses = f"{brokers} brokers from {format_address(options.host, options.ports.broker)} on"
        announce(f"CometMQ ready: nameserver {namesrv}, {addresses}, data in {options.data}")
        await _start_console(options, namesrv, services)
        await stopping.wait()
