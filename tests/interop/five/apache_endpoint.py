"""Starts Apache's broker and endpoint of RocketMQ 5 in one process (``proxyMode`` LOCAL)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.helpers.waiting import wait_for
from tests.interop import builds, probe, systems
from tests.interop.systems import Server, System

from cometmq.remoting.tls.own_authority import self_signed
from cometmq.testing import free_port

VERSION = "5.5.0"


def start_apache(
    directory: Path, namesrv: str, broker_keys: Mapping[str, str], java_options: Sequence[str]
) -> tuple[Server, str]:
    """Start both; return the process, whose address is the broker's, and the address of the endpoint."""
    home = directory / "home"
    (home / "conf").mkdir(parents=True)
    logback = home / "conf" / "rmq.proxy.logback.xml"
    logback.write_text(systems.LOGBACK.format(file=directory / "proxy.log", package="org.apache.rocketmq.logging."))
    server = Server("broker", System.APACHE55, directory, free_port())
    broker = systems.broker_keys(server, broker_keys)
    (directory / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in broker.items()))
    certificate = directory / "certificate.pem"
    certificate.write_bytes(self_signed())
    port = free_port()
    proxy = {
        "rocketMQClusterName": systems.CLUSTER_NAME,
        "proxyMode": "LOCAL",
        "namesrvAddr": namesrv,
        "brokerConfigPath": str(directory / "broker.conf"),
        "grpcServerPort": port,
        "remotingListenPort": free_port(),
        "localServeAddr": "127.0.0.1",
        "tlsTestModeEnable": False,
        "tlsCertPath": str(certificate),
        "tlsKeyPath": str(certificate),
    }
    configuration = directory / "rmq-proxy.json"
    configuration.write_text(json.dumps(proxy))
    # Servers without a certificate make one each, which is half of the work of their start.
    files = ("-Dtls.test.mode.enable=false", *(f"-Dtls.server.{what}Path={certificate}" for what in ("cert", "key")))
    options = [*java_options, *files, *systems.JAVA_OPTIONS, f"-Duser.home={home}"]
    command = [
        *(builds.java(), *options, f"-Drmq.logback.configurationFile={logback}"),
        *("-cp", f"{builds.apache_proxy(VERSION) / 'lib'}/*"),
        *("org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(configuration)),
    ]
    server.launch(command, {"ROCKETMQ_HOME": str(home), "RMQ_PROXY_HOME": str(home)})
    server.wait_ready(namesrv)
    try:
        wait_for(lambda: probe.port_open(f"127.0.0.1:{port}"), "Apache's endpoint answers", systems.START_TIMEOUT_S)
    except TimeoutError:
        server.close()
        raise
    return server, f"127.0.0.1:{port}"
