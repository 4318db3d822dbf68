"""The base of synchronous consumers that run until they are stopped."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from cometmq.client.stop_signals import STOP_SIGNALS
from cometmq.client.sync.base import SyncClient


class Running(Protocol):
    """An asynchronous consumer that runs."""

    def run(self) -> Coroutine[Any, Any, None]:
        """Run until stopped, then close."""

    def stop(self) -> None:
        """Make :meth:`run` end; call it on the consumer's event loop."""


R = TypeVar("R", bound=Running)


class SyncRunning(SyncClient[R]):
    """A synchronous consumer with a listener."""

    def run(self) -> None:
        """Run the consumer until it is stopped, then close it; see the ``run`` of the asynchronous consumer.

        SIGINT and SIGTERM end it in the main thread only.
        """
        with STOP_SIGNALS.calling(partial(self._loop.call_soon_threadsafe, self._inner.stop)):
            self._run(self._inner.run())

    def stop(self) -> None:
        """Make :meth:`run` close the consumer and return."""
        self._loop.call_soon_threadsafe(self._inner.stop)
