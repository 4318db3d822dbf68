"""Something else takes the place of a half message: a copy of it, or what is kept when it is given up."""

from __future__ import annotations

from cometmq.broker.half_message import op_message
from cometmq.broker.inner_message import InnerMessage, Stored
from cometmq.broker.open_transactions import OpenTransactions
from cometmq.broker.send_targets import SendRefusedError
from cometmq.broker.store_turn import StoreTurn, WhenStored
from cometmq.message.record import StoredRecord


def replace_half(
    table: OpenTransactions,
    turn: StoreTurn,
    half: StoredRecord,
    message: InnerMessage,
    store_host: bytes,
    now_ms: int,
    done: WhenStored,
) -> None:
    """Put what replaces a half message, then the op message for it, into one turn.

    The replacement goes first: a crash between the two leaves both, never neither. ``done`` is told where
    the replacement stands, and tells the table; if nothing was stored the table knows already.

    :raises SendRefusedError: nothing can be stored now.
    """
    offset = half.queue_offset

    def told(outcome: Stored | SendRefusedError) -> None:
        if isinstance(outcome, SendRefusedError):
            table.unchanged(offset)
            done(outcome)
        else:
            done(places[0])

    table.begin_change(offset)
    try:
        places = turn.put_together(((message, None), (op_message(offset, store_host, now_ms), None)), told)
    except SendRefusedError:
        table.unchanged(offset)
        raise
