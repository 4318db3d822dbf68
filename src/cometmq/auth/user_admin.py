"""Administration of ACL 2.0 users and policies: request codes 3001 to 3010 (``AdminBrokerProcessor.createUser``)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from cometmq.auth.limits import MAX_ACL_BODY_BYTES
from cometmq.auth.model import AuthError
from cometmq.auth.policies import SUPER, USER, AclInfo, User, policy_infos
from cometmq.auth.users import UserTable
from cometmq.remoting.admin_headers import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    GetAclRequestHeader,
    GetUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateAclRequestHeader,
    UpdateUserRequestHeader,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.permissions import CALLER, Action, needs_cluster
from cometmq.remoting.processors import Request, Response, RpcRejectedError, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

T = TypeVar("T")

_KIND_OF_SUBJECT: Final = USER.removesuffix(":").lower()


class UserInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """A user in the form used in requests and responses; responses omit the password."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class UserAdmin:
    """Request handlers for users and policies. Changes are made in a thread, one at a time."""

    def __init__(self, table: UserTable, others_have: Callable[[], Awaitable[str]] | None = None) -> None:
        """Create the handlers.

        :param others_have: waits until the other servers that need the users have them, and returns the reason why
            they do not, or an empty text.
        """
        self._table = table
        self._others_have = others_have

    async def _change(self, connection: ServerConnection, name: str, what: str, work: Callable[[], None]) -> Response:
        """Change a user. Only a super user can change a super user.

        :raises RpcRejectedError: the change is impossible or not permitted.
        """
        by_super = _by_super()
        async with self._table.lock:
            try:
                user = self._table.users.get(name)
                if user is not None and user.kind == SUPER and not by_super:
                    raise AuthError("The super user can only be update by super user")
                await in_thread(work)
            except AuthError as error:
                raise RpcRejectedError(ResponseCode.NO_PERMISSION, str(error)) from error
        _log.info("%s: %s", connection.remote_address, what)
        lacks = "" if self._others_have is None else await self._others_have()
        return Response(ResponseCode.SYSTEM_ERROR, remark=lacks) if lacks else Response()

    # --- users --------------------------------------------------------------------------------
    @answers(RequestCode.AUTH_CREATE_USER, limits=("MAX_USERS",), permission=needs_cluster(Action.UPDATE))
    async def create_user(
        self, connection: ServerConnection, request: Request[CreateUserRequestHeader], body: bytes
    ) -> Response:
        """Create a user. Only a super user can create a super user."""
        name, info = _named(request.header.username), _user_info(body, "create")
        return await self._change(
            connection,
            name,
            f"user {name} was created",
            lambda: self._table.create(name, info.password or "", info.user_type, info.user_status),
        )

    @answers(RequestCode.AUTH_UPDATE_USER, permission=needs_cluster(Action.UPDATE))
    async def update_user(
        self, connection: ServerConnection, request: Request[UpdateUserRequestHeader], body: bytes
    ) -> Response:
        """Change the password, type or status of a user."""
        name, info = _named(request.header.username), _user_info(body, "update")
        return await self._change(
            connection,
            name,
            f"user {name} was changed",
            lambda: self._table.update(name, info.password, info.user_type, info.user_status),
        )

    @answers(RequestCode.AUTH_DELETE_USER, permission=needs_cluster(Action.UPDATE))
    async def delete_user(
        self, connection: ServerConnection, request: Request[DeleteUserRequestHeader], _body: bytes
    ) -> Response:
        """Delete a user and the user's policies."""
        name = request.header.username
        return await self._change(connection, name, f"user {name} was deleted", lambda: self._table.delete(name))

    @answers(RequestCode.AUTH_GET_USER, permission=needs_cluster(Action.GET))
    def get_user(self, _connection: ServerConnection, request: Request[GetUserRequestHeader], _body: bytes) -> Response:
        """Return a user without its password, or an empty body if the user does not exist."""
        user = self._table.users.get(_named(request.header.username.strip()))
        return Response(body=b"" if user is None else msgspec.json.encode(_shown(user)))

    @answers(RequestCode.AUTH_LIST_USER, permission=needs_cluster(Action.GET))
    def list_users(
        self, _connection: ServerConnection, request: Request[ListUsersRequestHeader], _body: bytes
    ) -> Response:
        """List the users whose names contain a given text, leaving out passwords."""
        wanted = request.header.filter or ""
        found = [_shown(user) for name, user in self._table.users.items() if wanted in name]
        return Response(body=msgspec.json.encode(found) if found else b"")

    # --- policies -----------------------------------------------------------------------------
    @answers(
        RequestCode.AUTH_CREATE_ACL,
        header=CreateAclRequestHeader,
        limits=("MAX_ACL_BODY_BYTES",),
        permission=needs_cluster(Action.UPDATE),
    )
    @answers(
        RequestCode.AUTH_UPDATE_ACL,
        header=UpdateAclRequestHeader,
        limits=("MAX_ACL_BODY_BYTES",),
        permission=needs_cluster(Action.UPDATE),
    )
    async def put_acl(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response:
        """Add entries to a user's policies. A new entry replaces an existing entry for the same resource."""
        info = _decoded(body, AclInfo)
        if info is None or not info.policies:
            raise RpcRejectedError(ResponseCode.SYSTEM_ERROR, "The body of acl is null")
        name = _user_of(info.subject, request.header.subject)
        policies = info.policies
        return await self._change(
            connection, name, f"the policies of {name} were changed", lambda: self._table.put_policies(name, policies)
        )

    @answers(RequestCode.AUTH_DELETE_ACL, permission=needs_cluster(Action.UPDATE))
    async def delete_acl(
        self, connection: ServerConnection, request: Request[DeleteAclRequestHeader], _body: bytes
    ) -> Response:
        """Delete a user's entry for a resource, or all of the user's policies."""
        header = request.header
        name = _user_of(header.subject)
        return await self._change(
            connection,
            name,
            f"the policies of {name} were deleted",
            lambda: self._table.delete_policies(name, header.policy_type, header.resource),
        )

    @answers(RequestCode.AUTH_GET_ACL, permission=needs_cluster(Action.GET))
    def get_acl(self, _connection: ServerConnection, request: Request[GetAclRequestHeader], _body: bytes) -> Response:
        """Return the policies of a user."""
        user = self._table.users.get(_user_of(request.header.subject))
        if user is None:
            raise RpcRejectedError(ResponseCode.NO_PERMISSION, "The subject is not exist.")
        return Response(body=msgspec.json.encode(_acl(user)) if user.policies else b"")

    @answers(RequestCode.AUTH_LIST_ACL, permission=needs_cluster(Action.GET))
    def list_acls(
        self, _connection: ServerConnection, request: Request[ListAclsRequestHeader], _body: bytes
    ) -> Response:
        """List the policies whose subject contains one given text and whose resource contains another."""
        subject, resource = request.header.subject_filter or "", request.header.resource_filter or ""
        found: list[AclInfo] = []
        for user in self._table.users.values():
            if subject not in USER + user.name:
                continue
            info = _acl(user)
            for policy in info.policies or ():
                policy.entries = [entry for entry in policy.entries or () if resource in (entry.resource or "")]
            info.policies = [policy for policy in info.policies or () if policy.entries]
            if info.policies:
                found.append(info)
        return Response(body=msgspec.json.encode(found) if found else b"")


def _by_super() -> bool:
    caller = CALLER.get()
    return caller is None or caller.is_super


def _decoded(body: bytes, kind: type[T]) -> T | None:
    if len(body) > MAX_ACL_BODY_BYTES:
        return None
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _named(username: str) -> str:
    if not username:
        raise RpcRejectedError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return username


def _user_info(body: bytes, change: str) -> UserInfo:
    info = _decoded(body, UserInfo)
    if info is None:
        raise RpcRejectedError(ResponseCode.INVALID_PARAMETER, "the body is not a valid user in JSON, or is too long")
    if (info.user_type or "").lower() == SUPER.lower() and not _by_super():
        raise RpcRejectedError(ResponseCode.SYSTEM_ERROR, f"The super user can only be {change} by super user")
    return info


def _user_of(*subjects: str | None) -> str:
    """Return the name of the first subject in the request that is a user."""
    for subject in subjects:
        kind, _, name = (subject or "").partition(":")
        if kind.lower() == _KIND_OF_SUBJECT:
            return name
    raise RpcRejectedError(ResponseCode.NO_PERMISSION, "The subject is null. (write User:NAME)")


def _shown(user: User) -> UserInfo:
    return UserInfo(user.name, None, user.kind, user.status)


def _acl(user: User) -> AclInfo:
    return AclInfo(USER + user.name, policy_infos(user.policies))
