"""Message request modes: POP or PULL for each topic and group (``MessageRequestModeManager``).

They are stored in ``config/messageRequestMode.json``, in Apache's format, and in the journal of that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from cometmq.broker.limits import MAX_REQUEST_MODES
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.broker.tables.row_writer import RowWriter, pieces_of_map
from cometmq.clock import Clock
from cometmq.remoting.bodies import Body

PULL: Final = "PULL"
POP: Final = "POP"
_DEPTH: Final = 3
"""Nesting depth of a mode in the file: table, topic, group."""


class RequestMode(Body):
    """A group's mode for a topic, and the body of SET_MESSAGE_REQUEST_MODE (401)."""

    topic: str
    consumer_group: str
    mode: Literal["PULL", "POP"] = PULL
    pop_share_queue_num: int = 0
    """Number of other members that share each member's queues in POP mode.

    If it is 0, all members share all queues.
    """


class RequestModeTable(Body):
    """All modes by topic and group, as in the file and in the response to GET_ALL_MESSAGE_REQUEST_MODE (402)."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = {}  # noqa: RUF012 - msgspec copies it


class MessageRequestModeManager:
    """The modes of all groups, stored in the file ``path``."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._file = JournaledFile(path, depth=_DEPTH, clock=clock)
        self.writer: Final = RowWriter(self._file, self._changed_rows, self._pieces)
        self.on_due: Callable[[], None] = self.writer.save
        """Called after each change, which must be written before its request is answered."""
        self._modes: dict[tuple[str, str], RequestMode] = {}

    def load(self) -> list[str]:
        """Load the file; return a line for each problem."""
        loaded = self._file.load_body(RequestModeTable)
        if loaded is not None:
            self._modes = _by_topic_and_group(loaded)
        return list(self._file.findings)

    def get(self, topic: str, group: str) -> RequestMode | None:
        """Return a group's mode for a topic, or ``None`` if none was set."""
        return self._modes.get((topic, group))

    def put(self, mode: RequestMode) -> bool:
        """Set a mode; return ``False`` if the table is full."""
        key = (mode.topic, mode.consumer_group)
        if key not in self._modes and len(self._modes) >= MAX_REQUEST_MODES:
            return False
        self._modes[key] = mode
        self.writer.changed(key)
        self.on_due()
        return True

    def take_over(self, table: RequestModeTable) -> None:
        """Replace all modes with the master's."""
        known, self._modes = self._modes, _by_topic_and_group(table)
        differing = [key for key in known | self._modes if known.get(key) != self._modes.get(key)]
        if differing:
            self.writer.changed(*differing)
            self.on_due()

    def table(self) -> RequestModeTable:
        """Return all modes."""
        return RequestModeTable(message_request_mode_map=self._by_topic())

    def _by_topic(self) -> dict[str, dict[str, RequestMode]]:
        table: dict[str, dict[str, RequestMode]] = {}
        for (topic, group), mode in self._modes.items():
            table.setdefault(topic, {})[group] = mode
        return table

    # --- writing ------------------------------------------------------------------------------
    def _changed_rows(self, keys: Iterable[tuple[str, str]]) -> bytes:
        table: dict[str, dict[str, RequestMode | None]] = {}
        for topic, group in keys:
            table.setdefault(topic, {})[group] = self.get(topic, group)
        return msgspec.json.encode({"messageRequestModeMap": table})

    def _pieces(self) -> Iterator[bytes]:
        return pieces_of_map("messageRequestModeMap", self._by_topic().items())


def _by_topic_and_group(table: RequestModeTable) -> dict[tuple[str, str], RequestMode]:
    return {
        (mode.topic, mode.consumer_group): mode
        for of_topic in table.message_request_mode_map.values()
        for mode in of_topic.values()
    }
