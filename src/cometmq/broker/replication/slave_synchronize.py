"""The tables that a slave copies from its master, every ten seconds (``SlaveSynchronize``).

Topics (21) and groups (201) when their data versions differ, consumer offsets (43), message request modes (402; brokers
of 4.9 have none), and from Apache's master how far delayed messages are delivered (45). From a master of CometMQ also
the files that say it exactly, which topics were deleted, and the rest that is not in the log
(:mod:`cometmq.broker.replication.store_files`, :mod:`cometmq.broker.replication.timer_copy`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.delay_offsets import DelayOffsets, DelayProgress
from cometmq.broker.limits import (
    SLAVE_SYNC_FIRST_SECONDS,
    SLAVE_SYNC_SECONDS,
    SLAVE_SYNC_SOON_SECONDS,
    SLAVE_TABLE_SECONDS,
)
from cometmq.broker.periodic import Alarm
from cometmq.broker.pop.request_modes import MessageRequestModeManager, RequestModeTable
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.ha_client import HAClient, MasterAddress, log_range
from cometmq.broker.replication.store_files import MasterFiles, NotOfferedError, copied_files
from cometmq.broker.replication.timer_copy import TimerCopy
from cometmq.errors import CometMQError, reason_of
from cometmq.fastjson import quote_keys
from cometmq.limits import MAX_FRAME_BYTES
from cometmq.message.names import SCHEDULE_TOPIC, TRANS_OP_HALF_TOPIC
from cometmq.remoting.admin_bodies import TopicStatsTable
from cometmq.remoting.admin_headers import GetTopicStatsInfoRequestHeader
from cometmq.remoting.bodies import (
    BodyError,
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    decode_body,
)
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.known_topics import DELETED_TOPICS, DeletedTopics
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_HEAD: Final = re.compile(rb'\s*\{\s*(?:"dataVersion"\s*:\s*\{[^{}]*+\}\s*,\s*)?"offsetTable"\s*:\s*\{\s*')
_ROW: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")\s*:\s*(\{[^{}]*+\})\s*(,?)\s*')
_TAIL: Final = re.compile(rb"\}\s*\}\s*")
_offsets: Final = msgspec.json.Decoder(dict[int, int])
_name: Final = msgspec.json.Decoder(str)


def offset_rows(body: bytes) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield ``topic@group`` and the offsets of its queues, row by row: all at once would hold the loop for seconds.

    The body (43) is ``{"offsetTable":{"topic@group":{0:5,1:7},…}}``, with numbers as keys, which no JSON decoder takes.
    A body with more fields is read at once, if it is no larger than a frame of Apache's.

    :raises BodyError: it cannot be read; the rows yielded before are sound.
    """
    head = _HEAD.match(body)
    if head is None:
        if len(body) > MAX_FRAME_BYTES:
            raise BodyError(f"consumer offsets of {len(body)} bytes do not begin with their offsetTable")
        yield from decode_body(ConsumerOffsetSerializeWrapper, body).offset_table.items()
        return
    at = head.end()
    is_first = is_more = True
    while is_more and (row := _ROW.match(body, at)) is not None:
        try:
            yield _name.decode(row[1]), _offsets.decode(quote_keys(row[2]))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BodyError(f"the consumer offsets cannot be read at byte {at}: {error}") from error
        at = row.end()
        is_first, is_more = False, bool(row[3])
    if (is_more and not is_first) or _TAIL.fullmatch(body, at) is None:
        raise BodyError(f"the consumer offsets cannot be read at byte {at}: {body[at : at + 40]!r}")


