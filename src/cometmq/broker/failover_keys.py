"""The configuration keys of failover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.broker.limits import MAX_FAILOVER_MEMBER_CHARS
from cometmq.options import ApacheRules, ConfigError, option
from cometmq.options.forms import PATH, one_of, text

ETCD: Final = "etcd"
KUBERNETES: Final = "kubernetes"
_STRICT: Final = ApacheRules(outside="refused", stripped=True)


@dataclass(frozen=True)
class FailoverKeys:
    """The options of failover, as a base class for the broker's configuration."""

    failover: str = option(
        "",
        "The engine that keeps who is the master: the brokers with this brokerName then elect their master themselves. "
        "Empty: brokerRole says who it is. See docs/failover.md.",
        form=one_of("", ETCD, KUBERNETES),
        apache=_STRICT,
    )
    failover_member: str = option(
        "",
        "failover: name of this broker among those with the same brokerName. Empty: brokerIP1-listenPort.",
        form=text(
            rf"(?:[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_FAILOVER_MEMBER_CHARS - 1}}})?",
            f"at most {MAX_FAILOVER_MEMBER_CHARS} letters, digits, '.', '_' and '-', beginning with a letter or digit",
        ),
        apache=_STRICT,
    )
    failover_prefix: str = option(
        "cometmq",
        "failover=etcd: beginning of the keys. Two clusters that share etcd and a brokerClusterName need two prefixes.",
        form=text(r"/?[\w.-]+(?:/[\w.-]+)*", "names joined by /"),
        apache=_STRICT,
    )
    failover_lease_ms: int = option(
        4_000,
        "failover: time without news from the master after which another member may take over, in milliseconds. "
        "Heartbeats are sent every quarter of it.",
        minimum=2_000,
        maximum=60_000,
    )
    broker_election_priority: int = option(
        2**31 - 1,
        "failover: among members with equally long logs, the one with the lowest number becomes the master.",
        minimum=0,
        maximum=2**31 - 1,
    )
    etcd_endpoints: str = option(
        "",
        "failover=etcd: URLs of etcd's client ports, separated by semicolons, such as https://a:2379;https://b:2379.",
        form=text(
            r"(?:https?://[^\s;/]+:\d+/?(?:;https?://[^\s;/]+:\d+/?)*;?)?",
            "URLs such as https://a:2379, separated by semicolons",
        ),
        apache=_STRICT,
    )
    etcd_user: str = option("", "failover=etcd: user of etcd. Empty: etcd does not check users.")
    etcd_password_file: str = option("", "failover=etcd: file with the password of etcdUser.", form=PATH)
    etcd_ca_file: str = option(
        "", "failover=etcd: certificates of the authorities that sign etcd's certificates (PEM).", form=PATH
    )
    etcd_cert_file: str = option("", "failover=etcd: this broker's certificate for etcd (PEM).", form=PATH)
    etcd_key_file: str = option("", "failover=etcd: key of etcdCertFile (PEM).", form=PATH)
    kubernetes_namespace: str = option(
        "",
        "failover=kubernetes: namespace of the leases. Empty: the pod's.",
        form=text(r"[a-z0-9-]{0,63}", "the name of a namespace"),
    )


def check_keys(keys: FailoverKeys, *, has_role: bool) -> None:
    """Check that the keys of failover fit together.

    :param has_role: True if the configuration also names a role or an id.
    :raises ConfigError: a key is missing, or two contradict each other.
    """
    if keys.failover and has_role:
        raise ConfigError(
            f"failover={keys.failover}: the members of a set elect their master",
            next_step="remove brokerRole and brokerId, or failover",
        )
    if keys.failover == ETCD and not keys.etcd_endpoints:
        raise ConfigError(
            "failover=etcd needs etcdEndpoints", next_step="set etcdEndpoints=https://host:2379 for each member of etcd"
        )
    if bool(keys.etcd_user) != bool(keys.etcd_password_file):
        raise ConfigError("etcdUser and etcdPasswordFile belong together", next_step="set both or neither")
    if keys.etcd_key_file and not keys.etcd_cert_file:
        raise ConfigError("etcdKeyFile needs etcdCertFile", next_step="set both or neither")
