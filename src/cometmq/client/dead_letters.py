"""Dead letters: lists, reads and resends the messages in ``%DLQ%`` topics.

Reading changes nothing, since it uses no group and commits no offset. It also works with Apache RocketMQ.

Theory of operation of :func:`resend`, which sends each dead letter to its original topic once. A ledger with one JSON
object per line records an *intent* before each send and a *sent* after it; each is on disk before the next step. After
a crash, the caller repeats the resend with the same ledger. A letter that was sent is skipped. A letter that has only
an intent is searched for in its topic, by its unique key and a property that names the dead letter.

Fault model: a dead letter is sent twice only if the ledger is lost, or if the broker's index does not contain the send
of the crashed run: the send was in progress at that moment, or the broker has no ``messageIndexEnable``.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import IO, Final, Self

import msgspec

from cometmq.client.admin import END_OF_TIME_MS, Admin
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.pulling import PullStatus
from cometmq.client.errors import RouteNotFoundError
from cometmq.client.pace import Pace
from cometmq.client.route import queue_or_fail
from cometmq.errors import CometMQError
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.message.message import MessageExt
from cometmq.message.names import AUTO_CREATE_TOPIC, DLQ_PREFIX, TOOLS_GROUP, dlq_topic
from cometmq.message.properties import (
    CLUSTER,
    DEAD_REASON,
    DELAY,
    EXPIRED_FROM,
    EXPIRES_MS,
    MAX_RECONSUME_TIMES,
    ORIGIN_GROUP,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TIMER_NAMES,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    encode_properties,
)
from cometmq.message.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK
from cometmq.paths import local_path
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from cometmq.threads import in_thread

_PULL: Final = 32


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """A consumer group with dead letters."""

    group: str
    count: int
    oldest_ms: int
    """Store time of the first dead letter, in milliseconds since 1970."""
    newest_ms: int


class Selection(msgspec.Struct, frozen=True):
    """A filter for dead letters. A field with no value matches all dead letters."""

    key: str | None = None
    tag: str | None = None
    origin_topic: str | None = None
    """The topic to which the message was originally sent."""
    ids: frozenset[str] = frozenset()
    """Offset ids of dead letters, unique keys, or offset ids of the failed messages; empty matches all dead letters."""
    begin_ms: int = 0
    """Minimum time at which the message became a dead letter, in milliseconds since 1970."""
    end_ms: int = END_OF_TIME_MS
    """Maximum time at which the message became a dead letter, in milliseconds since 1970."""

    def takes(self, message: MessageExt) -> bool:
        """Return whether a dead letter matches."""
        return (
            self.begin_ms <= message.store_timestamp <= self.end_ms
            and (self.key is None or self.key in message.keys)
            and (self.tag is None or self.tag == message.tags)
            and (self.origin_topic is None or self.origin_topic == origin_topic(message))
            and (not self.ids or not self.ids.isdisjoint(ids_of(message)))
        )


def origin_topic(message: MessageExt) -> str | None:
    """Return the topic to which a dead letter was first sent, or ``None`` if the property is missing."""
    return message.properties.get(RETRY_TOPIC)


def ids_of(message: MessageExt) -> set[str]:
    """Return all ids of a dead letter."""
    return {message.offset_msg_id, message.msg_id, message.properties.get(ORIGIN_MESSAGE_ID, "")}


async def dead_letter_groups(admin: Admin) -> list[DeadLetterGroup]:
    """Return all groups with stored dead letters, sorted by name."""
    found = []
    for name in await names_of_groups(admin):
        described = await describe(admin, name)
        if described is not None:
            found.append(described)
    return found


async def names_of_groups(admin: Admin) -> list[str]:
    """Return the groups that have or had dead letters, sorted by name."""
    return sorted(name.removeprefix(DLQ_PREFIX) for name in await admin.topics() if name.startswith(DLQ_PREFIX))


async def describe(admin: Admin, group: str) -> DeadLetterGroup | None:
    """Return the number and times of a group's dead letters, or ``None`` if none are stored."""
    topic, count = dlq_topic(group), 0
    times: list[int] = []
    async with PullConsumer(TOOLS_GROUP, instance=admin.instance) as consumer:
        for queue in await consumer.queues(topic):
            first, end = await consumer.offsets.min(queue), await consumer.offsets.max(queue)
            count += max(0, end - first)
            for offset in {first, end - 1} if end > first else ():
                result = await consumer.pull(queue, offset, 1)
                times += [message.store_timestamp for message in result.messages]
    if not times:
        return None
    return DeadLetterGroup(group, count, min(times), max(times))


async def read_dead_letters(
    admin: Admin, group: str, selection: Selection | None = None, limit: int | None = None
) -> AsyncIterator[MessageExt]:
    """Yield a group's stored dead letters queue by queue, in order.

    :param limit: maximum number of dead letters; by default there is no limit.
    """
    wanted = selection or Selection()
    left = limit
    async with PullConsumer(TOOLS_GROUP, instance=admin.instance) as consumer:
        try:
            queues = await consumer.queues(dlq_topic(group))
        except RouteNotFoundError:
            return
        for queue in queues:
            at, end = await consumer.offsets.min(queue), await consumer.offsets.max(queue)
            while at < end:
                result = await consumer.pull(queue, at, _PULL)
                for message in result.messages:
                    if message.queue_offset < end and wanted.takes(message):
                        if left == 0:
                            return
                        yield message
                        left = None if left is None else left - 1
                if result.status is not PullStatus.FOUND and result.next_offset <= at:
                    break
                at = result.next_offset


RESENT_FROM: Final = "RESENT_FROM"
"""The property of a resent message that contains the dead letter's offset id."""

