"""GET_SET_USERS (30045): the members of a set copy their master's users and policies of ACL 2.0 (a CometMQ extension).

Tools change the users at all brokers, but not at those that are down. So without a copy, a user that was deleted could
come back with the next master.

The passwords are encrypted with the password of the account that copies them, which both sides know. Only super users
may copy them, as a broker's own account is.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

from cometmq.auth.model import AuthError
from cometmq.auth.users import UserTable
from cometmq.broker.limits import SLAVE_TABLE_SECONDS
from cometmq.broker.replication.frames import ReplicationError
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import SetUsersHeader
from cometmq.remoting.permissions import CALLER, Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)


class SetUsersProcessor:
    """The master's side."""

    def __init__(self, users: UserTable) -> None:
        self._users = users
        self._random = secrets.token_hex(8)
        """Part of each version, so that those of other processes are unknown."""

    @answers(RequestCode.GET_SET_USERS, limits=("MAX_USERS",), permission=needs_cluster(Action.UPDATE))
    async def users(self, _connection: ServerConnection, request: Request[SetUsersHeader], _body: bytes) -> Response:
        """Return all users for a member of the set, or nothing if none has changed. Only a super user gets them."""
        caller = CALLER.get()
        own = None if caller is None or not caller.is_super else self._users.users.get(caller.name)
        if own is None:
            return Response(ResponseCode.NO_PERMISSION, remark="only the account of a broker may copy users")
        version = f"{self._random}.{self._users.version}"
        header = SetUsersHeader(version)
        if request.header.version == version:
            return Response(header=header)
        return Response(header=header, body=await in_thread(self._users.exported, own.password.encode()))


class UserCopy:
    """A follower's side.

    :param client: signs with this broker's account.
    """

    name: Final = "users"

    def __init__(self, users: UserTable, client: RemotingClient) -> None:
        self._users: Final = users
        self._client: Final = client
        self._version = ""

    def begin_with_master(self) -> None:
        """Copy all users the next time."""
        self._version = ""

    async def copy(self, master: str) -> None:
        """Copy the users if one has changed.

        :raises ReplicationError: the master does not return them, or they cannot be used or written.
        :raises RemotingError: the master does not answer.
        """
        credentials = self._client.credentials
        if credentials is None:
            return
        answer = await self._client.invoke(
            master, RequestCode.GET_SET_USERS, SetUsersHeader(self._version), timeout_s=SLAVE_TABLE_SECONDS
        )
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(
                f"GET_SET_USERS: code {answer.code}, {answer.remark}",
                next_step="set the same keys of accounts on all members of the set",
            )
        if answer.body:
            async with self._users.lock:
                try:
                    key = credentials.secret_key.encode()
                    if await in_thread(self._users.take_over, answer.body, key):
                        _log.info("the users and policies were copied from master %s", master)
                except AuthError as error:
                    raise ReplicationError(f"the master's users cannot be used: {error}") from error
        self._version = answer.header(SetUsersHeader).version
