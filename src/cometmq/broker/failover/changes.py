"""The last changes of a set and of one member, as one process has seen them, for people and metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.broker.failover.document import Document
from cometmq.broker.failover.machine import MemberMachine
from cometmq.broker.failover.states import State
from cometmq.broker.limits import MAX_FAILOVER_CHANGES


class ChangeLog:
    """Remembers the last versions of the document, and since when the member is in its state.

    :param wall_ms: returns the wall time.
    """

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._state = State.STARTING
        self._last: Document | None = None
        self.since_ms = wall_ms()
        """Wall time of the last change of state."""
        self.elections = 0
        """Number of epochs that began while this process was running."""
        self.documents: Final[deque[Document]] = deque(maxlen=MAX_FAILOVER_CHANGES)
        """The last versions of the document, the newest last."""

    def observe(self, machine: MemberMachine) -> None:
        """Note what an event has changed; the driver calls this after each event."""
        if machine.state is not self._state:
            self._state = machine.state
            self.since_ms = self._wall_ms()
        document = machine.view.document
        if document is self._last or document is None:
            return
        last, self._last = self._last, document
        if last is not None and document.order <= last.order:
            return
        if last is not None and document.epoch > last.epoch:
            self.elections += document.epoch - last.epoch
        self.documents.append(document)
