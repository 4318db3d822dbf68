"""Repeated sends for task frameworks that do not wait before they try again, or do not try again at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.client.retries import Pauses, is_not_now
from cometmq.clock import Clock
from cometmq.errors import CometMQError

PAUSES: Final = Pauses(0.05, 0.5)
"""Pauses after answers of a broker that is stopping or busy."""


class Attempts:
    """Decides whether a send that failed is repeated, and after which pause.

    It is repeated as long as there is time while a broker is stopping or busy. A master that has lost its set may have
    stored the message, so that the repeated one is a copy. A task runs twice anyway if its worker dies at the wrong
    time, but one that is not sent is lost unless the program handles the error: so a copy is the lesser evil.

    :param timeout_s: time for all attempts together.
    :param others: maximum number of attempts that fail for other reasons, if ``may_repeat`` returns true for them.
    """

    def __init__(
        self,
        clock: Clock,
        timeout_s: float,
        *,
        others: int = 1,
        may_repeat: Callable[[CometMQError], bool] = lambda _: True,
    ) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_s
        self._others_left = others
        self._may_repeat = may_repeat
        self._refusals = 0

    @property
    def left_s(self) -> float:
        """The number of seconds that are left."""
        return self._deadline - self._clock.monotonic()

    def pause_s(self, error: CometMQError) -> float:
        """Return the number of seconds to wait before the next attempt.

        :raises CometMQError: the error, if there is no further attempt.
        """
        refused = is_not_now(error)
        self._refusals, self._others_left = self._refusals + refused, self._others_left - (not refused)
        pause_s = PAUSES.after(self._refusals) if refused else 0.0
        if self.left_s <= pause_s or not (refused or (self._others_left and self._may_repeat(error))):
            raise error
        return pause_s
