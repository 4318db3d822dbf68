"""The headers of requests about failover: those of Apache's controller, and CometMQ's own commands."""

from __future__ import annotations

from cometmq.remoting.headers import Header, Int64


class ElectMasterRequestHeader(Header):
    """Request header for CONTROLLER_ELECT_MASTER (1002)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None


class ElectMasterResponseHeader(Header):
    """Response header for CONTROLLER_ELECT_MASTER (1002)."""

    master_broker_id: int
    master_address: str
    master_epoch: int
    sync_state_set_epoch: int


class GetReplicaInfoRequestHeader(Header):
    """Request header for CONTROLLER_GET_REPLICA_INFO (1004)."""

    broker_name: str


class GetReplicaInfoResponseHeader(Header):
    """Response header for CONTROLLER_GET_REPLICA_INFO (1004)."""

    master_broker_id: int
    master_address: str
    master_epoch: int


class GetMetaDataResponseHeader(Header):
    """Response header for CONTROLLER_GET_METADATA_INFO (1005)."""

    group: str
    controller_leader_id: str
    controller_leader_address: str
    is_leader: bool
    peers: str
    """Addresses, each with a semicolon after it."""


class CleanBrokerDataRequestHeader(Header):
    """Request header for CLEAN_BROKER_DATA (1011)."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    """Broker ids, separated by semicolons; all that are not alive if there are none."""
    is_clean_living_broker: bool = False


class HandOverRequestHeader(Header):
    """Request header for HAND_OVER (30043): make another member the master. Only the master accepts it."""

    broker_name: str
    to: str = ""
    """The name of the successor; empty for the member that is furthest."""
    why: str = ""


class ForceMasterRequestHeader(Header):
    """Request header for FORCE_MASTER (30044): make this member the master, although messages may be lost."""

    broker_name: str
    member: str
    """``name#generation`` of the member that receives the request, as the person has seen it."""
    epoch: Int64
    """The epoch of the document that the person has seen."""
    why: str = ""


class FailoverEpochResponseHeader(Header):
    """Response header for HAND_OVER (30043): the epoch and the master after it."""

    epoch: int
    master: str
