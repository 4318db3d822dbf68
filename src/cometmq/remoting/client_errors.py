"""What can go wrong between this client and one address, before any answer arrives."""

from __future__ import annotations

from cometmq.errors import CometMQError


class RemotingError(CometMQError):
    """A request got no answer. ``address`` is the peer that it was meant for."""

    def __init__(self, address: str, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message, next_step=next_step)
        self.address = address

    @property
    def cause(self) -> BaseException | None:
        """The failure underneath, where there is one."""
        return self.__cause__


class RemotingConnectError(RemotingError):
    """No connection could be opened; nothing was sent."""


class RemotingSendError(RemotingError):
    """The connection ended while the request was on its way; whether the peer acted on it is unknown."""


class RemotingTimeoutError(RemotingError):
    """No answer within the time given; whether the peer acted on the request is unknown."""


class RemotingTooMuchRequestError(RemotingError):
    """Too many requests were waiting for answers of this peer for the whole time given; nothing was sent."""


class RemotingClosedError(RemotingError):
    """The client was closed."""


class ForkedError(RemotingError):
    """The client was made in the parent process; sockets and threads do not survive a fork."""
