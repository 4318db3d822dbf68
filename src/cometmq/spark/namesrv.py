"""Questions to the nameservers: the first that answers is believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.denials import denial_step
from cometmq.spark.access import Access
from cometmq.spark.connections import borrowed
from cometmq.spark.errors import SparkSourceError, UnreachableError

T = TypeVar("T")


def ask_namesrv(
    addresses: Sequence[str], access: Access, timeout_s: float, ask: Callable[[BlockingConnection], T]
) -> T:
    """Ask the first nameserver that answers.

    :raises UnreachableError: none does.
    """
    failures: list[BlockingConnectionError] = []
    for address in addresses:
        for _ in range(2):  # a cached connection may have been closed meanwhile
            try:
                with borrowed(address, access, timeout_s) as connection:
                    return ask(connection)
            except BlockingConnectionError as error:
                failure = error
        failures.append(failure)
    raise UnreachableError(
        f"no nameserver answers: {'; '.join(failure.message for failure in failures)}",
        next_step=failures[-1].next_step or "is option namesrvAddr right, and is it running?",
    )


def demand_success(answer: RemotingCommand) -> RemotingCommand:
    """Return the answer if it says success.

    :raises SparkSourceError: with its code and remark.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise SparkSourceError(
            f"the server answered with code {answer.code}: {answer.remark or 'no remark'}",
            next_step=denial_step(answer.code, answer.remark),
        )
    return answer
