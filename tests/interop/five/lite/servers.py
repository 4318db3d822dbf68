"""Starts endpoints of RocketMQ 5.5, ours and Apache's (``proxyMode`` CLUSTER), as processes of their own.

In one process with its broker (LOCAL), Apache's cannot receive messages of lite topics.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.helpers.waiting import wait_for
from tests.interop import builds, probe, systems
from tests.interop.systems import SMALL_JAVA, Server, System

from cometmq.testing import free_port

VERSION = "5.5.0"
LITE_KEYS = {"enableLmq": "true", "enableMultiDispatch": "true"}
"""Without these keys, Apache's broker stores messages of lite topics only in their parent topic."""
TAKES_TLS = (*SMALL_JAVA, "-Dtls.server.mode=permissive")


def start_proxy(system: System, directory: Path, namesrv: str) -> Server:
    """Start Apache's or our endpoint; the process has its address."""
    directory.mkdir(parents=True)
    server = Server("proxy", system, directory, free_port())
    if system is System.COMETMQ:
        command = [sys.executable, "-m", "cometmq", "proxy", "-n", namesrv, "-p", str(server.port)]
        server.launch(command, {"HOME": str(directory)})
    else:
        server.launch(*_apache(server, namesrv))
    wait_for(lambda: _listens(server), f"the endpoint of {system.value} answers", systems.START_TIMEOUT_S)
    return server


def _apache(server: Server, namesrv: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of Apache's endpoint."""
    home = server.directory / "home"
    (home / "conf").mkdir(parents=True)
    logback = home / "conf" / "rmq.proxy.logback.xml"
    log = server.directory / "proxy.log"
    logback.write_text(systems.LOGBACK.format(file=log, package="org.apache.rocketmq.logging."))
    keys = {
        "rocketMQClusterName": systems.CLUSTER_NAME,
        "proxyMode": "CLUSTER",
        "namesrvAddr": namesrv,
        "grpcServerPort": server.port,
        "remotingListenPort": free_port(),
        "localServeAddr": "127.0.0.1",
    }
    configuration = server.directory / "rmq-proxy.json"
    configuration.write_text(json.dumps(keys))
    command = [
        *(builds.java(), *TAKES_TLS, *systems.JAVA_OPTIONS, f"-Duser.home={home}"),
        f"-Drmq.logback.configurationFile={logback}",
        *("-cp", f"{builds.apache_proxy(VERSION) / 'lib'}/*"),
        *("org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(configuration)),
    ]
    return command, {"ROCKETMQ_HOME": str(home), "RMQ_PROXY_HOME": str(home)}


def _listens(server: Server) -> bool:
    if not server.running:
        raise RuntimeError(f"the endpoint ended while it started\n{server.logs()}")
    return probe.port_open(server.address)
