"""Asks the process that has announced this member's name whether it lives, by a sign-in that it refuses."""

from __future__ import annotations

import asyncio
import logging
from ssl import SSLContext

from cometmq.broker.failover.engines.interface import Presence
from cometmq.broker.replication.master_connection import MasterConnection
from cometmq.broker.replication.member_sign_in import Accepted, AnswerReader, SignInRefusedError, sign_in_frame
from cometmq.broker.replication.members import SetMember
from cometmq.clock import Clock, wait_for
from cometmq.errors import CometMQError, reason_of
from cometmq.remoting.client import RemotingClient

_log = logging.getLogger(__name__)

_ANY_EPOCH = 1


async def has_twin(
    side: SetMember, client: RemotingClient, twin: Presence, tls: SSLContext | None, limit_s: float, *, clock: Clock
) -> bool:
    """Return whether another process with this member's name answers within ``limit_s`` seconds.

    The other process logs the refusal, too, so that a person finds the cause at both.

    :param client: signs the sign-in with this broker's account.
    """
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    reader = AnswerReader(_ANY_EPOCH)

    def received(data: bytes) -> None:
        answer: Accepted | None = reader.feed(data)
        if answer is not None and not answered.done():
            answered.set_result(None)

    connection = MasterConnection(received, clock=clock, heartbeat_s=limit_s, silence_s=limit_s)

    async def call() -> Exception | None:
        await connection.open(twin.ha_address, limit_s, tls)
        connection.write(sign_in_frame(side, client, twin.address, _ANY_EPOCH, 0))
        ended = connection.ended
        await asyncio.wait((answered, ended), return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() else None

    try:
        end = await wait_for(clock, limit_s, call())
    except (CometMQError, OSError, ValueError) as error:
        end = error
    finally:
        connection.abort()
    if isinstance(end, SignInRefusedError) and end.twin:
        return end.twin != side.process
    why = "" if end is None else f": {reason_of(end) if isinstance(end, OSError) else end}"
    _log.info("no process with the name %s answers at %s%s", side.me.name, twin.ha_address, why)
    return False
