"""Errors for requests that got no answer or were denied by an ACL."""

from __future__ import annotations

from typing import Final

from cometmq.errors import CometMQError
from cometmq.remoting.codes import ResponseCode


class RemotingError(CometMQError):
    """A request got no answer; ``address`` is the peer."""

    def __init__(self, address: str, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message, next_step=next_step)
        self.address = address

    @property
    def cause(self) -> BaseException | None:
        """The underlying failure, if there is one."""
        return self.__cause__


class RemotingConnectError(RemotingError):
    """A connection could not be opened; nothing was sent."""


class RemotingSendError(RemotingError):
    """The connection ended after the request was sent; the peer may have acted on it."""


class RemotingTimeoutError(RemotingError):
    """No answer arrived in time; the peer may have acted on the request."""


class RemotingTooMuchRequestError(RemotingError):
    """Too many requests to this peer remained unanswered until the timeout; nothing was sent."""


class RemotingClosedError(RemotingError):
    """The client was closed."""


class ForkedError(RemotingError):
    """The client was created in the parent process; sockets and threads do not survive a fork."""


_MARK: Final = "AclException"
_STEPS: Final = (
    ("No accessKey is configured", "this server requires credentials: set an access key and its secret key"),
    ("No acl config for", "the server has no account with this access key: check the key, and its plain_acl.yml"),
    ("Check signature failed", "the secret key is not the one of this access key"),
    ("Need admin permission", "this needs an account with admin: true"),
)
_STEPS_OF_5: Final = (
    ("username cannot be null", "this server requires credentials: set an access key and its secret key"),
    (" is not found.", "the server has no user with this access key: check the key"),
    (" is disabled.", "an administrator has disabled this user"),
    ("check signature failed", "the secret key is not the password of this user"),
    ("has no permission to access", "ask an administrator for a policy: cometmq acl create"),
)
_UNKNOWN_CALLER: Final = (*(mark for mark, _ in _STEPS[:3]), *(mark for mark, _ in _STEPS_OF_5[:4]))
_NOT_ALLOWED: Final = "the account has no permission for this: see its topicPerms and groupPerms at the server"


def denial_step(code: int, remark: str | None) -> str | None:
    """Return the next step for the user after an ACL denial, or ``None`` for any other answer.

    ACL 1.0 answers with code 1 and the text of an ``AclException``; ACL 2.0 answers with code 16.
    """
    if code == ResponseCode.NO_PERMISSION and remark:
        return next((step for mark, step in _STEPS_OF_5 if mark in remark), None)
    if code != ResponseCode.SYSTEM_ERROR or not remark or _MARK not in remark:
        return None
    return next((step for mark, step in _STEPS if mark in remark), _NOT_ALLOWED)


def is_unknown_caller(remark: str | None) -> bool:
    """Return whether a denial means failed authentication rather than a missing permission."""
    return any(mark in (remark or "") for mark in _UNKNOWN_CALLER)
