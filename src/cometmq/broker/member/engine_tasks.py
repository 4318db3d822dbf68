"""The requests of a member to its engine, each in a task; the answers become events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cometmq.broker.failover import events as e
from cometmq.broker.failover.document import DocumentError
from cometmq.broker.failover.engines.interface import Engine, EngineError, NameTakenError, Presence
from cometmq.broker.limits import ENGINE_TRY_SECONDS
from cometmq.clock import Clock, wait_for
from cometmq.loop import TaskSet

_log = logging.getLogger(__name__)


class EngineTasks:
    """One member's requests to its engine, from ``start`` to ``stop``.

    :param give: takes the events.
    :param heartbeat_s: interval at which the presence is renewed.
    """

    def __init__(self, engine: Engine, give: Callable[[e.Event], None], *, heartbeat_s: float, clock: Clock) -> None:
        self._engine = engine
        self._give = give
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._tasks = TaskSet()
        self._presence: Presence | None = None
        self._renews = asyncio.Event()
        self._trouble = ""

    def start(self) -> None:
        """Begin to listen for changes, and to renew the presence once there is one."""
        self._tasks.start(self._listen(), "changes of the engine")
        self._tasks.start(self._renew(), "renew the lease")

    async def stop(self, *, withdraws: bool) -> None:
        """End all requests, and close the engine's connections.

        :param withdraws: True to remove the presence at once, so that another member need not wait for the lease.
        """
        await self._tasks.stop()
        if withdraws:
            try:
                await wait_for(self._clock, ENGINE_TRY_SECONDS, self._engine.withdraw())
            except (EngineError, TimeoutError) as error:
                _log.warning("the engine does not answer, so this member's lease ends by itself: %s", error)
        await self._engine.close()

    def read(self, request: e.Read) -> None:
        """Read the document and the presences."""
        self._tasks.start(self._read(request.number), "read the document")

    def swap(self, request: e.Swap) -> None:
        """Replace the document."""
        self._tasks.start(self._swap(request), "change the document")

    def announce(self, request: e.Announce) -> None:
        """Announce a presence now, and renew it until another is announced."""
        self._presence = request.presence
        self._renews.set()

    async def _read(self, number: int) -> None:
        try:
            snapshot = await self._engine.read()
        except (EngineError, DocumentError) as error:
            self._has_trouble(error)
            self._give(e.EngineSilent(number, str(error)))
        except Exception as error:
            _log.exception("reading the document failed")
            self._give(e.EngineSilent(number, f"internal error: {error}"))
        else:
            self._answers()
            self._give(e.DocumentRead(number, snapshot.document, snapshot.version, snapshot.presences))

    async def _swap(self, request: e.Swap) -> None:
        began = self._clock.monotonic()
        try:
            outcome = await self._engine.swap(request.document, request.version, request.guard)
        except (EngineError, DocumentError) as error:
            self._has_trouble(error)
            self._give(e.EngineSilent(request.number, str(error)))
        except Exception as error:
            _log.exception("changing the document failed")
            self._give(e.EngineSilent(request.number, f"internal error: {error}"))
        else:
            self._answers()
            _log.info(
                "%s to change the document, in %.3f s: %s",
                "asked the engine" if outcome.is_done else "another change came first when asking the engine",
                self._clock.monotonic() - began,
                request.document.why,
            )
            self._give(e.SwapAnswered(request.number, outcome.is_done, outcome.document, outcome.version))

    async def _renew(self) -> None:
        while True:
            timer = self._clock.call_later(self._heartbeat_s, self._renews.set)
            await self._renews.wait()
            timer.cancel()
            self._renews.clear()
            if (presence := self._presence) is not None:
                await self._announce(presence)

    async def _announce(self, presence: Presence) -> None:
        try:
            was_there = await self._engine.announce(presence)
        except NameTakenError as error:
            if presence is self._presence:
                self._give(e.NameTaken(error.by))
        except (EngineError, DocumentError) as error:
            self._has_trouble(error)
        except Exception:
            _log.exception("renewing the lease failed")
        else:
            if not was_there:
                self._give(e.LeaseLost())

    async def _listen(self) -> None:
        while True:
            try:
                async for _ in self._engine.changes():
                    self._give(e.EngineChanged())
            except (EngineError, DocumentError) as error:
                self._has_trouble(error)
            except Exception:
                _log.exception("listening for changes of the engine failed")
            await self._clock.sleep(self._heartbeat_s)

    def _has_trouble(self, error: Exception) -> None:
        """Log a reason once while it recurs."""
        if (trouble := str(error)) != self._trouble:
            self._trouble = trouble
            _log.warning("the engine does not answer: %s; will retry, and change nothing until then", trouble)

    def _answers(self) -> None:
        if self._trouble:
            _log.info("the engine answers again")
            self._trouble = ""
