"""What a slave asks its master before it follows the master's log: where that begins, and whether it is the same log.

Apache's protocol of replication tells neither. A slave without a log gets only the master's last file then, and one
whose log has parted from the master's (either had lost its end) takes the rest all the same. By ordinary requests,
which Apache's master answers too, a new slave gets everything that the master keeps, and one that has parted stops.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.replication.frames import ReplicationError
from cometmq.remoting.bodies import KVTable, decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ViewMessageRequestHeader
from cometmq.store.message_store import MessageStore

_EMPTY_STORE: Final = "save what you need of it, then start with an empty store: it is filled from the master"
PARTED_NEXT_STEP: Final = f"{_EMPTY_STORE}; or make this broker the master"


async def find_common_ground(store: MessageStore, client: RemotingClient, master: str) -> None:
    """Give an empty log the beginning of the master's; see that a log that is not empty is the master's.

    :param master: ``host:port`` for requests.
    :raises ReplicationError: this log cannot be followed from where it ends.
    :raises RemotingError: the master does not answer.
    :raises BodyError: its answer cannot be read.
    :raises StoreError: the beginning cannot be stored.
    """
    first, end = await log_range(client, master)
    log = store.replicated
    if log.is_empty:
        if first > 0 and end > first:
            log.begin_at(first)
        elif first == 0 and end > 0:
            record = await _record(client, master, 0)
            if not record:
                raise ReplicationError(f"master {master} does not give the first message of its log; it is asked again")
            log.append(0, record)
        return
    if log.end > end:
        raise ReplicationError(
            f"the log here ends at {log.end}, that of master {master} at {end}: what is behind that is here alone",
            next_step=PARTED_NEXT_STEP,
        )
    if log.end < first:
        raise ReplicationError(
            f"the log here ends at {log.end}, and master {master} keeps no byte before {first}", next_step=_EMPTY_STORE
        )
    offset, size = store.last_record
    if offset >= first and await _record(client, master, offset) != store.record_at(offset, size):
        raise ReplicationError(
            f"the record at log offset {offset} is another one at master {master}: the logs have parted",
            next_step=PARTED_NEXT_STEP,
        )


async def log_range(client: RemotingClient, master: str) -> tuple[int, int]:
    """The log offsets at which a master's log begins and ends.

    :raises ReplicationError: it does not tell.
    :raises RemotingError: it does not answer.
    :raises BodyError: its answer cannot be read.
    """
    answer = await client.invoke(master, RequestCode.GET_BROKER_RUNTIME_INFO)
    info = decode_body(KVTable, answer.body).table
    try:
        return int(info["commitLogMinOffset"]), int(info["commitLogMaxOffset"])
    except (KeyError, ValueError) as error:
        raise ReplicationError(f"master {master} does not tell where its log begins and ends: {error}") from error


async def _record(client: RemotingClient, master: str, offset: int) -> bytes:
    answer = await client.invoke(master, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))
    return answer.body if answer.code == ResponseCode.SUCCESS else b""
