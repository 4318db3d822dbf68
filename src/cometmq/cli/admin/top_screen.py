"""The screen of ``cometmq top``, which updates a table in place and reads single keys."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from cometmq.cli.output import Column, text_of
from cometmq.client.admin.activity import BrokerActivity
from cometmq.errors import CometMQError
from cometmq.visible import visible

_VIEW_KEYS: Final = {"t": "topics", "g": "groups", "c": "clients"}
_ENTER: Final = "\r\n"
_BACKSPACE: Final = "\x7f\b"
_ESCAPE: Final = "\x1b"
MAX_FILTER: Final = 127


@dataclass(frozen=True)
class Keys:
    """Keys pressed since the last read."""

    view: str | None = None
    next_sort: bool = False
    filter: str = ""
    typing: bool = False
    """True while the user is typing the filter."""
    quit: bool = False

    def press(self, key: str) -> Keys:
        """Return a copy with one more key added."""
        if self.typing:
            if key in _ENTER:
                return replace(self, typing=False)
            if key == _ESCAPE:
                return replace(self, typing=False, filter="")
            if key in _BACKSPACE:
                return replace(self, filter=self.filter[:-1])
            return (
                replace(self, filter=self.filter + key) if key.isprintable() and len(self.filter) < MAX_FILTER else self
            )
        if key in _VIEW_KEYS:
            return replace(self, view=_VIEW_KEYS[key])
        if key == "s":
            return replace(self, next_sort=True)
        if key == "/":
            return replace(self, typing=True, filter="")
        return replace(self, quit=True) if key in ("q", "\x03") else self


class Screen:
    """Draws on the terminal's alternate screen, and reads single keys until the end of the block."""

    def __init__(self, filter_text: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._before: list[Any] = []
        self._pressed = asyncio.Event()
        self.keys = Keys(filter=filter_text)

    def __enter__(self) -> Self:
        if sys.platform == "win32":
            raise CometMQError(
                "this terminal cannot read single keys, which a live view needs", next_step="use top --once"
            )
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        self._before = termios.tcgetattr(descriptor)
        tty.setcbreak(descriptor)
        asyncio.get_running_loop().add_reader(descriptor, self._read)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import termios

        self._live.stop()
        descriptor = sys.stdin.fileno()
        asyncio.get_running_loop().remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, self._before)

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 256)
        if not data:
            self.keys = replace(self.keys, quit=True)
        for key in data.decode(errors="replace"):
            self.keys = self.keys.press(key)
        self._pressed.set()

    async def wait(self, other: asyncio.Task[Any]) -> None:
        """Wait until a key is pressed or a task has finished."""
        key = asyncio.create_task(self._pressed.wait())
        await asyncio.wait((key, other), return_when=asyncio.FIRST_COMPLETED)
        key.cancel()
        self._pressed.clear()

    def take_keys(self) -> Keys:
        """Return the pressed keys, and reset those that act only once."""
        keys = self.keys
        self.keys = replace(keys, view=None, next_sort=False)
        return keys

    def draw(
        self,
        brokers: Sequence[BrokerActivity],
        title: str,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[Column],
        trouble: str,
    ) -> None:
        """Draw the brokers, followed by as many rows as fit."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        head = [Text(visible(_broker_line(one)), style="red" if one.trouble else "") for one in brokers[:8]]
        if len(brokers) > len(head):
            head.append(Text(f"… {len(brokers) - len(head)} more brokers"))
        if trouble:
            head.append(Text(visible(trouble), style="red"))
        head.append(Text(f"filter: {visible(self.keys.filter)}▏" if self.keys.typing else title, style="bold"))
        room = max(1, self._console.height - len(head) - 3)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
        for column in columns:
            table.add_column(
                column.title, justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis"
            )
        for row in rows[:room]:
            table.add_row(*(visible(text_of(row[column.key])) for column in columns))
        left = Text(f"{len(rows):,} in total" if len(rows) > room else "" if rows else "none")
        self._live.update(Group(*head, table, left), refresh=True)


def _broker_line(broker: BrokerActivity) -> str:
    if broker.trouble:
        return f"{broker.broker} {broker.address}  away: {broker.trouble}"
    return f"{broker.broker} {broker.address}  in {text_of(broker.in_per_s)}/s  out {text_of(broker.out_per_s)}/s"
