"""GET_SET_KEYS (30047): the members of a set copy the keys that were set at run time (a CometMQ extension)."""

from __future__ import annotations

import logging
from typing import Final

from cometmq.broker.config import LiveConfig
from cometmq.broker.replication.copies.set_copy import asked
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.members import FollowerSide, MasterSide
from cometmq.broker.tables.set_keys import SetKeys
from cometmq.loop import completed
from cometmq.options import ConfigError
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import SetCopyRequestHeader, SetCopyResponseHeader
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)


class SetKeysProcessor:
    """The master's side."""

    def __init__(self, keys: SetKeys, side: MasterSide) -> None:
        self._keys = keys
        self._side = side

    @answers(RequestCode.GET_SET_KEYS, permission=needs_cluster(Action.UPDATE))
    def keys(self, _connection: ServerConnection, request: Request[SetCopyRequestHeader], _body: bytes) -> Response:
        """Return the keys that were set at run time for a member of the set, or nothing if they are the same."""
        epoch = self._side.epoch
        if not epoch:
            return Response(ResponseCode.SYSTEM_ERROR, remark="this member is not the master")
        version = self._keys.version
        body = b"" if request.header.version == version else self._keys.exported()
        return Response(header=SetCopyResponseHeader(version, epoch), body=body)


class KeyCopy:
    """A follower's side."""

    name: Final = "keys set at run time"

    def __init__(self, keys: SetKeys, live: LiveConfig, client: RemotingClient, side: FollowerSide) -> None:
        self._keys: Final = keys
        self._live: Final = live
        self._client: Final = client
        self._side: Final = side

    def begin_with_master(self) -> None:
        """Do nothing: each copy compares everything."""

    async def copy(self, master: str) -> None:
        """Take over the master's keys if they differ.

        :raises ReplicationError: the master does not return them, or they cannot be used.
        :raises RemotingError: the master does not answer.
        :raises OSError: the file cannot be written.
        """
        header = SetCopyRequestHeader(self._keys.version)
        answer = await asked(self._client, master, RequestCode.GET_SET_KEYS, header, self._side)
        if answer is None:
            return
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"GET_SET_KEYS: code {answer.code}, {answer.remark}")
        if not answer.body:
            return
        try:
            texts = self._keys.decoded(answer.body)
        except ConfigError as error:
            raise ReplicationError(f"the master's keys cannot be used: {error}") from error
        await completed(in_thread(self._keys.save, texts))
        config = self._keys.into(self._live.current, texts)
        self._keys.use(texts)
        self._live.replace(config)
        _log.info("the keys that were set at run time were copied from master %s: %s", master, ", ".join(texts))