class QueueEnds:
    """The first offsets of queues whose messages are all older than a slave's log.

    Such a queue is empty here, and would begin at 0 once the slave is the master: consumers are beyond that, and
    messages that wait are known by their queue offsets. So a slave asks its master once for the ends of its queues;
    when the log here has come up to the end that the master's log had then, queues without a message begin there.
    """

    def __init__(self, store: MessageStore, client: RemotingClient) -> None:
        self._store = store
        self._client = client
        self._ends: dict[tuple[str, int], int] | None = None
        self._true_at = 0
        """Once the log here has come to this offset, the messages of an empty queue are older than the log."""

    async def copy(self, master: str, topics: Iterable[TopicConfig]) -> None:
        """Ask the master if that was not done, and begin the queues as soon as possible.

        :raises ReplicationError: the master's answer cannot be used.
        :raises RemotingError: it does not answer.
        :raises BodyError: its answer cannot be read.
        :raises StoreError: a queue cannot be written.
        """
        if self._ends is None:
            found: dict[tuple[str, int], int] = {}
            for name in [topic.topic_name for topic in topics if self._lacks(topic)] + [TRANS_OP_HALF_TOPIC]:
                found |= await self._ask(master, name)
            _, self._true_at, _ = await log_range(self._client, master)
            self._ends = found
        if self._store.max_physical_offset >= self._true_at:
            for (topic, queue_id), end in self._ends.items():
                self._store.replicated.begin_queue(topic, queue_id, end)
            self._ends = {}

    def _lacks(self, topic: TopicConfig) -> bool:
        return not all(
            self._store.extent(topic.topic_name, queue_id)[1]
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
        )

    async def _ask(self, master: str, topic: str) -> dict[tuple[str, int], int]:
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        answer = await self._client.invoke(master, RequestCode.GET_TOPIC_STATS_INFO, header)
        if answer.code != ResponseCode.SUCCESS:
            return {}  # a topic that it has deleted since, or that Apache's broker never lists
        table = decode_body(TopicStatsTable, answer.body).offset_table
        return {(topic, queue.queue_id): offsets.max_offset for queue, offsets in table.items() if offsets.max_offset}


