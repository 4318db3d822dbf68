"""Administers ACL 2.0 users and policies on CometMQ servers and on Apache servers since 5.3."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import msgspec

from cometmq.auth.policies import AclInfo, PolicyInfo
from cometmq.auth.user_admin import UserInfo
from cometmq.client.admin.topics import TopicAdmin
from cometmq.client.errors import BrokerError, ClientError, RemotingError
from cometmq.errors import CometMQError
from cometmq.remoting.admin_headers import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    GetAclRequestHeader,
    GetUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateUserRequestHeader,
)
from cometmq.remoting.bodies import BodyError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import Header

T = TypeVar("T")


class PlainAccountInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """An ACL 1.0 account (``PlainAccessConfig``); a secret key in a server's response is ignored."""

    access_key: str
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class PlainAccounts(msgspec.Struct, rename="camel"):
    """A broker's ACL 1.0 accounts (``AclConfig``)."""

    global_white_addrs: list[str] | None = None
    """Addresses from which requests need no signature."""
    plain_access_configs: list[PlainAccountInfo] | None = None


class PartlyChangedError(ClientError):
    """A change to users or policies succeeded on some servers but failed on others."""


class AccountAdmin(TopicAdmin):
    """Manages users and policies. Each server has its own, so changes are sent to all servers with users.

    If ``address`` is given, the change is sent to that server only.

    :raises PartlyChangedError: the change failed on some servers; the error names them.
    """

    async def create_user(self, user: UserInfo, *, address: str | None = None) -> None:
        """Create a user."""
        header, body = CreateUserRequestHeader(user.username or ""), msgspec.json.encode(user)
        await self._change(address, RequestCode.AUTH_CREATE_USER, header, body, doing="creating the user")

    async def update_user(self, user: UserInfo, *, address: str | None = None) -> None:
        """Change a user's password, type or status; omitted values remain unchanged."""
        header, body = UpdateUserRequestHeader(user.username or ""), msgspec.json.encode(user)
        await self._change(address, RequestCode.AUTH_UPDATE_USER, header, body, doing="changing the user")

    async def delete_user(self, name: str, *, address: str | None = None) -> None:
        """Delete a user and their policies."""
        header = DeleteUserRequestHeader(name)
        await self._change(address, RequestCode.AUTH_DELETE_USER, header, doing="deleting the user")

    async def users(self, wanted: str = "", *, address: str | None = None) -> list[UserInfo]:
        """List the users on one server whose names contain the given text."""
        server = next(iter(await self._servers(address)))
        header = ListUsersRequestHeader(wanted)
        body = await self._call(server, RequestCode.AUTH_LIST_USER, header, doing="listing the users")
        return _decode_body(body, list[UserInfo]) or []

    async def user(self, name: str, *, address: str | None = None) -> UserInfo:
        """Return a user as stored on one server.

        :raises ClientError: the user does not exist.
        """
        server = next(iter(await self._servers(address)))
        body = await self._call(
            server, RequestCode.AUTH_GET_USER, GetUserRequestHeader(name), doing="requesting a user"
        )
        user = _decode_body(body, UserInfo)
        if user is None:
            raise ClientError(f"{server} has no user {name}", next_step="run cometmq user list to see all users")
        return user

    async def put_policies(self, name: str, policies: list[PolicyInfo], *, address: str | None = None) -> None:
        """Add entries to a user's policies. A new entry replaces an existing entry for the same resource."""
        subject = f"User:{name}"
        header, body = CreateAclRequestHeader(subject), msgspec.json.encode(AclInfo(subject, policies))
        await self._change(address, RequestCode.AUTH_CREATE_ACL, header, body, doing="creating the policy")

    async def delete_policies(
        self, name: str, resource: str | None = None, policy_type: str | None = None, *, address: str | None = None
    ) -> None:
        """Delete a user's entry for one resource, or all of the user's policies."""
        header = DeleteAclRequestHeader(f"User:{name}", policy_type, resource)
        await self._change(address, RequestCode.AUTH_DELETE_ACL, header, doing="deleting the policy")

    async def policies(self, user: str = "", resource: str = "", *, address: str | None = None) -> list[AclInfo]:
        """List the policies on one server whose user and resource names contain the given texts."""
        server = next(iter(await self._servers(address)))
        header = ListAclsRequestHeader(user, resource)
        body = await self._call(server, RequestCode.AUTH_LIST_ACL, header, doing="listing the policies")
        return _decode_body(body, list[AclInfo]) or []

    async def policies_of(self, name: str, *, address: str | None = None) -> AclInfo:
        """Return a user's policies as stored on one server."""
        server = next(iter(await self._servers(address)))
        header = GetAclRequestHeader(f"User:{name}")
        body = await self._call(server, RequestCode.AUTH_GET_ACL, header, doing="requesting the policies")
        return _decode_body(body, AclInfo) or AclInfo(f"User:{name}", [])

    async def plain_accounts(self, *, address: str | None = None) -> PlainAccounts:
        """Return a broker's ACL 1.0 accounts, leaving out secrets.

        :raises BrokerError: the broker uses no ACL 1.0 accounts.
        """
        server = next(iter(await self._servers(address)))
        code, doing = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, "listing the accounts"
        return _decode_body(await self._call(server, code, doing=doing), PlainAccounts) or PlainAccounts()

    async def _change(
        self, address: str | None, code: RequestCode, header: Header, body: bytes = b"", *, doing: str
    ) -> None:
        """Apply a change on one server or on all servers that have users; if a server fails, continue with the
        others.
        """
        if address is not None:
            await self._call(address, code, header, body, doing=doing)
            return
        done = 0
        failures: list[CometMQError] = []
        brokers = await self._servers(None)
        for server in (*brokers, *self.instance.routes.namesrv):
            try:
                await self._call(server, code, header, body, doing=doing)
                done += 1
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or server in brokers:
                    failures.append(error)
            except RemotingError as error:
                failures.append(error)
        if failures and not done:
            raise failures[0]
        if failures:
            raise PartlyChangedError(
                f"the change succeeded on {done} of {done + len(failures)} servers and failed on the others: "
                f"{'; '.join(map(str, failures))}",
                next_step="repeat the command for each of the other servers with --server",
            )

    async def _servers(self, address: str | None) -> Collection[str]:
        if address is not None:
            return (address,)
        brokers = (await self.cluster_info()).broker_addr_table.values()
        found = [one for broker in brokers for one in broker.broker_addrs.values()]
        return found or await self._targets()


def _decode_body(body: bytes, kind: type[T]) -> T | None:
    """Decode a response body; return ``None`` if it is empty.

    :raises BodyError: the body is not of the expected kind.
    """
    if not body:
        return None
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise BodyError(f"{kind}: {error}") from error
