"""Waits until a broker's index holds what its log held when it was asked.

Apache RocketMQ answers a send as soon as the log has the message, and builds queues and index behind that, usually
within some milliseconds; a new index file takes it longer. Until then a message that it acknowledged is not found.
Its runtime information (GET_BROKER_RUNTIME_INFO, ``AdminBrokerProcessor.prepareRuntimeInfo``) tells the log's end
and, read after it, how many bytes wait to be dispatched, so their difference is never beyond what is dispatched.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from cometmq.clock import Clock
from cometmq.remoting.bodies import BodyError, KVTable, decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.spark.access import Access
from cometmq.spark.connections import borrowed
from cometmq.spark.errors import SinkError

UNTOLD_SECONDS: Final = 1.0
"""What a broker is given for its index that does not tell how far it is."""
_PAUSE_SECONDS: Final = 0.01


def await_dispatch(broker: str, address: str, access: Access, *, patience_s: float, clock: Clock) -> None:
    """Return when the index of a broker holds all that the broker has acknowledged until now.

    :param patience_s: also what is waited for each answer.
    :raises BlockingConnectionError: it does not answer.
    :raises SinkError: it is not as far within ``patience_s``.
    """
    wanted: int | None = None
    give_up_at = clock.monotonic() + patience_s
    while True:
        with borrowed(address, access, patience_s) as link:
            answer = link.invoke(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = _table(answer.body) if answer.code == ResponseCode.SUCCESS else {}
        try:
            end, behind = int(table["commitLogMaxOffset"]), int(table["dispatchBehindBytes"])
        except (KeyError, ValueError):
            threading.Event().wait(UNTOLD_SECONDS)
            return
        wanted = end if wanted is None else wanted
        if end - behind >= wanted:
            return
        if clock.monotonic() > give_up_at:
            raise SinkError(
                f"the index of broker {broker} ({address}) is {behind} bytes behind its log, so that nobody knows "
                "which rows are stored",
                next_step="is its disk slow or full? option sendTimeoutMs waits longer",
            )
        threading.Event().wait(_PAUSE_SECONDS)


def _table(body: bytes) -> Mapping[str, str]:
    try:
        return decode_body(KVTable, body).table
    except BodyError:
        return {}
