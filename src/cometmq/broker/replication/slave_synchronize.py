"""Copies the master's tables to a slave (``SlaveSynchronize``).

From a CometMQ master the slave copies the changes of topics, groups and consumer offsets every second
(:mod:`cometmq.broker.replication.table_changes`), and asks whether it is in sync
(:mod:`cometmq.broker.turn.slaves_in_sync`). From Apache's master it copies the complete tables every ten seconds
(request codes 21, 201 and 43), but topics and groups only if their data versions differ. Every ten seconds it also
copies the message request modes (402; brokers of 4.9 have none). From Apache's master it also copies the progress of
delay levels (45). From a CometMQ master it copies the exact files of this progress, the deletions of topics, and
everything else that is not in the log (:mod:`cometmq.broker.replication.store_files`,
:mod:`cometmq.broker.replication.timer_copy`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.delay_offsets import DelayOffsets, DelayProgress
from cometmq.broker.limits import (
    MEMBER_CHANGES_SECONDS,
    MEMBER_OFFSETS_SECONDS,
    OFFSET_PARTS,
    SLAVE_CHANGES_SECONDS,
    SLAVE_SYNC_FIRST_SECONDS,
    SLAVE_SYNC_SECONDS,
    SLAVE_SYNC_SOON_SECONDS,
    SLAVE_TABLE_SECONDS,
)
from cometmq.broker.pop.request_modes import MessageRequestModeManager, RequestModeTable
from cometmq.broker.replication.copies.quota_copy import QuotaCopy
from cometmq.broker.replication.copies.set_copy import SetCopy
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.ha_client import HAClient, MasterAddress
from cometmq.broker.replication.member_link import MemberLink
from cometmq.broker.replication.queue_ends import QueueEnds
from cometmq.broker.replication.store_files import MasterFiles, NotOfferedError, copied_files
from cometmq.broker.replication.table_changes import GROUPS, OFFSETS, TOPICS, MasterTables
from cometmq.broker.replication.timer_copy import TimerCopy
from cometmq.broker.tables.offset_table import Part
from cometmq.broker.tables.versioned_table import VersionedTable
from cometmq.errors import CometMQError, reason_of
from cometmq.fastjson import quote_keys
from cometmq.limits import MAX_FRAME_BYTES
from cometmq.loop import in_rounds
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.periodic import Alarm
from cometmq.remoting.admin_bodies import HARuntimeInfo
from cometmq.remoting.bodies import (
    BodyError,
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
    decode_body,
)
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store.recovery.known_topics import DELETED_TOPICS, DeletedTopics
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

Copy = Callable[[str], Awaitable[None]]
"""Function that copies one table from the master with this address."""

_HEAD: Final = re.compile(rb'\s*\{\s*(?:"dataVersion"\s*:\s*\{[^{}]*+\}\s*,\s*)?"offsetTable"\s*:\s*\{\s*')
_ROW: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")\s*:\s*(\{[^{}]*+\})\s*(,?)\s*')
_TAIL: Final = re.compile(rb"\}\s*\}\s*")
_offsets: Final = msgspec.json.Decoder(dict[int, int])
_name: Final = msgspec.json.Decoder(str)


def offset_rows(body: bytes) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield each ``topic@group`` with its queues' offsets, decoding one row at a time.

    The body (43) is ``{"offsetTable":{"topic@group":{0:5,1:7},…}}``, with numbers as keys, which JSON decoders refuse.
    A body with more fields is read in one step if it is no larger than a frame of Apache's broker.

    :raises BodyError: it is malformed; the rows yielded before are valid.
    """
    head = _HEAD.match(body)
    if head is None:
        if len(body) > MAX_FRAME_BYTES:
            raise BodyError(f"{len(body)} bytes of consumer offsets do not begin with offsetTable")
        yield from decode_body(ConsumerOffsetSerializeWrapper, body).offset_table.items()
        return
    at = head.end()
    is_first = is_more = True
    while is_more and (row := _ROW.match(body, at)) is not None:
        try:
            yield _name.decode(row[1]), _offsets.decode(quote_keys(row[2]))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BodyError(f"cannot read the consumer offsets at byte {at}: {error}") from error
        at = row.end()
        is_first, is_more = False, bool(row[3])
    if (is_more and not is_first) or _TAIL.fullmatch(body, at) is None:
        raise BodyError(f"cannot read the consumer offsets at byte {at}: {body[at : at + 40]!r}")


