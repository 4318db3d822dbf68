"""GET_SET_ACCOUNTS (30046): the members of a set copy their master's account files of ACL 1.0 (a CometMQ extension).

The master's files win: a file that was edited at another member is replaced within a second, and its last content is
kept beside it. Files that this process cannot replace, for example those of a mounted secret, remain.
"""

from __future__ import annotations

import logging
from typing import Final

from cometmq.auth.model import AuthError
from cometmq.auth.plain_copy import OLD_ENDING, BeingChangedError, NotReadableError, PlainCopy, ReadOnlyFilesError
from cometmq.auth.plain_files import PlainFiles
from cometmq.broker.replication.copies.set_copy import asked
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.members import FollowerSide, MasterSide
from cometmq.loop import completed
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import SetCopyRequestHeader, SetCopyResponseHeader
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)


class SetAccountsProcessor:
    """The master's side."""

    def __init__(self, files: PlainFiles, side: MasterSide) -> None:
        self._copy = PlainCopy(files)
        self._side = side

    @answers(
        RequestCode.GET_SET_ACCOUNTS,
        limits=("MAX_COPIED_ACL_BYTES", "MAX_ACL_FILES"),
        permission=needs_cluster(Action.UPDATE),
    )
    async def accounts(
        self, _connection: ServerConnection, request: Request[SetCopyRequestHeader], _body: bytes
    ) -> Response:
        """Return all account files for a member of the set, or nothing if they are the same."""
        epoch = self._side.epoch
        if not epoch:
            return Response(ResponseCode.SYSTEM_ERROR, remark="this member is not the master")
        try:
            version = await in_thread(self._copy.version)
            if version == request.header.version:
                return Response(header=SetCopyResponseHeader(version, epoch))
            version, body = await in_thread(self._copy.exported, request.header.account)
        except BeingChangedError as error:
            return Response(ResponseCode.SYSTEM_BUSY, remark=str(error))
        except NotReadableError as error:
            return Response(ResponseCode.NO_MESSAGE, remark=str(error))
        except AuthError as error:
            return Response(ResponseCode.NO_PERMISSION, remark=str(error))
        return Response(header=SetCopyResponseHeader(version, epoch), body=body)


class AccountCopy:
    """A follower's side.

    :param client: signs with this broker's account.
    """

    name: Final = "account files"

    def __init__(self, files: PlainFiles, client: RemotingClient, side: FollowerSide) -> None:
        self._copy: Final = PlainCopy(files)
        self._client: Final = client
        self._side: Final = side
        self._said = ""

    def begin_with_master(self) -> None:
        """Do nothing: each copy compares everything."""

    async def copy(self, master: str) -> None:
        """Replace the files by the master's if they differ.

        :raises ReplicationError: the master does not return them, or they cannot be used or written.
        :raises RemotingError: the master does not answer.
        """
        credentials = self._client.credentials
        if credentials is None:
            self._say("this broker has no account in tools.yml: give each member the same account files")
            return
        try:
            header = SetCopyRequestHeader(await in_thread(self._copy.version), credentials.access_key)
        except NotReadableError:
            header = SetCopyRequestHeader("", credentials.access_key)
        answer = await asked(self._client, master, RequestCode.GET_SET_ACCOUNTS, header, self._side)
        if answer is None:
            return
        if answer.code in (ResponseCode.NO_MESSAGE, ResponseCode.NO_PERMISSION):
            self._say(f"the master does not return them: {answer.remark}")
            return
        if answer.code == ResponseCode.SYSTEM_BUSY:  # then a change is not copied, so the tool must wait for it
            raise ReplicationError(f"the master does not return them yet: {answer.remark}")
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(
                f"GET_SET_ACCOUNTS: code {answer.code}, {answer.remark}",
                next_step="set the same keys of accounts on all members of the set",
            )
        if answer.body:
            await self._take_over(answer.body, credentials.secret_key, master)
        else:
            self._said = ""

    async def _take_over(self, body: bytes, key: str, master: str) -> None:
        try:
            found = await completed(in_thread(self._copy.take_over, body, key))
        except ReadOnlyFilesError as error:
            self._say(f"they differ from the master's, but this broker cannot replace them: {error}")
            return
        except AuthError as error:
            raise ReplicationError(f"the master's account files cannot be used: {error}") from error
        self._said = ""
        _log.log(
            logging.WARNING if found.were_edited else logging.INFO,
            "%s: replaced by those of the master %s%s",
            ", ".join(found.names),
            master,
            f", since they differed here; the last content is in files that end in {OLD_ENDING}"
            if found.were_edited
            else "",
        )

    def _say(self, text: str) -> None:
        """Log a reason once while it recurs: it does not keep this member from following the master."""
        if text != self._said:
            self._said = text
            _log.warning("the account files are not copied from the master: %s", text)
