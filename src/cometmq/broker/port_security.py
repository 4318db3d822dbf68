"""Security of a broker's ports: accounts, audit log, quotas and TLS."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cometmq.auth.access_control import guard_of, open_access, open_audit, own_security
from cometmq.auth.metrics import of_access
from cometmq.auth.quota.limiter import Limiter
from cometmq.auth.quota.owners import TopicOwners
from cometmq.auth.quota.table import QuotaTable
from cometmq.broker.config import BrokerConfig
from cometmq.broker.stops import Stops
from cometmq.clock import Clock
from cometmq.metrics.family import Sample
from cometmq.remoting.tls.server import ServerTls


class BrokerAccess:
    """The accounts, audit log, quotas and TLS settings of a broker; disabled parts are ``None``.

    :param has_topic: returns whether a topic exists.
    :raises AuthError: the accounts cannot be read.
    :raises TlsError: a TLS file cannot be used.
    """

    def __init__(self, config: BrokerConfig, has_topic: Callable[[str], bool], *, clock: Clock) -> None:
        root = Path(config.store_path_root_dir)
        users = Path(config.auth_config_path) if config.auth_config_path else root / "config" / "auth.json"
        self.audit: Final = open_audit(config, root / "audit" / "audit.log", config.broker_name, clock=clock)
        self.accounts: Final = open_access(config, users, config.broker_cluster_name, self.audit, clock=clock)
        self.guard: Final = guard_of(self.accounts, self.audit)
        self.topic_owners: Final = TopicOwners(root / "config" / "quotaTopics.json", has_topic, clock=clock)
        quotas = QuotaTable(root / "config" / "quotas.json")
        on_denial = None if self.audit is None else self.audit.denied_by_quota
        self.limiter: Final = Limiter(quotas, self.topic_owners, has_topic, on_denial, clock=clock)
        self.tls: Final = ServerTls(config, clock=clock)
        self.own: Final = dataclasses.replace(own_security(config), tls=config.outgoing_tls)
        """Return the account and TLS settings that the broker uses for requests to other servers."""

    def samples(self) -> Iterator[Sample]:
        """Return the metrics samples for accounts, audit log and quotas."""
        return of_access(None if self.accounts is None else self.accounts.guard, self.limiter, self.audit)

    def start(self, stops: Stops) -> None:
        """Start the audit log, and check periodically for changed accounts."""
        stops.add("topics of quotas", self.topic_owners.save)
        if self.audit is not None:
            self.audit.start()
            stops.add("audit log", self.audit.stop)
        if self.accounts is not None:
            self.accounts.start()
            stops.add("accounts", self.accounts.stop)