class SlaveSynchronize:
    """Copies the tables of a master until it is stopped."""

    def __init__(
        self,
        broker: BrokerContext,
        master: MasterAddress,
        client: RemotingClient,
        follower: HAClient | MemberLink,
        copies: Sequence[SetCopy] = (),
    ) -> None:
        """Create the copies, which :meth:`start` begins.

        :param copies: the tables that only the members of a set copy.
        """
        self._copies = copies
        self._is_member = isinstance(follower, MemberLink)
        self._quotas = QuotaCopy(broker.limiter.table, client)
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
        self._marks: dict[str, str] = {}
        """The mark from each table's last copy."""
        self._own: dict[str, set[str]] = {TOPICS: set(), GROUPS: set()}
        """Topics and groups that this broker has changed itself since the last copy."""
        self._topics.on_change.append(lambda name: self._own[TOPICS].add(name))
        self._groups.on_change.append(lambda name: self._own[GROUPS].add(name))
        self._beyond: dict[str, Mapping[int, int]] = {}
        """The master's consumer offsets that are past the ends of this broker's queues."""
        self._all_due_at = store.clock.monotonic()
        """Time of the next copy of the tables that are not copied every second."""
        self._lives_version = ""
        self._lives_of: tuple[DataVersion, DataVersion] | None = None
        """The versions of topics and groups at the last copy of deletions, or ``None`` if a copy is due."""
        self.in_sync_at_ms = 0
        """Time at which the master last said that this slave is in sync, or 0 if it never has."""
        self._ended: dict[str, int] = {}
        """Log offset up to which topic deletions have been applied to this broker's queues."""
        modes = Path(store.config.root) / "config" / "messageRequestMode.json"
        self._modes = MessageRequestModeManager(modes, clock=store.clock)
        self._modes.on_due = lambda: None  # the copy is written later, in a thread
        for finding in self._modes.load():
            _log.warning("%s", finding)
        self._next = Alarm(self._begin, clock=store.clock)
        self._is_soon = True
        """True if the next copy is the first one or was requested by :meth:`copy_soon`."""
        self._task: asyncio.Task[None] | None = None
        self._copying = asyncio.Lock()
        self._changes_due_at = 0.0
        """Time of a member's next copy of the rows other than offsets."""
        self._files_task: asyncio.Task[None] | None = None
        """A member's copy of files, during which it goes on to copy tables."""
        self._troubles: dict[str, str] = {}
        """The reason for the last failed copy of each table, by the table's name."""

    @property
    def trouble(self) -> str:
        """Return the tables that could not be copied the last time, with the reasons."""
        return "; ".join(f"{what}: {why}" for what, why in self._troubles.items())

    def start(self) -> None:
        """Start copying after three seconds, or soon in a set, on the running loop."""
        self._next.after(MEMBER_OFFSETS_SECONDS if self._is_member else SLAVE_SYNC_FIRST_SECONDS)

    def begin_with_master(self) -> None:
        """Expect another master: nothing that was copied from the earlier one, and not used yet, is used any more."""
        for task in (self._task, self._files_task):
            if task is not None:
                task.cancel()  # a table that is only partly taken over is copied again completely
        self._marks.clear()
        self._beyond.clear()
        self._lives_version, self._lives_of = "", None
        self._changes_due_at = 0.0
        self._all_due_at = self._store.clock.monotonic()
        for file in self._files:
            file.begin_with_master()
        self._timer.begin_with_master()
        for table in self._copies:
            table.begin_with_master()

    def copy_soon(self) -> None:
        """Copy the tables within a second, because messages for unknown topics have arrived."""
        if self._is_member:
            self._changes_due_at = 0.0
        elif not self._is_soon and (self._task is None or self._task.done()):
            self._is_soon = True
            self._next.after(SLAVE_SYNC_SOON_SECONDS)

    def _begin(self) -> None:
        self._is_soon = False
        self._task = asyncio.get_running_loop().create_task(self._copy_and_repeat(), name="copy the master's tables")

    async def _copy_and_repeat(self) -> None:
        is_fast = False
        try:
            if self._is_member:
                await self._copy_as_member()
            else:
                async with self._copying:
                    await self._copy()
            is_fast = bool(self._marks) and not self._troubles
        finally:
            usual_s = SLAVE_CHANGES_SECONDS if is_fast else SLAVE_SYNC_SECONDS
            self._next.after(MEMBER_OFFSETS_SECONDS if self._is_member else usual_s)

    async def stop(self) -> None:
        """Stop copying; use the held files and consumer offsets that this log has reached since the last copy.

        A member may be elected just after it has joined the set with a new disk, before it copies again.
        """
        self._next.close()
        tasks = [task for task in (self._task, self._files_task) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await in_rounds(self._offsets.take_over(list(self._beyond.items()), self._end, self._beyond, removed=()))
        self._modes.writer.save_last()
        try:
            await self._put_in_place()
        except OSError as error:
            _log.error("cannot write the files copied from the master: %s", reason_of(error))

    async def copy(self) -> None:
        """Copy everything once; tables that fail are retried the next time."""
        async with self._copying:
            self._all_due_at = self._store.clock.monotonic()
            await self._copy()

    async def copy_topics(self, master: str) -> None:
        """Copy the topics of a master whose log begins with this broker's log.

        :raises CometMQError: the master did not return them.
        :raises BodyError: the answer is malformed.
        """
        async with self._copying:
            await self._copy_topics(master)

    async def copy_changes(self) -> bool:
        """Copy all tables, but no files, from the master of a set; return whether the copy is complete."""
        async with self._copying:
            address = self._address
            self._lives_of = None
            return address is not None and await self._copy_parts(address, self._rows(is_all_due=True))

    @property
    def _address(self) -> str | None:
        """Return the master's address, unless its tables may belong to another log."""
        return self._master.remoting if self._follower.is_following else None

    async def _copy(self) -> None:
        """Copy the tables and files that are due."""
        is_placed = await self._run_part("the tables copied earlier", self._put_in_place)
        address = self._address
        if address is None:
            return
        is_all_due = self._note_due()
        if await self._copy_parts(address, self._rows(is_all_due=is_all_due)) and is_all_due and is_placed:
            await self._run_part("files", partial(self._copy_files, address))

    async def _copy_as_member(self) -> None:
        """Copy what is due: offsets each time, other rows each second, files beside that."""
        now = self._store.clock.monotonic()
        async with self._copying:
            address = self._address
            if address is None:
                return
            if now < self._changes_due_at:
                await self._run_part("consumer offsets", partial(self._copy_offsets, address))
                return
            self._changes_due_at = now + MEMBER_CHANGES_SECONDS
            is_all_due = self._note_due()
            await self._copy_parts(address, self._rows(is_all_due=is_all_due))
        if self._files_task is None or self._files_task.done():
            work = self._copy_files_of_member(address if is_all_due else None)
            self._files_task = asyncio.get_running_loop().create_task(work, name="copy the master's files")

    async def _copy_files_of_member(self, address: str | None) -> None:
        is_placed = await self._run_part("the tables copied earlier", self._put_in_place)
        if address is not None and is_placed:
            await self._run_part("files", partial(self._copy_files, address))

    def _note_due(self) -> bool:
        """Return whether everything must be copied, and set the next time."""
        now = self._store.clock.monotonic()
        if now < self._all_due_at:
            return False
        self._all_due_at = now + SLAVE_SYNC_SECONDS
        self._lives_of = None
        return True

    def _rows(self, *, is_all_due: bool) -> list[tuple[str, Copy]]:
        """Return the copies of tables that are due, with their names."""
        parts: list[tuple[str, Copy]] = [
            ("topics", self._copy_topics),
            ("deleted topics", self._copy_deletions),
            ("ends of queues", self._copy_ends),
            ("consumer offsets", self._copy_offsets),
            ("groups", self._copy_groups),
            ("the state of this slave", self._ask_whether_in_sync),
            *((table.name, table.copy) for table in self._copies),
        ]
        if is_all_due:
            parts.append(("message request modes", self._copy_modes))
        if is_all_due and self._is_member:
            parts.append(("quotas", self._quotas.copy))
        return parts

    async def _copy_parts(self, address: str, parts: list[tuple[str, Copy]]) -> bool:
        """Copy tables until the master is not reachable; return whether all were copied."""
        is_complete = True
        for what, copy in parts:
            is_copied = await self._run_part(what, partial(copy, address))
            is_complete = is_complete and is_copied
            if not is_copied and not self._client.live(address):
                return False
        return is_complete

    async def _run_part(self, what: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Copy one table; return whether this succeeded.

        A failure is logged once and does not stop the other copies.
        """
        why = ""
        try:
            await work()
        except (CometMQError, BodyError) as error:
            why = str(error)
            if why != self._troubles.get(what):
                _log.warning("cannot copy %s from the master: %s; will retry", what, why)
        except OSError as error:
            why = reason_of(error)
            _log.error("cannot write %s from the master: %s; will retry", what, why)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            _log.exception("cannot copy %s from the master; will retry", what)
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
        if await self._copy_changes(master, TOPICS, self._topics) is None:
            body = await self._request_table(master, RequestCode.GET_ALL_TOPIC_CONFIG)
            found = decode_body(TopicConfigSerializeWrapper, body)
            if found.data_version == self._topics.version:
                return
            await in_rounds(self._topics.take_over(found.topic_config_table.items(), found.data_version))

    async def _copy_changes(self, master: str, name: str, table: VersionedTable[Any]) -> set[str] | None:
        """Copy the changes to topics or groups; return the removed rows, or ``None`` if the master is Apache's."""
        own, self._own[name] = self._own[name], set()
        found = await MasterTables(self._client, master).changes(name, self._marks.pop(name, ""), own)
        if found is None:
            return None
        version = found.head.data_version
        if version is None:
            raise ReplicationError(f"the master sent {name} without a version")
        removed = None if found.whole else found.head.removed
        gone = set(table.table if removed is None else removed)
        await in_rounds(table.take_over(found.rows(table.kind), version, removed))
        self._marks[name] = found.mark
        return gone - table.table.keys()

    async def _copy_deletions(self, master: str) -> None:
        """Copy the log offsets of topic deletions, since queues that end before them belong to deleted topics.

        The tables do not show a topic that was deleted and created again between two copies. Apache's master
        does not show it either.
        """
        lives = self._deletions.lives
        if self._lives_of == (self._topics.version, self._groups.version):
            return
        try:
            found = await MasterFiles(self._client, master).whole(DELETED_TOPICS, self._lives_version)
        except NotOfferedError:
            return
        if found is not None:
            lives.take_over(decode_body(DeletedTopics, found.data))
            lives.on_due()
            self._lives_version = found.version
        for topic, deleted in list(lives.deleted.items()):
            is_new = self._ended.get(topic) != deleted.position
            if is_new and deleted.position <= self._store.max_physical_offset:
                self._ended[topic] = deleted.position
                self._deletions.end_queues(topic, deleted.position)
                await asyncio.sleep(0)
        self._lives_of = (self._topics.version, self._groups.version)

    async def _copy_ends(self, master: str) -> None:
        await self._ends.copy(master, MasterTables(self._client, master), self._topics.table)

    async def _copy_offsets(self, master: str) -> None:
        tables = MasterTables(self._client, master)
        found = await tables.changes(OFFSETS, self._marks.pop(OFFSETS, ""), (), Part(0, OFFSET_PARTS))
        if found is None:
            body = await self._request_table(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
            await in_rounds(self._offsets.take_over(offset_rows(body), self._end, {}))
            return
        if found.whole:
            self._beyond.clear()
        removed = None if found.whole else found.head.removed
        for key in removed or ():
            self._beyond.pop(key, None)
        rows = chain(list(self._beyond.items()), found.rows(dict[int, int]))
        await in_rounds(self._offsets.take_over(rows, self._end, self._beyond, removed, Part(0, found.parts)))
        for number in range(1, found.parts):
            part = Part(number, found.parts)
            more = (await tables.part(OFFSETS, part)).rows(dict[int, int])
            await in_rounds(self._offsets.take_over(more, self._end, self._beyond, None, part))
        self._marks[OFFSETS] = found.mark

    async def _copy_groups(self, master: str) -> None:
        gone = await self._copy_changes(master, GROUPS, self._groups)
        if gone is None:
            before = set(self._groups.table)
            body = await self._request_table(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            found = decode_body(SubscriptionGroupWrapper, body)
            if found.data_version == self._groups.version:
                return
            await in_rounds(self._groups.take_over(found.subscription_group_table.items(), found.data_version))
            gone = before - self._groups.table.keys()
        for group in gone:
            self._deletions.end_group(group)

    async def _ask_whether_in_sync(self, master: str) -> None:
        """Remember the last time at which this slave had everything that the master had answered as stored.

        Once the master is lost, this tells an operator which slaves may be promoted. Apache's master does not wait for
        every slave in sync, so its answer would say nothing.
        """
        if not self._marks:
            return
        asked_at_ms = self._store.clock.now_ms()
        status = decode_body(HARuntimeInfo, await self._request_table(master, RequestCode.GET_BROKER_HA_STATUS))
        here = self._follower.local_address
        if any(slave.in_sync and slave.addr == here for slave in status.ha_connection_info):
            self.in_sync_at_ms = asked_at_ms

    async def _copy_modes(self, master: str) -> None:
        answer = await self._client.invoke(
            master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, timeout_s=SLAVE_TABLE_SECONDS
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"GET_ALL_MESSAGE_REQUEST_MODE: code {answer.code}, {answer.remark}")
        self._modes.take_over(decode_body(RequestModeTable, answer.body))
        await self._modes.writer.save_in_thread()

    async def _copy_files(self, master: str) -> None:
        files = MasterFiles(self._client, master)
        try:
            for file in self._files:
                await file.copy(files)
            await self._timer.copy(files)
        except NotOfferedError:
            await self._copy_delay_offsets(master)

    async def _copy_delay_offsets(self, master: str) -> None:
        """Copy the delay offsets from Apache's master, which may differ from this broker's log by up to ten seconds."""
        body = await self._request_table(master, RequestCode.GET_ALL_DELAY_OFFSET)
        table = decode_body(DelayOffsetSerializeWrapper, body)
        offsets = {
            level: min(offset, self._end(SCHEDULE_TOPIC, level - 1))
            for level, offset in table.offset_table.items()
            if level > 0 and offset > 0
        }
        await in_thread(self._delays.save, DelayProgress(offsets))

    def _end(self, topic: str, queue_id: int) -> int:
        """Return the end of a queue's stored messages, which consumers may not read yet."""
        return self._store.stored_end(topic, queue_id)

    async def _request_table(self, master: str, code: RequestCode) -> bytes:
        answer = await self._client.invoke(master, code, timeout_s=SLAVE_TABLE_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"{code.name}: code {answer.code}, {answer.remark}")
        return answer.body
