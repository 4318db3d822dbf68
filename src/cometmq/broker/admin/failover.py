"""Administration of failover: the member's status, a person's commands, and the requests of Apache's controller.

CometMQ has no controller: an engine keeps the set's document, and each member answers tools. A tool that asks for the
controller gets the set's master, so that ``mqadmin``'s commands work with the address of any member.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any, Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.failover.document import Document, Replica
from cometmq.broker.failover.election import is_serving
from cometmq.broker.failover.options import CommandRefusedError
from cometmq.broker.failover.status import FailoverMember, status_of
from cometmq.broker.limits import MAX_FAILOVER_MEMBERS, MAX_FAILOVER_REASON_CHARS, MAX_SHOWN_EPOCHS
from cometmq.message.names import MASTER_ID
from cometmq.remoting.bodies import BodyError, decode_request, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.failover.bodies import (
    BrokerMemberGroup,
    BrokerReplicasInfo,
    EpochEntry,
    EpochEntryCache,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from cometmq.remoting.failover.headers import (
    CleanBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    FailoverEpochResponseHeader,
    ForceMasterRequestHeader,
    GetMetaDataResponseHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
    HandOverRequestHeader,
)
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, RpcRejectedError, answers
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

_GET: Final = needs_cluster(Action.GET)
_UPDATE: Final = needs_cluster(Action.UPDATE)
_NO_CONTROLLER: Final = (
    "CometMQ has no controller: the members of a set decide by etcd or Kubernetes (failover in broker.conf)"
)


class FailoverAdmin:
    """Answers tools about one member's set, and carries out a person's commands."""

    def __init__(self, broker: BrokerContext, member: FailoverMember) -> None:
        self._broker = broker
        self._member = member

    # --- CometMQ's own requests -------------------------------------------------------------------
    @answers(RequestCode.GET_FAILOVER_STATUS, permission=_GET)
    def status(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return this member's view of its set; answered in every state."""
        config = self._broker.config
        now = self._broker.clock.monotonic()
        return Response(body=encode_body(status_of(self._member, config.broker_cluster_name, config.broker_name, now)))

    @answers(RequestCode.HAND_OVER, limits=("MAX_FAILOVER_REASON_CHARS",), permission=_UPDATE)
    async def hand_over(
        self, connection: ServerConnection, request: Request[HandOverRequestHeader], _body: bytes
    ) -> Response:
        """Make another member the master, and answer once it is; only the master accepts this request."""
        header = request.header
        self._check_name(header.broker_name)
        why = _why(f"handed over by a person at {connection.remote_address}", header.why)
        document = await self._hand_over(header.to, why)
        return Response(header=FailoverEpochResponseHeader(document.epoch, str(document.master)))

    @answers(RequestCode.FORCE_MASTER, limits=("MAX_FAILOVER_REASON_CHARS",), permission=_UPDATE)
    async def force(
        self, connection: ServerConnection, request: Request[ForceMasterRequestHeader], _body: bytes
    ) -> Response:
        """Let this member stand for election although it may lack acknowledged messages.

        The request names what the person has seen; it is refused if that is no longer true.
        """
        header, machine = request.header, self._member.machine
        self._check_name(header.broker_name)
        document = machine.view.document
        epoch = 0 if document is None else document.epoch
        if (header.member, header.epoch) != (str(machine.me), epoch):
            raise _invalid(
                f"this is {machine.me}, and the set is in epoch {epoch}; the request names {header.member} and epoch "
                f"{header.epoch} (look at cometmq failover status again)"
            )
        why = _why(f"forced by a person at {connection.remote_address}", header.why)
        _log.warning("%s makes %s the master, although messages may be lost: %s", connection, machine.me, why)
        try:
            await self._member.force(why)
        except CommandRefusedError as error:
            raise RpcRejectedError(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, str(error)) from error
        return Response()

    # --- requests to Apache's controller ----------------------------------------------------------
    @answers(RequestCode.CONTROLLER_GET_METADATA_INFO, permission=_GET)
    def metadata(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return the set's master as the leader of the controllers, so that tools send their requests to it."""
        machine, document = self._member.machine, self._member.machine.view.document
        replicas = () if document is None else document.replicas
        leader = None if document is None else document.replica(document.master.name)
        me = Replica(machine.me.name, machine.options.address, machine.options.ha_address, MASTER_ID)
        header = GetMetaDataResponseHeader(
            group=self._broker.config.broker_name,
            controller_leader_id=(leader or me).name,
            controller_leader_address=(leader or me).address,
            is_leader=leader is not None and leader.name == me.name,
            peers="".join(f"{one.address};" for one in replicas or (me,)),
        )
        return Response(header=header)

    @answers(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, permission=_GET)
    def sync_state(self, _connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """Return the in-sync set; the request's body lists broker names."""
        try:
            names = decode_request(list[str], body, MAX_FAILOVER_REASON_CHARS)
        except BodyError as error:
            raise _invalid(str(error)) from error
        name = self._broker.config.broker_name
        document = self._member.machine.view.document
        table = {name: self._replicas_info(document)} if name in names and document is not None else {}
        return Response(body=encode_body(BrokerReplicasInfo(table)))

    def _replicas_info(self, document: Document) -> ReplicasInfo:
        presences = self._member.machine.view.presences
        in_sync = {member.name for member in document.in_sync}
        identities = {
            one.name: ReplicaIdentity(
                self._broker.config.broker_name, one.broker_id, one.address, one.name in presences
            )
            for one in document.replicas
        }
        master = document.replica(document.master.name)
        return ReplicasInfo(
            0 if master is None else master.broker_id,
            "" if master is None else master.address,
            document.epoch,
            document.serial,
            [identity for name, identity in identities.items() if name in in_sync],
            [identity for name, identity in identities.items() if name not in in_sync],
        )

    @answers(RequestCode.CONTROLLER_GET_REPLICA_INFO, permission=_GET)
    def replica_info(
        self, _connection: ServerConnection, request: Request[GetReplicaInfoRequestHeader], _body: bytes
    ) -> Response:
        """Return the master and the broker ids of the in-sync set."""
        self._check_name(request.header.broker_name)
        document = self._document()
        info = self._replicas_info(document)
        return Response(
            header=GetReplicaInfoResponseHeader(info.master_broker_id, info.master_address, info.master_epoch),
            body=encode_body(SyncStateSet([one.broker_id for one in info.in_sync_replicas], document.serial)),
        )

    @answers(RequestCode.GET_BROKER_EPOCH_CACHE, permission=_GET)
    def epochs(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return the newest epochs of this member's log."""
        config, history, machine = self._broker.config, self._member.history(), self._member.machine
        starts = [*history.epochs[-MAX_SHOWN_EPOCHS:], (0, history.end)]
        entries = [EpochEntry(epoch, start, end) for (epoch, start), (_, end) in pairwise(starts)]
        return Response(
            body=encode_body(
                EpochEntryCache(
                    config.broker_cluster_name,
                    config.broker_name,
                    self._broker_id(),
                    history.end,
                    entries,
                    history.begin,
                    machine.epoch,
                )
            )
        )

    @answers(RequestCode.CONTROLLER_ELECT_MASTER, permission=_UPDATE)
    async def elect_master(
        self, connection: ServerConnection, request: Request[ElectMasterRequestHeader], _body: bytes
    ) -> Response:
        """Hand over to the replica with a broker id, and answer once it is the master.

        Apache's controller elects also a replica that may lack messages; this is what FORCE_MASTER is for.
        """
        config, document, header = self._broker.config, self._document(), request.header
        if header.broker_name:
            self._check_name(header.broker_name)
        wanted = next((one for one in document.replicas if one.broker_id == header.broker_id), None)
        if wanted is None:
            known = ", ".join(f"{one.broker_id} ({one.name})" for one in document.replicas)
            raise _invalid(f"no replica of {config.broker_name} has the broker id {header.broker_id}; it has {known}")
        if not (wanted.name == document.master.name and is_serving(document, self._member.machine.view.presences)):
            document = await self._hand_over(wanted.name, f"elected by mqadmin at {connection.remote_address}")
        info = self._replicas_info(document)
        ids = {one.broker_id: one.address for one in document.replicas if one.broker_id != info.master_broker_id}
        group = BrokerMemberGroup(
            config.broker_cluster_name, config.broker_name, {MASTER_ID: info.master_address, **ids}
        )
        return Response(
            header=ElectMasterResponseHeader(
                info.master_broker_id, info.master_address, info.master_epoch, info.sync_state_set_epoch
            ),
            body=encode_body(group),
        )

    @answers(RequestCode.CLEAN_BROKER_DATA, limits=("MAX_FAILOVER_MEMBERS",), permission=_UPDATE)
    async def clean(
        self, _connection: ServerConnection, request: Request[CleanBrokerDataRequestHeader], _body: bytes
    ) -> Response:
        """Remove replicas that never come back from the set's document; only the master accepts this request."""
        header, document = request.header, self._document()
        self._check_name(header.broker_name)
        presences = self._member.machine.view.presences
        in_sync = {member.name for member in document.in_sync}
        gone = [one for one in document.replicas if one.name not in presences and one.name not in in_sync]
        if header.broker_controller_ids_to_clean:
            ids = header.broker_controller_ids_to_clean.split(";")[:MAX_FAILOVER_MEMBERS]
            gone = [one for one in document.replicas if str(one.broker_id) in ids]
            if len(gone) < len(ids):
                raise _invalid(f"not all of {';'.join(ids)[:80]} are broker ids of {header.broker_name}")
        try:
            for one in gone:
                await self._member.forget(one.name)
        except CommandRefusedError as error:
            raise RpcRejectedError(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, str(error)) from error
        return Response()

    @answers(RequestCode.GET_CONTROLLER_CONFIG, permission=_GET)
    def config(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return what stands for the controller's configuration: the options of this member."""
        options = self._member.machine.options
        values = {
            "controllerType": f"CometMQ failover by {self._member.engine_name}",
            "failoverMember": options.name,
            "failoverLeaseMs": f"{options.lease_s * 1000:.0f}",
            "minInSyncReplicas": str(options.min_in_sync),
            "brokerElectionPriority": str(options.priority),
            "enableElectUncleanMaster": "false",
        }
        return Response(body="".join(f"{key}={value}\n" for key, value in values.items()).encode())

    @answers(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.UPDATE_CONTROLLER_CONFIG,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        permission=_UPDATE,
    )
    def refuse(self, _connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """Refuse what only Apache's brokers ask a controller, and changes of its configuration."""
        if request.code == RequestCode.UPDATE_CONTROLLER_CONFIG:
            remark = f"{_NO_CONTROLLER}; change broker.conf of each member instead"
        else:
            remark = f"{_NO_CONTROLLER}; a broker of Apache's may follow the master, with brokerRole=SLAVE"
        return Response(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=remark)

    # --- parts of answers -------------------------------------------------------------------------
    def runtime_info(self) -> dict[str, str]:
        """Return the keys by which tools find the members of sets."""
        machine = self._member.machine
        return {
            "failoverMember": str(machine.me),
            "failoverState": machine.state.value,
            "failoverEpoch": str(machine.epoch),
        }

    def _broker_id(self) -> int:
        document, me = self._member.machine.view.document, self._member.machine.me
        replica = None if document is None else document.replica(me.name)
        if document is not None and document.master == me:
            return MASTER_ID
        return -1 if replica is None else replica.broker_id

    def _document(self) -> Document:
        document = self._member.machine.view.document
        if document is None:
            raise RpcRejectedError(
                ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
                f"{self._member.machine.me} has not read the set's document: {self._member.machine.reason}",
            )
        return document

    def _check_name(self, name: str) -> None:
        mine = self._broker.config.broker_name
        if name != mine:
            raise RpcRejectedError(
                ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
                f"this broker is a member of {mine}, and not of {name[:80]} (ask a member of {name[:80]})",
            )

    async def _hand_over(self, to: str, why: str) -> Document:
        try:
            await self._member.hand_over(to, why)
        except CommandRefusedError as error:
            raise RpcRejectedError(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, str(error)) from error
        return self._document()


def _invalid(remark: str) -> RpcRejectedError:
    return RpcRejectedError(ResponseCode.INVALID_PARAMETER, remark)


def _why(sentence: str, words: str) -> str:
    """Return the reason that the document keeps."""
    if len(words) > MAX_FAILOVER_REASON_CHARS // 2:
        raise _invalid(f"the reason has {len(words)} characters, more than {MAX_FAILOVER_REASON_CHARS // 2}")
    return f"{sentence}: {words}" if words else sentence