class SlaveSynchronize:
    """Copies the tables until it is stopped."""

    def __init__(
        self, broker: BrokerContext, master: MasterAddress, client: RemotingClient, follower: HAClient
    ) -> None:
        store = self._store = broker.store
        self._topics = broker.topics
        self._groups = broker.groups
        self._offsets = broker.offsets
        self._deletions = broker.deletions
        self._master = master
        self._client = client
        self._follower = follower
        self._delays = DelayOffsets(store.config.root)
        self._files = copied_files(store)
        self._timer = TimerCopy(store)
        self._ends = QueueEnds(store, client)
        self._lives_version = ""
        self._ended: dict[str, int] = {}
        """The log offset below which the queues of a deleted topic have ended here, too."""
        self._modes = MessageRequestModeManager(Path(store.config.root) / "config" / "messageRequestMode.json")
        self._next = Alarm(self._begin, clock=store.clock)
        self._is_soon = True
        """True when the next copy is the first one, or is needed soon."""
        self._task: asyncio.Task[None] | None = None
        self._copying = asyncio.Lock()
        self._troubles: dict[str, str] = {}
        """Name of a part → reason why it was not copied the last time."""

    @property
    def trouble(self) -> str:
        """The tables that were not copied the last time, with the reasons; empty when all were."""
        return "; ".join(f"{what}: {why}" for what, why in self._troubles.items())

    def start(self) -> None:
        """Begin, on the running loop: first after three seconds."""
        self._next.after(SLAVE_SYNC_FIRST_SECONDS)

    def soon(self) -> None:
        """Copy within a second: there are messages of topics that were not copied yet."""
        if not self._is_soon and (self._task is None or self._task.done()):
            self._is_soon = True
            self._next.after(SLAVE_SYNC_SOON_SECONDS)

    def _begin(self) -> None:
        self._is_soon = False
        self._task = asyncio.get_running_loop().create_task(self._copy_and_repeat(), name="copy the master's tables")

    async def _copy_and_repeat(self) -> None:
        try:
            await self.copy()
        finally:
            self._next.after(SLAVE_SYNC_SECONDS)

    async def stop(self) -> None:
        """Copy no more; put held files in their place if the log here is far enough now."""
        self._next.close()
        if self._task is not None:
            await self._task
        try:
            await self._put_in_place()
        except OSError as error:
            _log.error("what was copied of the master cannot be written: %s", reason_of(error))

    async def copy(self) -> None:
        """Copy everything once; parts that fail are tried again the next time."""
        async with self._copying:
            await self._copy()

    async def _copy(self) -> None:
        is_placed = await self._try("what was copied before", self._put_in_place)
        address = self._master.remoting
        if address is None or not self._follower.is_following:  # never tables that belong to another log
            return
        for what, copy in (
            ("topics", self._copy_topics),
            ("deleted topics", self._copy_lives),
            ("ends of queues", self._copy_ends),
            ("consumer offsets", self._copy_offsets),
            ("groups", self._copy_groups),
            ("message request modes", self._copy_modes),
            ("files", self._copy_files),
        ):
            is_copied = (is_placed or copy != self._copy_files) and await self._try(what, partial(copy, address))
            if not is_copied and not self._client.live(address):
                return  # the master is gone

    async def _try(self, what: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Do one part of the copy; return True if it was done. A failure is logged once and stops no other part."""
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

    async def _copy_lives(self, master: str) -> None:
        """Copy the log offsets at which topics were deleted: queues that end before them are of an earlier life.

        The tables do not show a topic that was deleted and made anew between two copies. Apache's master tells no more.
        """
        lives = self._deletions.lives
        try:
            found = await MasterFiles(self._client, master).whole(DELETED_TOPICS, self._lives_version)
        except NotOfferedError:
            return
        if found is not None:
            lives.take_over(decode_body(DeletedTopics, found.data))
            lives.save()
            self._lives_version = found.version
        for topic, deleted in list(lives.deleted.items()):
            is_new = self._ended.get(topic) != deleted.position
            if is_new and deleted.position <= self._store.max_physical_offset:
                self._ended[topic] = deleted.position
                self._deletions.end_queues(topic, deleted.position)
                await asyncio.sleep(0)

    async def _copy_ends(self, master: str) -> None:
        await self._ends.copy(master, list(self._topics.table.values()))

    async def _copy_offsets(self, master: str) -> None:
        body = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
        await _over_turns(self._offsets.take_over(offset_rows(body), self._end))

    async def _copy_groups(self, master: str) -> None:
        known = set(self._groups.table)
        body = await self._ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        await _over_turns(self._groups.take_over(decode_body(SubscriptionGroupWrapper, body)))
        for group in known - self._groups.table.keys():
            self._deletions.end_group(group)

    async def _copy_modes(self, master: str) -> None:
        answer = await self._client.invoke(
            master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, timeout_s=SLAVE_TABLE_SECONDS
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"GET_ALL_MESSAGE_REQUEST_MODE: code {answer.code}, {answer.remark}")
        self._modes.take_over(decode_body(RequestModeTable, answer.body))

    async def _copy_files(self, master: str) -> None:
        files = MasterFiles(self._client, master)
        try:
            for file in self._files:
                await file.copy(files)
            await self._timer.copy(files)
        except NotOfferedError:
            await self._copy_delay_offsets(master)

    async def _copy_delay_offsets(self, master: str) -> None:
        """Copy the offsets of Apache's master, which are behind or ahead of the log here by up to ten seconds."""
        body = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET)
        table = decode_body(DelayOffsetSerializeWrapper, body)
        offsets = {
            level: min(offset, self._end(SCHEDULE_TOPIC, level - 1))
            for level, offset in table.offset_table.items()
            if level > 0 and offset > 0
        }
        await in_thread(self._delays.save, DelayProgress(offsets))

    def _end(self, topic: str, queue_id: int) -> int:
        return self._store.extent(topic, queue_id)[1]

    async def _ask(self, master: str, code: RequestCode) -> bytes:
        answer = await self._client.invoke(master, code, timeout_s=SLAVE_TABLE_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"{code.name}: code {answer.code}, {answer.remark}")
        return answer.body


async def _over_turns(steps: Iterator[None]) -> None:
    """Do one step a turn of the loop."""
    for _ in steps:
        await asyncio.sleep(0)
