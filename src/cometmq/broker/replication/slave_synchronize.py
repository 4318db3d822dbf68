"""SlaveSynchronize: what a slave copies of its master beside the log, every ten seconds (``SlaveSynchronize``).

Topics (21) and groups (201) when their data versions differ, consumer offsets (43), and from Apache's master how far
delayed messages are delivered (45); from a master of CometMQ the files that say it exactly, and the rest that is not
in the log (:mod:`cometmq.broker.replication.copied_files`, :mod:`cometmq.broker.replication.timer_copy`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from cometmq.broker.delay_offsets import DelayOffsets, DelayProgress
from cometmq.broker.groups import SubscriptionGroupManager
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.broker.periodic import Periodic
from cometmq.broker.replication.copied_files import copied_files
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.ha_client import HAClient
from cometmq.broker.replication.master_address import MasterAddress
from cometmq.broker.replication.master_files import MasterFiles, NotOfferedError
from cometmq.broker.replication.offset_rows import offset_rows
from cometmq.broker.replication.queue_ends import QueueEnds
from cometmq.broker.replication.timer_copy import TimerCopy
from cometmq.broker.topics import TopicConfigManager
from cometmq.clock import Clock, TimerHandle
from cometmq.errors import CometMQError, reason_of
from cometmq.limits import SLAVE_SYNC_FIRST_SECONDS, SLAVE_SYNC_SECONDS, SLAVE_SYNC_SOON_SECONDS, SLAVE_TABLE_SECONDS
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.remoting.bodies import (
    BodyError,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
    decode_body,
)
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)


class SlaveSynchronize:
    """Copies until it is stopped."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        master: MasterAddress,
        client: RemotingClient,
        follower: HAClient,
        *,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._master = master
        self._client = client
        self._follower = follower
        self._clock = clock
        self._delays = DelayOffsets(store.config.root)
        self._files = copied_files(store, clock=clock)
        self._timer = TimerCopy(store)
        self._ends = QueueEnds(store, client)
        self._again = Periodic("copy the master's tables", SLAVE_SYNC_SECONDS, self.copy, clock=clock)
        self._first: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_repeated = False
        self._copying = asyncio.Lock()
        self._troubles: dict[str, str] = {}
        """Why what was not copied the last time was not, by its name."""

    @property
    def trouble(self) -> str:
        """Which tables were not copied the last time, and why; empty when all were."""
        return "; ".join(f"{what}: {why}" for what, why in self._troubles.items())

    def start(self) -> None:
        """Begin, on the running loop: first after three seconds."""
        self._first = self._clock.call_later(SLAVE_SYNC_FIRST_SECONDS, self._begin)

    def _begin(self) -> None:
        self._first = None
        self._task = asyncio.get_running_loop().create_task(self.copy(), name="copy the master's tables")
        if not self._is_repeated:
            self._is_repeated = True
            self._again.start()

    def soon(self) -> None:
        """Copy within a second: there are messages of topics that were not copied yet."""
        if self._first is None and (self._task is None or self._task.done()):
            self._first = self._clock.call_later(SLAVE_SYNC_SOON_SECONDS, self._begin)

    async def stop(self) -> None:
        """Copy no more; what the log here has come up to meanwhile is put in its place."""
        if self._first is not None:
            self._first.cancel()
        if self._task is not None:
            await self._task
        await self._again.stop()
        try:
            await self._put_in_place()
        except OSError as error:
            _log.error("what was copied of the master cannot be written: %s", reason_of(error))

    async def copy(self) -> None:
        """Copy everything once; what fails is tried again the next time."""
        async with self._copying:
            await self._copy()

    async def _copy(self) -> None:
        is_placed = await self._try("what was copied before", self._put_in_place)
        address = self._master.remoting
        if address is None or not self._follower.is_following:  # never what belongs to another log
            return
        for what, copy in (
            ("topics", self._copy_topics),
            ("ends of queues", self._copy_ends),
            ("consumer offsets", self._copy_offsets),
            ("groups", self._copy_groups),
            ("files", self._copy_files),
        ):
            is_copied = (is_placed or copy != self._copy_files) and await self._try(what, partial(copy, address))
            if not is_copied and not self._client.live(address):
                return  # the master is gone

    async def _try(self, what: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Do one part of the copy and return whether it was done; what fails stops no other, and is said once."""
        why = ""
        try:
            await work()
        except (CometMQError, BodyError) as error:
            why = str(error)
            if why != self._troubles.get(what):
                _log.warning("%s of the master are not copied: %s; it is tried again", what, why)
        except OSError as error:
            why = reason_of(error)
            _log.error("%s of the master cannot be written: %s; it is tried again", what, why)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            _log.exception("copying %s of the master failed; it is tried again", what)
        if why:
            self._troubles[what] = why
        else:
            self._troubles.pop(what, None)
        return not why

    async def _put_in_place(self) -> None:
        for file in self._files:
            await file.put_in_place()
        await self._timer.put_in_place()

    async def _copy_topics(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_TOPIC_CONFIG)
        await _over_turns(self._topics.take_over(decode_body(TopicConfigSerializeWrapper, body)))

    async def _copy_ends(self, master: str) -> None:
        await self._ends.copy(master, list(self._topics.table.values()))

    async def _copy_offsets(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
        await _over_turns(self._offsets.take_over(offset_rows(body), self._end))

    async def _copy_groups(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        await _over_turns(self._groups.take_over(decode_body(SubscriptionGroupWrapper, body)))

    async def _copy_files(self, master: str) -> None:
        files = MasterFiles(self._client, master)
        try:
            for file in self._files:
                await file.copy(files)
            await self._timer.copy(files)
        except NotOfferedError:
            await self._copy_delay_offsets(master)

    async def _copy_delay_offsets(self, master: str) -> None:
        """What Apache's master says; it is behind or ahead of the log here by up to ten seconds."""
        body = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET)
        table = decode_body(DelayOffsetSerializeWrapper, body)
        offsets = {
            level: min(offset, self._end(SCHEDULE_TOPIC, level - 1))
            for level, offset in table.offset_table.items()
            if level > 0 and offset > 0
        }
        await asyncio.to_thread(self._delays.save, DelayProgress(offsets))

    def _end(self, topic: str, queue_id: int) -> int:
        queue = self._store.queues().get(topic, {}).get(queue_id)
        return queue.max_offset() if queue is not None else 0

    async def _ask(self, master: str, code: RequestCode) -> bytes:
        answer = await self._client.invoke(master, code, timeout_s=SLAVE_TABLE_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"{code.name}: code {answer.code}, {answer.remark}")
        return answer.body


async def _over_turns(steps: Iterator[None]) -> None:
    """Do one step in each turn of the loop."""
    for _ in steps:
        await asyncio.sleep(0)
