"""The configuration keys of replication between a master and its slaves."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.broker.limits import MAX_TRANSFER_BYTES
from cometmq.options import ApacheRules, option


@dataclass(frozen=True)
class ReplicationKeys:
    """The options of replication, as a base class for the broker's configuration."""

    ha_listen_port: int = option(
        0, "Port that slaves connect to. 0: listenPort + 1, or a free port if listenPort is 0.", maximum=65_535
    )
    ha_master_address: str = option(
        "",
        "SLAVE: host:port from which to copy the master's log. Empty: the address from the nameservers.",
        apache=ApacheRules(stripped=True),
    )
    ha_send_heartbeat_interval: int = option(
        5_000,
        "Interval between heartbeats to idle slaves, and between reports to the master, in milliseconds.",
        minimum=1,
    )
    ha_housekeeping_interval: int = option(
        20_000, "Time without data after which master and slave close their connection, in milliseconds.", minimum=1
    )
    ha_transfer_batch_size: int = option(
        32_768, "Maximum size of one transfer to a slave, in bytes.", minimum=1_024, maximum=MAX_TRANSFER_BYTES
    )
    ha_slave_fallbehind_max: int = option(
        268_435_456, "A slave that is so many bytes behind is not in sync, and sends do not wait for it.", minimum=1
    )
    in_sync_replicas: int = option(
        2,
        "SYNC_MASTER: minimum number of brokers, including this one, that must have a message before it is "
        "acknowledged. 2 requires one slave in sync, 3 requires two. Sends wait for every slave in sync.",
        minimum=1,
    )
    enable_auto_in_sync_replicas: bool = option(
        False, "SYNC_MASTER: if fewer than inSyncReplicas brokers are in sync, minInSyncReplicas are enough."
    )
    min_in_sync_replicas: int = option(
        1,
        "With enableAutoInSyncReplicas or failover: minimum number of brokers that must have a message, with this one.",
        minimum=1,
    )
    slave_timeout: int = option(
        3_000,
        "SYNC_MASTER: maximum time to wait for slaves before a message is answered as not replicated, in milliseconds.",
        minimum=1,
    )
    offset_check_in_slave: bool = option(
        False,
        "SLAVE: correct pull offsets that are outside a queue's range, as a master does.",
        runtime=True,
    )
    slave_read_enable: bool = option(
        False, "Let consumers that are far behind read from the slave that is configured in their group.", runtime=True
    )

    @property
    def slaves_required(self) -> int:
        """Return the minimum number of slaves that must have a message before a SYNC_MASTER acknowledges it."""
        return (self.min_in_sync_replicas if self.enable_auto_in_sync_replicas else self.in_sync_replicas) - 1
