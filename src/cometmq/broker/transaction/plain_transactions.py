"""Transactions in the compiled core: half messages, commits and rollbacks (hot path).

The core (see :mod:`cometmq.broker.turn.plain_sends`) parks half messages, and handles END_TRANSACTION for half messages
that have no copy. Python handles copies and transactions with a pending change. It handles all ends of transactions
under SYNC_FLUSH and SYNC_MASTER, and if accounts or quotas are checked or metrics are counted.

An end is recorded in the table of open transactions when the core adds its records, before any other code can run. Once
the records are stored, the request is answered and the transaction is removed from the table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import HALF_PROPERTIES_RESERVE_BYTES
from cometmq.broker.transaction.half_message import HALF_QUEUE, OP_PROPERTIES, OP_TAGS_CODE, room_for_halves
from cometmq.broker.transaction.open_transactions import OpenTransactions
from cometmq.broker.turn.inner_message import Stored
from cometmq.broker.turn.plain_sends import End
from cometmq.broker.turn.targets import RefusedError, SendTargets
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from cometmq.remoting.frame import JSON, ROCKETMQ
from cometmq.remoting.processors import Response, encode_response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore

_DONE: Final = Response()
_WORDS: Final = struct.Struct(">II")
_DONE_HEADER: Final = b"".join(encode_response(JSON, 0, _DONE))[_WORDS.size :].replace(b'"opaque":0', b'"opaque":%d')
"""The header of the response to a commit or rollback, without opaque and lengths."""


def _done_answer(opaque: int, *, is_binary: bool) -> bytes:
    """Return the response to a commit or rollback."""
    if is_binary:
        return b"".join(encode_response(ROCKETMQ, opaque, _DONE))
    header = _DONE_HEADER % opaque
    return _WORDS.pack(4 + len(header), len(header)) + header


def _left_to_python(_offset: int, _physical_offset: int) -> None:
    """Leave all commits and rollbacks to Python."""


class PlainTransactions:
    """Connects the compiled core to the table of open transactions.

    :param counted: called with True for each committed transaction, with False for each one rolled back.
    :param takes_ends: False if metrics need more than the calls of ``counted``.
    """

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        targets: SendTargets,
        table: OpenTransactions,
        counted: Callable[[bool], None],
        *,
        takes_ends: bool,
    ) -> None:
        self._live = live
        self._store = store
        self._targets = targets
        self._table = table
        self._counted = counted
        self._takes_ends = takes_ends

    def register(self, core: Any) -> None:
        """Let the core handle half messages, commits and rollbacks."""
        halves, ops = (
            (topic, self._targets.inner(topic), self._store.queue(topic, HALF_QUEUE))
            for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)
        )
        core.take_transactions(
            halves,
            ops,
            (OP_PROPERTIES.encode(), OP_TAGS_CODE),
            MAX_PROPERTIES_BYTES - HALF_PROPERTIES_RESERVE_BYTES,
            self._table.read_open_half if self._takes_ends else _left_to_python,
            self._table.begin_change,
            self._half_room,
        )

    def _half_room(self) -> int:
        """Return the number of half messages that may be stored now."""
        if self._live.current.reject_transaction_message:
            return 0
        return room_for_halves(self._table.count_before_batch)

    def ended(self, ends: list[End], are_alone: bool, outcome: Stored | RefusedError) -> None:
        """Answer END_TRANSACTION requests that have been stored or refused.

        :param are_alone: True if the core has no other responses in this turn, so that they are written immediately.
        """
        if isinstance(outcome, RefusedError):
            response = outcome.response()
            for connection, opaque, is_binary, is_oneway, half_offset, _ in ends:
                if not is_oneway:
                    connection.write(*encode_response(ROCKETMQ if is_binary else JSON, opaque, response))
                self._table.cancel_change(half_offset)
            return
        answers: dict[ServerConnection, bytes] = {}
        for connection, opaque, is_binary, is_oneway, half_offset, is_commit in ends:
            self._counted(is_commit)
            if not is_oneway:
                answers[connection] = answers.get(connection, b"") + _done_answer(opaque, is_binary=is_binary)
            if self._table.is_awaited(half_offset):
                _write_answers(answers, are_alone)  # before the requests that wait for this end are answered
                answers.clear()
            self._table.end_stored(half_offset)
        _write_answers(answers, are_alone)


def _write_answers(answers: dict[ServerConnection, bytes], are_alone: bool) -> None:
    for connection, data in answers.items():
        if are_alone:
            connection.write_last(data)
        else:
            connection.write(data)
