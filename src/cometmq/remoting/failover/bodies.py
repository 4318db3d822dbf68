"""The bodies of requests about failover: those of Apache's controller, and CometMQ's own status."""

from __future__ import annotations

from cometmq.remoting.bodies import Body


# --- Apache's controller ----------------------------------------------------------------------------
class EpochEntry(Body):
    """One epoch of a log (``EpochEntry``)."""

    epoch: int
    start_offset: int
    """Log offset of the epoch's marker."""
    end_offset: int
    """Log offset of the next marker; of the last epoch, the log's end."""


class EpochEntryCache(Body):
    """Response to GET_BROKER_EPOCH_CACHE (1007): the epochs of a broker's log (``EpochEntryCache``)."""

    cluster_name: str
    broker_name: str
    broker_id: int
    max_offset: int
    """Log offset of the log's end."""
    epoch_list: list[EpochEntry] = []
    min_offset: int = 0
    """Log offset of the first byte that is still there; not in Apache's body."""
    epoch: int = 0
    """The epoch of the set's document; not in Apache's body."""


class ReplicaIdentity(Body):
    """A replica of a set (``BrokerReplicasInfo.ReplicaIdentity``)."""

    broker_name: str
    broker_id: int
    """The id in the set's document, always above 0; the master of the moment registers with 0."""
    broker_address: str
    alive: bool


class ReplicasInfo(Body):
    """The master and the in-sync set of one set (``BrokerReplicasInfo.ReplicasInfo``)."""

    master_broker_id: int
    master_address: str
    master_epoch: int
    sync_state_set_epoch: int
    """The serial number of the set's document."""
    in_sync_replicas: list[ReplicaIdentity] = []
    not_in_sync_replicas: list[ReplicaIdentity] = []


class BrokerReplicasInfo(Body):
    """Response to CONTROLLER_GET_SYNC_STATE_DATA (1006): the sets by broker name."""

    replicas_info_table: dict[str, ReplicasInfo] = {}


class SyncStateSet(Body):
    """Response to CONTROLLER_GET_REPLICA_INFO (1004)."""

    sync_state_set: list[int] = []
    sync_state_set_epoch: int = 0


class BrokerMemberGroup(Body):
    """The addresses of a set's replicas by broker id: the response to CONTROLLER_ELECT_MASTER (1002)."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = {}


# --- CometMQ's own ----------------------------------------------------------------------------------
class FailoverReplica(Body):
    """A replica in the set's document."""

    name: str
    address: str
    ha_address: str
    broker_id: int


class FailoverChange(Body):
    """One version of the set's document; members are written as ``name#generation``."""

    epoch: int
    serial: int
    master: str
    in_sync: list[str]
    why: str
    at_ms: int


class FailoverDocument(FailoverChange):
    """The set's document, as a member has read it last."""

    set_id: str
    replicas: list[FailoverReplica]


class FailoverPresence(Body):
    """The announcement of a live process in the engine."""

    member: str
    address: str
    serves: int
    """The epoch that it serves as the master; otherwise 0."""
    trouble: str = ""
    """The reason why its disk cannot be written."""


class FailoverProgress(Body):
    """The progress of one replica in the eyes of its master."""

    member: str
    end: int
    """Log offset up to which it has reported the log on its present connection."""
    connected: bool
    counted: bool
    """True if acknowledgements wait for it."""
    late: bool
    """True if it has not been caught up for too long."""


class FailoverStatus(Body, kw_only=True):
    """Response to GET_FAILOVER_STATUS (30042): one member's view of its set."""

    cluster: str
    broker_name: str
    member: str
    """``name#generation``."""
    address: str
    state: str
    """The name of its state, such as ``follower``."""
    reason: str
    """The cause of the last change of state."""
    since_ms: int
    """Wall time of the last change of state."""
    next_step: str = ""
    """The step that a person must do, if the member has halted."""
    refusal: str = ""
    """The reason why no message may be appended for clients; also each member that is no master has one."""
    disk_trouble: str = ""
    trouble: str = ""
    """The reason why it cannot follow its master, or has refused another member; a person must do something."""
    epoch: int
    """The highest epoch that it has read."""
    log_epoch: int
    """The epoch of the last marker in its log."""
    begin: int
    end: int
    flushed: int
    confirmed: int
    """Log offset up to which all counted members have the log, as far as this member knows."""
    engine: str
    engine_trouble: str = ""
    """The reason why the engine does not answer; empty if it does."""
    min_in_sync: int
    priority: int
    elections: int = 0
    """Number of elections that this process has seen."""
    document: FailoverDocument | None = None
    presences: list[FailoverPresence] = []
    progress: list[FailoverProgress] = []
    """At a master only."""
    changes: list[FailoverChange] = []
    """The last changes of the document that this process has seen, the newest last."""
