"""Passes what arrives in the thread of the connections to the thread of a Kombu connection."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from typing import Any


class Waiting:
    """Counts messages that wait in a mailbox: one thread changes each of the two numbers, so no change is lost."""

    arrived = 0
    taken = 0

    @property
    def number(self) -> int:
        """The messages that wait now."""
        return self.arrived - self.taken


class Mailbox:
    """A queue with a descriptor that is readable while it may have items, so that an event loop can wait for them."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._is_awake = False
        """True if the descriptor is readable."""
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._reader.fileno()

    def put(self, *items: Any) -> None:
        """Add items, from any thread."""
        self._items.extend(items)
        self.wake_if_filled()

    def wake_if_filled(self) -> None:
        """Make the descriptor readable if there are items."""
        if self._items and not self._is_awake:
            self._is_awake = True
            with suppress(OSError):  # it is closed
                self._writer.send(b"\0")

    def remove(self, owner: object, queue: str | None = None, *, member: object = None) -> list[Any]:
        """Remove and return the messages of an owner, or only those of one of its queues or receivers.

        An item is a pair of its owner and a message, which begins with its queue and ends with its receiver.
        """
        removed, count = [], len(self._items)
        for _ in range(count):
            item = self._items.popleft()
            if item[0] is owner and queue in (None, item[1][0]) and member in (None, item[1][2]):
                removed.append(item[1])
            else:
                self._items.append(item)
        return removed

    def take(self) -> Any | None:
        """Return the next item, or ``None`` if there is none."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def drain(self) -> None:
        """Make the descriptor not readable; call it before :meth:`take`."""
        with suppress(OSError):
            self._reader.recv(4096)
        self._is_awake = False

    def wait(self, timeout: float | None) -> bool:
        """Wait until there may be an item, at most ``timeout`` seconds; return whether there may be one."""
        if self._items or timeout == 0:
            return bool(self._items)
        self._reader.settimeout(timeout)
        try:
            self._reader.recv(4096)
        except OSError:
            return bool(self._items)
        finally:
            self._is_awake = False  # also if a signal handler raises: later items must make the descriptor readable
            with suppress(OSError):
                self._reader.setblocking(False)
        return True

    def close(self) -> None:
        """Close the descriptor."""
        self._items.clear()
        self._reader.close()
        self._writer.close()
