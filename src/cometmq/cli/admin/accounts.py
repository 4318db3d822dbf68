"""Connects the commands for users and policies to a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from cometmq.cli.connection import administer
from cometmq.client.admin import Admin
from cometmq.client.errors import BrokerError
from cometmq.errors import CometMQError
from cometmq.remoting.codes import ResponseCode

T = TypeVar("T")


def administer_accounts(namesrv: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run work like :func:`~cometmq.cli.connection.administer`, but raise a clearer error if a server supports no
    users.

    :raises CometMQError: no nameserver can be reached, the work fails, or a server does not support users.
    """
    try:
        return administer(namesrv, work)
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise CometMQError(
            f"{error.address} does not support users and policies",
            next_step="set authenticationEnabled=true on the server; Apache's servers support them since RocketMQ 5.3",
        ) from error