_GROUP: Final = "cometmq-dlq"
_DEAD_LETTER_PROPERTIES: Final = (
    CLUSTER,
    DEAD_REASON,
    DELAY,
    EXPIRED_FROM,
    EXPIRES_MS,
    MAX_RECONSUME_TIMES,
    ORIGIN_GROUP,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
    WAIT,
)
"""Properties that record how a message became a dead letter; they are removed when it is resent. A message with a life
time gets a new life.
"""


class Outcome(Enum):
    """The outcome for one dead letter."""

    SENT = "sent"
    SENT_BEFORE = "sent before"
    FAILED = "failed"


class LedgerError(CometMQError):
    """The ledger cannot be read or written."""


class Ledger:
    """A resend ledger, used as a context manager.

    :raises LedgerError: the file cannot be opened, or is not a ledger.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = local_path(path)
        self.intended: set[str] = set()
        self.sent: set[str] = set()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a+b")
            self._file.seek(0)
            content = self._file.read()
            for line in content.splitlines():
                self._read(line)
            if content and not content.endswith(b"\n"):
                self._file.write(b"\n")  # this line was cut off by a crash
        except (OSError, ValueError) as error:
            self.__exit__()
            raise LedgerError(
                f"cannot use the ledger {self._path}: {error}", next_step="specify another file with --ledger"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            return  # a crash cut this line off, so nothing was sent for it
        if not isinstance(entry, dict):
            raise ValueError("the file is not a resend ledger")
        for name, table in (("intent", self.intended), ("sent", self.sent)):
            if isinstance(entry.get(name), str):
                table.add(entry[name])

    def intend(self, letter: str) -> None:
        """Record that ``letter`` is about to be sent."""
        self.intended.add(letter)
        self._write({"intent": letter})

    def done(self, letter: str) -> None:
        """Record that ``letter`` was sent."""
        self.sent.add(letter)
        self._write({"sent": letter})

    def _write(self, entry: dict[str, str]) -> None:
        assert self._file is not None, "the ledger is already open"
        try:
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise LedgerError(f"cannot write the ledger {self._path}: {error}", next_step="free disk space") from error


async def resend(
    admin: Admin,
    letters: AsyncIterable[MessageExt],
    ledger: Ledger,
    report: Callable[[MessageExt, Outcome, str], None],
    *,
    rate: float | None = None,
) -> None:
    """Send dead letters to their original topics, one at a time.

    :param report: called with each dead letter, its result, and the reason for a failure.
    :param rate: maximum number of messages per second.
    :raises LedgerError: the ledger cannot be written; no more dead letters are sent.
    """
    clock = admin.instance.clock
    pace: Pace | None = None
    async for letter in letters:
        name = letter.offset_msg_id
        topic = origin_topic(letter)
        if topic is None:
            report(letter, Outcome.FAILED, f"{name} does not record its original topic")
            continue
        if name in ledger.sent:
            report(letter, Outcome.SENT_BEFORE, "")
            continue
        if rate is not None:
            if pace is None:
                pace = Pace(rate, clock=clock)
            else:
                await clock.sleep(pace.take(1))
        try:
            if name in ledger.intended and await _is_stored(admin, letter, topic):
                await in_thread(ledger.done, name)
                report(letter, Outcome.SENT_BEFORE, "")
                continue
            if name not in ledger.intended:
                await in_thread(ledger.intend, name)
            await _send(admin, letter, topic)
        except LedgerError:
            raise
        except CometMQError as error:
            report(letter, Outcome.FAILED, str(error))
        else:
            await in_thread(ledger.done, name)
            report(letter, Outcome.SENT, "")


def _unique_key(letter: MessageExt) -> str:
    """Return the unique key for a resent message: the dead letter's unique key or, if it has none, its offset id."""
    return letter.properties.get(UNIQ_KEY) or letter.offset_msg_id


async def _is_stored(admin: Admin, letter: MessageExt, topic: str) -> bool:
    found = await admin.query_message(topic, _unique_key(letter), max_messages=MAX_QUERY_MESSAGES, unique_key=True)
    return any(message.properties.get(RESENT_FROM) == letter.offset_msg_id for message in found)


async def _send(admin: Admin, letter: MessageExt, topic: str) -> None:
    await send_copy(admin, letter, topic, {UNIQ_KEY: _unique_key(letter), RESENT_FROM: letter.offset_msg_id})


async def send_copy(admin: Admin, message: MessageExt, topic: str, further: Mapping[str, str]) -> str:
    """Send a stored message to a topic again, with a new life; return the offset id of the copy.

    The copy has the message's body and properties, except those of its delays, failures and transaction.

    :param further: properties that the copy has in addition, or in place of the message's.
    :raises RouteNotFoundError: no nameserver knows the topic.
    """
    gone = {*_DEAD_LETTER_PROPERTIES, *TIMER_NAMES}
    properties = {name: value for name, value in message.properties.items() if name not in gone} | dict(further)
    instance = admin.instance
    queue = random.choice(queue_or_fail(await instance.routes.get(topic)))
    header = SendMessageRequestHeaderV2(
        producer_group=_GROUP,
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=1,
        queue_id=queue.queue_id,
        sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK),
        born_timestamp=instance.clock.now_ms(),
        flag=message.flag,
        properties=encode_properties(properties),
        broker_name=queue.broker_name,
    )
    address = await instance.master_of(queue)
    doing = f"resending {message.offset_msg_id} to {topic}"
    answer = await instance.call(address, RequestCode.SEND_MESSAGE_V2, header, message.stored_body, doing=doing)
    return answer.header(SendMessageResponseHeader).msg_id
