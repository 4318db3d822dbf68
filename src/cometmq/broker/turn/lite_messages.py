"""LiteMessages: gives messages of lite topics their offsets, when the turn takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class LiteMessages(Protocol):
    """Gives messages of lite topics their offsets."""

    def count_of(self, topic: str) -> int:
        """Return the number of lite topics of a parent topic."""

    @property
    def mark(self) -> int:
        """A point in the turn, for :meth:`take_back_to`."""

    def check_later(self, topic: str, properties: str) -> None:
        """Check that a message that waits first can be placed later.

        :raises RefusedError: it cannot be stored.
        """

    def place(self, topic: str, properties: str, *, is_promised: bool) -> tuple[str, Any] | None:
        """Return a message's new properties and its place, or ``None`` if it belongs to no lite topic.

        :param is_promised: True if the message was acknowledged before.
        :raises RefusedError: it cannot be stored.
        """

    def put(self, placed: Any, log_offset: int, /) -> None:
        """Add a placed message that the turn has taken."""

    def take_back_to(self, mark: int) -> None:
        """Take back the messages that were put since a point in the turn."""

    def for_core(self, topic: str) -> tuple[Any, Callable[[], int]]:
        """Return what the compiled core needs to place messages: an index, and how many lite topics it may add."""

    def put_all(self, index: Any, count: int, /) -> None:
        """Note that the turn has taken the next messages of an index, which the compiled core has placed."""
