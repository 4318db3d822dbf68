"""Errors for requests that received no response or were denied by an ACL."""

from __future__ import annotations

from typing import Final

from cometmq.errors import CometMQError
from cometmq.remoting.codes import ResponseCode


class RemotingError(CometMQError):
    """A request received no response; ``address`` is the peer."""

    def __init__(self, address: str, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message, next_step=next_step)
        self.address = address

    @property
    def cause(self) -> BaseException | None:
        """The underlying error, if there is one."""
        return self.__cause__


class RemotingConnectError(RemotingError):
    """A connection could not be opened. Nothing was sent."""


class RemotingSendError(RemotingError):
    """The connection was lost after the request was sent. The peer may have executed the request."""


class RemotingTimeoutError(RemotingError):
    """No response arrived in time. The peer may have executed the request."""


class RemotingTooMuchRequestError(RemotingError):
    """Too many requests to this peer remained unanswered until the timeout. Nothing was sent."""


class RemotingClosedError(RemotingError):
    """The client was closed."""


class ForkedError(RemotingError):
    """The client was created in the parent process. Sockets and threads do not survive a fork."""


_MARK: Final = "AclException"
_STEPS: Final = (
    ("No accessKey is configured", "this server requires credentials: set an access key and its secret key"),
    (
        "No acl config for",
        "the server has no account with this access key: check the key and the server's plain_acl.yml",
    ),
    ("Check signature failed", "the secret key does not belong to this access key"),
    ("Need admin permission", "this request requires an account with admin: true"),
)
_STEPS_OF_5: Final = (
    ("username cannot be null", "this server requires credentials: set an access key and its secret key"),
    (" is not found.", "the server has no user with this access key: check the key"),
    (" is disabled.", "an administrator has disabled this user"),
    ("check signature failed", "the secret key is not this user's password"),
    ("has no permission to access", "ask an administrator for a policy: cometmq acl create"),
)
_UNKNOWN_CALLER: Final = (*(mark for mark, _ in _STEPS[:3]), *(mark for mark, _ in _STEPS_OF_5[:4]))
_NOT_ALLOWED: Final = "check the account's topicPerms and groupPerms on the server"


def denial_step(code: int, remark: str | None) -> str | None:
    """Return the next step after an ACL denial, or ``None`` for any other response.

    ACL 1.0 answers with code 1 and the text of an ``AclException``; ACL 2.0 answers with code 16.
    """
    if code == ResponseCode.NO_PERMISSION and remark:
        return next((step for mark, step in _STEPS_OF_5 if mark in remark), None)
    if code != ResponseCode.SYSTEM_ERROR or not remark or _MARK not in remark:
        return None
    return next((step for mark, step in _STEPS if mark in remark), _NOT_ALLOWED)


def is_unknown_caller(remark: str | None) -> bool:
    """Return whether a denial means that authentication failed, rather than that a permission is missing."""
    return any(mark in (remark or "") for mark in _UNKNOWN_CALLER)
