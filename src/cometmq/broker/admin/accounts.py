"""Administration of ACL 1.0 accounts: request codes 50 to 54 (``AdminBrokerProcessor.updateAndCreateAccessConfig``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from cometmq.auth.model import AuthError
from cometmq.auth.plain_changes import PlainChanges, listed, versions
from cometmq.auth.plain_files import DEFAULT_FILE, PlainFiles
from cometmq.broker.context import BrokerContext
from cometmq.remoting.admin_headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from cometmq.remoting.codes import (
    DELETE_ACL_CONFIG_FAILED,
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
    RequestCode,
    ResponseCode,
)
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

T = TypeVar("T")


class PlainAccountAdmin:
    """Reads and changes the account files in a thread, one request at a time. Responses contain no secrets."""

    def __init__(
        self, broker: BrokerContext, files: PlainFiles, others_have: Callable[[], Awaitable[str]] | None = None
    ) -> None:
        """Create the handlers.

        :param others_have: waits until the other members of a set have the files, and returns the reason why they do
            not, or an empty text.
        """
        self._others_have = others_have
        self._config = broker.config
        self._address = broker.address
        self._files = files
        self._changes = PlainChanges(files, clock=broker.clock)
        self._lock = asyncio.Lock()

    async def _run_exclusively(self, work: Callable[[], T]) -> T:
        async with self._lock:
            return await in_thread(work)

    async def _answer(self, code: int) -> Response:
        """Answer a change once the other members of a set have it, or with a code and the reason why they do not."""
        lacks = "" if self._others_have is None else await self._others_have()
        return Response(code, remark=lacks) if lacks else Response()

    @answers(
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        limits=("MAX_ACL_FILE_BYTES",),
        permission=needs_cluster(Action.UPDATE),
    )
    async def put(
        self, connection: ServerConnection, request: Request[CreateAccessConfigRequestHeader], _body: bytes
    ) -> Response:
        """Create or change an account. The change is in effect when the request is answered."""
        header = request.header
        given: dict[str, Any] = {
            "accessKey": header.access_key,
            "secretKey": header.secret_key,
            "whiteRemoteAddress": header.white_remote_address,
            "admin": header.admin,
            "defaultTopicPerm": header.default_topic_perm or None,
            "defaultGroupPerm": header.default_group_perm or None,
            "topicPerms": _split(header.topic_perms),
            "groupPerms": _split(header.group_perms),
        }
        try:
            await self._run_exclusively(lambda: self._changes.put_account(given))
        except AuthError as error:
            return Response(UPDATE_AND_CREATE_ACL_CONFIG_FAILED, remark=str(error))
        _log.info("%s changed the account %s", connection.remote_address, header.access_key)
        return await self._answer(UPDATE_AND_CREATE_ACL_CONFIG_FAILED)

    @answers(RequestCode.DELETE_ACL_CONFIG, permission=needs_cluster(Action.UPDATE))
    async def delete(
        self, connection: ServerConnection, request: Request[DeleteAccessConfigRequestHeader], _body: bytes
    ) -> Response:
        """Delete an account."""
        name = request.header.access_key
        try:
            if await self._run_exclusively(lambda: self._changes.delete_account(name)):
                _log.info("%s deleted the account %s", connection.remote_address, name)
                return await self._answer(DELETE_ACL_CONFIG_FAILED)
        except AuthError as error:
            return Response(DELETE_ACL_CONFIG_FAILED, remark=str(error))
        remark = f"The accesskey[{name}] corresponding to accessConfig has been deleted failed."
        return Response(DELETE_ACL_CONFIG_FAILED, remark=remark)

    @answers(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, permission=needs_cluster(Action.UPDATE))
    async def put_white_addresses(
        self, connection: ServerConnection, request: Request[UpdateGlobalWhiteAddrsConfigRequestHeader], _body: bytes
    ) -> Response:
        """Replace the addresses that need no signature in one of the account files."""
        header = request.header
        addresses = _split(header.global_white_addrs) or []
        try:
            if await self._run_exclusively(
                lambda: self._changes.put_white_addresses(addresses, header.acl_file_full_path or "")
            ):
                _log.info("%s changed the whitelisted addresses", connection.remote_address)
                return await self._answer(UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED)
        except AuthError as error:
            return Response(UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED, remark=str(error))
        remark = f"The globalWhiteAddresses[{header.global_white_addrs}] has been updated failed."
        return Response(UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED, remark=remark)

    @answers(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, permission=needs_cluster(Action.GET))
    async def versions(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return the versions of the account files."""
        try:
            found = await self._run_exclusively(lambda: versions(self._files))
        except AuthError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        default = found.get(str(self._files.directory / DEFAULT_FILE), {"counter": 0, "timestamp": 0})
        return Response(
            header=GetBrokerAclConfigResponseHeader(
                version=msgspec.json.encode(default).decode(),
                all_acl_file_version=msgspec.json.encode(found).decode(),
                broker_name=self._config.broker_name,
                broker_addr=self._address,
                cluster_name=self._config.broker_cluster_name,
            )
        )

    @answers(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, permission=needs_cluster(Action.GET))
    async def listed(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """List the accounts and the addresses that need no signature, without secret keys."""
        try:
            white, accounts = await self._run_exclusively(lambda: listed(self._files))
        except AuthError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return Response(body=msgspec.json.encode({"globalWhiteAddrs": white, "plainAccessConfigs": accounts}))


def _split(joined: str | None) -> list[str] | None:
    return None if joined is None else [part for part in joined.split(",") if part]
