"""A consumer group's offsets: on the brokers, or in a file on this host (``OffsetStore``).

Theory of operation. A broker that stops takes its queues out of the routes, so a member drops them, and cannot report
how far it has consumed. :class:`RemoteOffsets` remembers this offset, and returns it when the same member reads the
queue again. It does so only if the broker still has an offset that this member has stored or found there. Any other
offset comes from another member, an administrator or a broker that was killed, and counts instead. The remembered
offset never skips a message, because this member has consumed all messages before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from cometmq import fastjson
from cometmq.client.consumer.config import ConsumeFromWhere, ReadConfig
from cometmq.client.errors import RemotingConnectError, RouteNotFoundError
from cometmq.client.offsets import Offsets
from cometmq.client.outages import BrokerOutages
from cometmq.clock import Clock
from cometmq.durable import replace_file
from cometmq.errors import CometMQError
from cometmq.message.names import RETRY_PREFIX
from cometmq.remoting.bodies import BodyError, MessageQueue, ResetOffsetBody, decode_body, to_builtins
from cometmq.threads import in_thread

log = logging.getLogger(__name__)

MEMORY_S: Final = 600.0
"""Seconds for which an offset that was not reported is remembered: longer than a machine takes to restart."""


class OffsetStore(Protocol):
    """Stores the offsets of a group."""

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset at which to continue, or ``None`` if no offset is stored."""

    async def report(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets. Failures are logged, and the next report makes up for them."""

    def forget(self, queue: MessageQueue) -> None:
        """Forget the remembered offset of a queue that an administrator resets, and that this member does not read."""


class _Progress:
    """The progress of this member in a queue.

    :param stored: the offset that the broker has; None if it has none.
    """

    def __init__(self, stored: int | None) -> None:
        self.stored = {stored}
        """The offsets of which the broker has one if only this member has changed it."""
        self.consumed: int | None = None
        """The last offset that this member has tried to report."""
        self.since = 0.0
        """Monotonic time of ``consumed`` in seconds."""
        self.committing = asyncio.Lock()


class RemoteOffsets:
    """Stores offsets on the brokers (``RemoteBrokerOffsetStore``)."""

    def __init__(self, offsets: Offsets, group: str, outages: BrokerOutages, clock: Clock) -> None:
        self._offsets = offsets
        self._outages = outages
        self._group = group
        self._clock = clock
        self._progress: dict[MessageQueue, _Progress] = {}

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset at which to continue, or ``None`` if there is none.

        :raises CometMQError: the broker does not answer, or refuses.
        """
        stored = await self._offsets.committed(self._group, queue)
        before = self._progress.get(queue)
        self._progress[queue] = _Progress(stored)
        if before is None or before.consumed is None or stored not in before.stored:
            return stored
        if self._clock.monotonic() - before.since > MEMORY_S:
            return stored
        self._remember(queue, before.consumed)
        return before.consumed

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset to its queue's broker.

        :raises CometMQError: the broker does not answer, or refuses.
        """
        progress = self._remember(queue, offset)
        async with progress.committing:
            try:
                await self._offsets.commit(self._group, queue, offset)
            except (RemotingConnectError, RouteNotFoundError):
                raise
            except CometMQError:
                progress.stored.add(offset)
                raise
            progress.stored = {offset}

    async def report(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit each offset to its queue's broker."""
        await asyncio.gather(*(self._report(queue, offset) for queue, offset in offsets.items()))

    async def _report(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self.commit(queue, offset)
        except CometMQError as error:
            level = self._outages.level(queue.broker_name)
            log.log(level, "cannot report the offset of group %s in %s: %s", self._group, queue, error)

    def _remember(self, queue: MessageQueue, offset: int) -> _Progress:
        """Remember the offset before which this member has consumed all messages."""
        progress = self._progress.get(queue)
        if progress is None:
            progress = self._progress[queue] = _Progress(None)
        progress.consumed, progress.since = offset, self._clock.monotonic()
        return progress

    def forget(self, queue: MessageQueue) -> None:
        """Forget the offset."""
        self._progress.pop(queue, None)


class LocalOffsets:
    """Stores a broadcasting consumer's offsets in a file on its host (``LocalFileOffsetStore``).

    The file ``<directory>/<clientId>/<group>/offsets.json`` has queues as keys, in the form in which Java's fastjson
    writes them. The previous version is ``offsets.json.bak``.
    """

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self.path = directory / client_id / group / "offsets.json"
        self._backup = self.path.with_name("offsets.json.bak")
        self._group = group
        self._table: dict[MessageQueue, int] = {}
        self._saving = asyncio.Lock()

    def load(self) -> dict[MessageQueue, int]:
        """Read the file, or its previous version if it is damaged; return an empty dict if neither exists.

        :raises OSError: the file cannot be read.
        """
        for path in (self.path, self._backup):
            try:
                return dict(decode_body(ResetOffsetBody, path.read_bytes()).offset_table)
            except FileNotFoundError:
                continue
            except BodyError as error:
                log.warning("%s is damaged and ignored: %s", path, error)
        return {}

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write offsets to the file, keeping the offsets of other queues.

        :raises OSError: the file cannot be written.
        """
        merged = {**self.load(), **offsets}
        text = fastjson.dumps_pretty(to_builtins(ResetOffsetBody(offset_table=merged)))
        replace_file(self.path, text, backup=self._backup)

    async def start(self) -> None:
        """Load the file with the stored offsets.

        :raises OSError: the file cannot be read.
        """
        self._table = await in_thread(self.load)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset at which to continue, or ``None`` if no offset is stored."""
        return self._table.get(queue)

    async def report(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write offsets to the file."""
        self._table.update(offsets)
        if not offsets:
            return
        async with self._saving:
            try:
                await in_thread(self.save, dict(self._table))
            except RuntimeError:  # Python exits, and no new thread can start
                self.save(dict(self._table))
            except OSError as error:
                log.warning("cannot save the offsets of group %s: %s", self._group, error)

    def forget(self, queue: MessageQueue) -> None:
        """Do nothing: all members have offsets of their own."""


async def starting_point(offsets: Offsets, queue: MessageQueue, committed: int | None, config: ReadConfig) -> int:
    """Return ``committed``, or the offset selected by ``consume_from_where``
    (``RebalancePushImpl.computePullFromWhere``).

    Retry topics are always read from their beginning.

    :raises CometMQError: the broker does not answer, or refuses.
    """
    if committed is not None and committed >= 0:
        return committed
    if queue.topic.startswith(RETRY_PREFIX):
        return 0
    if config.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return await offsets.min(queue)
    if config.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        return await offsets.at_time(queue, config.consume_timestamp_ms)
    return await offsets.max(queue)
