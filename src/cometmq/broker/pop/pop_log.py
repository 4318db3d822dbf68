"""PopLog: stores the entries of a turn as one record at the end of the turn.

A request that pops, acknowledges or changes the invisible time adds an entry. The entry changes the state immediately;
the request is answered when the record is as durable as a send (flushed with SYNC_FLUSH, on a slave with SYNC_MASTER).
If the turn is not stored, the state is restored and the requests are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_POP_LOG_ENTRIES
from cometmq.broker.pop.entries import Acked, AnyEntry, Changed, Popped, PoppedInOrder, Revived, encode_entries, joined
from cometmq.broker.pop.state import PopState, Undo
from cometmq.broker.statistics.pop_counts import ACK, CHECKPOINT, Ends
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.store_turn import Late, call_all
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.names import POP_LOG_TOPIC, RETRY_PREFIX

_log = logging.getLogger(__name__)

Done = Callable[[RefusedError | None], None]
"""Callback with ``None`` once an entry is as durable as a send, or with the reason why it is not."""
_COUNTED: Final[Mapping[type[AnyEntry], tuple[str, ...]]] = {
    Popped: (CHECKPOINT,),
    PoppedInOrder: (CHECKPOINT,),
    Acked: (ACK,),
    Changed: (CHECKPOINT, ACK),
}
"""The events counted for each kind of entry. As in Apache's broker, a change counts as an acknowledgement and a pop."""


class PopLog:
    """Adds entries to the POP log.

    ``end_round`` must be called at the end of each round of the loop, before the turn is stored.
    """

    def __init__(self, broker: BrokerContext, state: PopState) -> None:
        self.state = state
        self.put_entries = 0
        """Number of entries since the broker started."""
        self._topics = broker.topics
        self._turn = broker.turn
        self._clock = broker.clock
        self._counts = None if broker.stats.traffic is None else broker.stats.traffic.pops
        self._host = broker.host
        self._schedule = broker.schedule_round
        self._waiting: list[tuple[AnyEntry, Undo]] = []
        self._done: list[Done] = []
        self._late: list[Late] = []

    @property
    def pending(self) -> int:
        """Return the number of entries that will be stored at the end of the turn."""
        return len(self._waiting)

    def check(self) -> None:
        """Check that entries can be stored now.

        :raises RefusedError: nothing can be stored now.
        """
        turn = self._turn
        if not turn.is_open:
            turn.begin()
            self._schedule()
        if turn.refusal is not None:
            raise turn.refusal
        if self._topics.get(POP_LOG_TOPIC) is None:
            self._topics.create_retry(POP_LOG_TOPIC)

    def add(self, entry: AnyEntry) -> None:
        """Apply an entry and store it at the end of the turn; call this method between :meth:`check` and
        :meth:`when_stored`.
        """
        self._waiting.append((entry, self.state.apply(entry)))

    def when_stored(self, done: Done, late: Late | None = None) -> None:
        """Call ``done`` once all entries added so far are stored.

        :param late: called first if the flush takes longer than ``syncFlushTimeout``.
        """
        self._done.append(done)
        if late is not None:
            self._late.append(late)
        self._schedule()
        if len(self._waiting) >= MAX_POP_LOG_ENTRIES:
            self.end_round()

    def when_stored_or_late(self, done: Done) -> None:
        """Call ``done`` once, as :meth:`when_stored` does; a late flush does not delay it.

        After a power cut, messages whose pop was answered before the flush are handed out once more.
        """
        is_done = False

        def once(refusal: RefusedError | None) -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                done(refusal)

        self.when_stored(once, late=lambda: once(None))

    def end_round(self) -> None:
        """Store the turn's entries."""
        if not self._waiting:
            return
        waiting, done, late = self._waiting, self._done, self._late
        self._waiting, self._done, self._late = [], [], []

        def when_stored(outcome: Stored | RefusedError) -> None:
            self._finish(waiting, done, outcome if isinstance(outcome, RefusedError) else None)

        self.put_entries += len(waiting)
        try:
            self._turn.put_inner(
                self.to_record(joined([entry for entry, _ in waiting])),
                when_stored,
                late=partial(call_all, late) if late else None,
            )
        except RefusedError as refused:
            self._finish(waiting, done, refused)

    def put_with(self, entries: Sequence[AnyEntry], messages: list[InnerMessage], done: Done) -> None:
        """Apply entries and store them together with messages, either all or none.

        :raises RefusedError: nothing can be stored now; nothing was changed.
        """
        self.end_round()
        waiting = [(entry, self.state.apply(entry)) for entry in entries]

        def when_stored(outcome: Stored | RefusedError) -> None:
            self._finish(waiting, [done], outcome if isinstance(outcome, RefusedError) else None)

        try:
            self._turn.put_together([self.to_record(list(entries)), *messages], when_stored)
        except RefusedError as refused:
            self._finish(waiting, [], refused)
            raise
        self.put_entries += len(waiting)

    def to_record(self, entries: list[AnyEntry]) -> InnerMessage:
        """Return the POP log record for a list of entries."""
        return InnerMessage(POP_LOG_TOPIC, 0, encode_entries(entries), "", 0, 0, self._clock.now_ms(), self._host)

    def _finish(self, waiting: list[tuple[AnyEntry, Undo]], done: list[Done], refusal: RefusedError | None) -> None:
        if self._counts is not None:
            entries = [entry for entry, _ in waiting]
            self._counts.logged(_handle_ends(entries), _retry_copies(entries), stored=refusal is None)
        if refusal is not None:
            for _, undo in reversed(waiting):
                undo()
        for one in done:
            try:
                one(refusal)
            except Exception:
                _log.exception("a callback failed after its POP log entry was stored or refused")


def _handle_ends(entries: Iterable[AnyEntry]) -> Iterable[Ends]:
    return ((entry.group, entry.topic, kind) for entry in entries for kind in _COUNTED.get(type(entry), ()))


def _retry_copies(entries: Iterable[AnyEntry]) -> Iterable[tuple[str, str]]:
    """Return the group and topic of each message that was copied to a retry topic."""
    return (
        (entry.group, entry.topic)
        for entry in entries
        if isinstance(entry, Revived) and entry.copy_topic.startswith(RETRY_PREFIX)
    )
