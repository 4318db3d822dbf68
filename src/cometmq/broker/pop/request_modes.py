"""Message request modes: POP or PULL for each topic and group (``MessageRequestModeManager``).

They are kept in ``config/messageRequestMode.json``, in Apache's form.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from cometmq.broker.limits import MAX_REQUEST_MODES
from cometmq.broker.tables.table_file import TableFile
from cometmq.remoting.bodies import Body

PULL: Final = "PULL"
POP: Final = "POP"


class RequestMode(Body):
    """The mode of a group for a topic, and the body of SET_MESSAGE_REQUEST_MODE (401)."""

    topic: str
    consumer_group: str
    mode: Literal["PULL", "POP"] = PULL
    pop_share_queue_num: int = 0
    """With POP: so many further members share the queues of each member; 0: all share all."""


class RequestModeTable(Body):
    """All modes, by topic and group: the file, and the answer to GET_ALL_MESSAGE_REQUEST_MODE (402)."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = {}  # noqa: RUF012 - msgspec copies it


class MessageRequestModeManager:
    """The table; ``path`` is its file."""

    def __init__(self, path: Path) -> None:
        self._file = TableFile(path)
        self._modes: dict[tuple[str, str], RequestMode] = {}

    def load(self) -> list[str]:
        """Read the file; return a line for each thing found wrong."""
        loaded = self._file.load_body(RequestModeTable)
        if loaded is not None:
            self._modes = _by_topic_and_group(loaded)
        return list(self._file.findings)

    def get(self, topic: str, group: str) -> RequestMode | None:
        """The mode of a group for a topic, if one was set."""
        return self._modes.get((topic, group))

    def put(self, mode: RequestMode) -> bool:
        """Set a mode; ``False`` when the table is full."""
        key = (mode.topic, mode.consumer_group)
        if key not in self._modes and len(self._modes) >= MAX_REQUEST_MODES:
            return False
        self._modes[key] = mode
        self._file.changed()
        self.save()
        return True

    def take_over(self, table: RequestModeTable) -> None:
        """Become a copy of a master's table."""
        modes = _by_topic_and_group(table)
        if modes != self._modes:
            self._modes = modes
            self._file.changed()
        self.save()

    def table(self) -> RequestModeTable:
        """All modes."""
        table: dict[str, dict[str, RequestMode]] = {}
        for (topic, group), mode in self._modes.items():
            table.setdefault(topic, {})[group] = mode
        return RequestModeTable(message_request_mode_map=table)

    def save(self) -> None:
        """Write the file if the table changed; on a full disk it stays due."""
        if self._file.take_due():
            self._file.write(self.table())


def _by_topic_and_group(table: RequestModeTable) -> dict[tuple[str, str], RequestMode]:
    return {
        (mode.topic, mode.consumer_group): mode
        for of_topic in table.message_request_mode_map.values()
        for mode in of_topic.values()
    }
