"""Opens the engine that the configuration describes."""

from __future__ import annotations

import os
from pathlib import Path

from cometmq.broker.config import BrokerConfig
from cometmq.broker.failover.engines.etcd import EtcdEngine, EtcdOptions
from cometmq.broker.failover.engines.http_client import Endpoint, parse_endpoint
from cometmq.broker.failover.engines.interface import Engine
from cometmq.broker.failover.engines.kubernetes import ACCOUNT_DIRECTORY, KubernetesEngine, KubernetesOptions
from cometmq.broker.failover_keys import KUBERNETES
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import reason_of
from cometmq.options import ConfigError
from cometmq.remoting.tls.contexts import Tls


def open_engine(config: BrokerConfig, *, clock: Clock = SYSTEM_CLOCK) -> Engine:
    """Return this member's connection to its engine.

    :raises ConfigError: an endpoint is invalid, or this process does not run in Kubernetes.
    :raises TlsError: a file with a certificate cannot be used.
    """
    return _kubernetes(config, clock) if config.failover == KUBERNETES else _etcd(config, clock)


def _etcd(config: BrokerConfig, clock: Clock) -> Engine:
    tls = Tls(
        trust_cert_path=config.etcd_ca_file or None,
        cert_path=config.etcd_cert_file or None,
        key_path=config.etcd_key_file or None,
    )
    try:
        options = EtcdOptions(
            tuple(parse_endpoint(one) for one in config.etcd_endpoints.split(";") if one.strip()),
            config.broker_cluster_name,
            config.broker_name,
            prefix=f"/{config.failover_prefix.strip('/')}",
            user=config.etcd_user,
            password_file=config.etcd_password_file,
            tls=tls,
            lease_s=config.failover_lease_ms / 1000,
        )
    except ValueError as error:
        raise ConfigError(f"etcdEndpoints: {error}", next_step="name the client port of each member of etcd") from None
    return EtcdEngine(options, clock=clock)


def _kubernetes(config: BrokerConfig, clock: Clock) -> Engine:
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        raise ConfigError(
            "failover=kubernetes works only in a pod: KUBERNETES_SERVICE_HOST is not set",
            next_step="use failover=etcd, or run the broker in Kubernetes",
        )
    endpoint = Endpoint(host, int(os.environ.get("KUBERNETES_SERVICE_PORT", "443")), True)
    options = KubernetesOptions(
        endpoint,
        config.kubernetes_namespace or _namespace_of_pod(),
        config.broker_cluster_name,
        config.broker_name,
        lease_s=config.failover_lease_ms / 1000,
    )
    return KubernetesEngine(options, clock=clock)


def _namespace_of_pod() -> str:
    file = Path(ACCOUNT_DIRECTORY) / "namespace"
    try:
        return file.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read the pod's namespace from {file}: {reason_of(error)}",
            next_step="set kubernetesNamespace, and give the pod a service account",
        ) from None
