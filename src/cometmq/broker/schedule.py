"""Delayed messages: all delay levels, and how far they are delivered (``ScheduleMessageService``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from cometmq import fastjson
from cometmq.broker.delay_hold import DelayHold
from cometmq.broker.delay_levels import DelayLevels
from cometmq.broker.delay_offsets import DelayOffsets, DelayProgress
from cometmq.broker.delay_recovery import delivered_since, not_due
from cometmq.broker.deliver_delayed import DelayLevel
from cometmq.broker.store_turn import StoreTurn
from cometmq.clock import Clock
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)
_HOUR_MS: Final = 3_600_000


class ScheduleMessageService:
    """Parks messages that ask for a delay level and delivers them when they are due.

    ``levels`` is there for everything that parks messages; ``start`` begins to deliver.
    """

    def __init__(self, store: MessageStore, turn: StoreTurn, files: DelayOffsets, *, clock: Clock) -> None:
        self._store = store
        self._turn = turn
        self._files = files
        self._clock = clock
        self._running: dict[int, DelayLevel] = {}
        self.levels: Final = DelayLevels(store.config.delays_ms, self._parked)
        store.hold_log(DelayHold(store, files, self._move_below))

    def register(self, processors: ProcessorTable) -> None:
        """Answer the code about how far the levels are."""
        processors.register(RequestCode.GET_ALL_DELAY_OFFSET, NoHeader, self.all_offsets)

    def start(self) -> None:
        """Find out how far delivery was, and go on from there.

        Messages of a level that is not in ``messageDelayLevel`` any more are delivered too, when they are due.
        """
        progress, findings = self._files.load()
        for finding in findings:
            _log.warning("%s", finding)
        offsets = delivered_since(progress, self._store)
        delays = self.levels.delays_ms
        numbers = {*range(1, len(delays) + 1), *(number + 1 for number in self._store.queues().get(SCHEDULE_TOPIC, {}))}
        for number in sorted(numbers):
            level = DelayLevel(
                number,
                delays[number - 1] if number <= len(delays) else None,
                offsets.get(number, 0),
                self._store.queue(SCHEDULE_TOPIC, number - 1),
                self._store,
                self._turn,
                self._clock,
            )
            self._running[number] = level
            level.look()
        self._files.save(self._progress())
        self._warn_of_long_levels()

    def _warn_of_long_levels(self) -> None:
        """Say what becomes of levels that wait for longer than log files are kept."""
        kept_ms = self._store.config.file_reserved_time * _HOUR_MS
        numbers = [number for number, delay_ms in enumerate(self.levels.delays_ms, 1) if delay_ms > kept_ms]
        if numbers:
            _log.warning(
                "delay levels %s of messageDelayLevel wait for longer than log files are kept (fileReservedTime=%d "
                "hours): their messages are stored once more, in the timer, before their log file is deleted",
                ", ".join(map(str, numbers)),
                self._store.config.file_reserved_time,
            )

    def _move_below(self, end: int) -> None:
        """Move what waits below a log offset into the timer; a slave, where no level runs, keeps it."""
        for level in self._running.values():
            level.move_below(end)

    def halt(self) -> None:
        """Deliver no more."""
        for level in self._running.values():
            level.halt()

    async def stop(self) -> None:
        """Deliver no more; everything put is stored, and the files say so, when this returns."""
        if self._running:
            await asyncio.gather(*(level.stop() for level in self._running.values()))
            await self.save()

    async def save(self) -> None:
        """Write how far delivery is, once the disk has all that was delivered."""
        progress = self._progress()
        flushed: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self._store.when_flushed(progress.position, flushed.set_result)
        if await flushed is None:
            await asyncio.get_running_loop().run_in_executor(None, self._files.save, progress)

    def _progress(self) -> DelayProgress:
        offsets = {number: level.delivered_offset for number, level in self._running.items() if level.delivered_offset}
        now_ms = self._clock.now_ms()
        moved = {
            number: offset for number, offset in offsets.items() if not_due(self._running[number].queue, offset, now_ms)
        }
        return DelayProgress(offsets, self._store.max_physical_offset, moved)

    def _parked(self, number: int) -> None:
        level = self._running.get(number)
        if level is not None:
            level.parked()

    # --- questions ----------------------------------------------------------------------------
    def offsets(self) -> Mapping[int, tuple[int, int]]:
        """The next offset and the end of each level's queue that was ever used, by level."""
        return {
            number: (level.offset, level.queue.max_offset())
            for number, level in self._running.items()
            if level.queue.max_offset()
        }

    def all_offsets(self, _connection: ServerConnection, _request: Request[Any], _body: bytes) -> Response:
        """GET_ALL_DELAY_OFFSET (45)."""
        return Response(body=fastjson.dumps({"offsetTable": self._progress().offsets}))
