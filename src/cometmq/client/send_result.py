"""What a producer is told about a message that was stored (``SendResult``, ``SendStatus``)."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import ResponseCode


class SendStatus(Enum):
    """How safe the message is by now; it is stored in every case."""

    SEND_OK = "SEND_OK"
    """Stored as the broker was configured to."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Stored, not yet flushed to disk (SYNC_FLUSH)."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Stored, not yet confirmed by a slave (SYNC_MASTER)."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """Stored, but there is no slave that could take it (SYNC_MASTER)."""


STATUS_BY_CODE: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


class SendResult(msgspec.Struct, frozen=True):
    """Where a message stands."""

    status: SendStatus
    msg_id: str
    """The client's id (UNIQ_KEY); what consumers see as ``msg_id``."""
    offset_msg_id: str
    """The broker's id: its address and the log offset, in hex."""
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None
    """Of a message with a delay of its own: what ``Producer.recall`` takes. RocketMQ gives it since 5.3.2."""
