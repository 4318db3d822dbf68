"""Sends dead letters again to the topics where they came from, each one once.

A ledger, one JSON object a line, says first what is about to be sent and then what was: both are on the
disk before the next step. A resend that was killed and is repeated with the same ledger passes over what was
sent; what is in doubt is looked for at its topic, by its unique key and a property that names the dead letter.

So a dead letter is sent twice only if the ledger is lost, or if the broker has a send of the killed run but not
in its index yet: one that was under way at that very moment, or one of a broker without ``messageIndexEnable``.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterable, Callable
from enum import Enum
from pathlib import Path
from typing import IO, Final, Self

from cometmq.client.admin import Admin
from cometmq.client.dead_letters import origin_topic
from cometmq.client.route import queue_or_fail
from cometmq.errors import CometMQError
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.message.message import MessageExt
from cometmq.message.names import AUTO_CREATE_TOPIC
from cometmq.message.properties import (
    CLUSTER,
    DELAY,
    MAX_RECONSUME_TIMES,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    encode_properties,
)
from cometmq.message.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import SendMessageRequestHeaderV2

RESENT_FROM: Final = "RESENT_FROM"
"""The property that names the dead letter (its offset id) which a message was sent again for."""

_GROUP: Final = "cometmq-dlq"
_OF_THE_WAY: Final = (
    CLUSTER,
    DELAY,
    MAX_RECONSUME_TIMES,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
    WAIT,
)
"""Properties that tell of the way to the dead letters; a message that is sent again begins anew."""


class Outcome(Enum):
    """What became of one dead letter."""

    SENT = "sent"
    SENT_BEFORE = "sent before"
    FAILED = "failed"


class LedgerError(CometMQError):
    """A ledger that cannot be read or written."""


class Ledger:
    """What is about to be sent again and what was; used as a context manager.

    :raises LedgerError: it cannot be opened, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
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
                self._file.write(b"\n")  # a line that a crash cut off
        except (OSError, ValueError) as error:
            self.__exit__()
            raise LedgerError(f"{self._path} cannot be used: {error}", next_step="name another --ledger") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            return  # cut off by a crash: then nothing was sent for it
        if not isinstance(entry, dict):
            raise ValueError("it is no ledger of a resend")
        for name, table in (("intent", self.intended), ("sent", self.sent)):
            if isinstance(entry.get(name), str):
                table.add(entry[name])

    def intend(self, letter: str) -> None:
        """Note that ``letter`` is about to be sent."""
        self.intended.add(letter)
        self._write({"intent": letter})

    def done(self, letter: str) -> None:
        """Note that ``letter`` was sent."""
        self.sent.add(letter)
        self._write({"sent": letter})

    def _write(self, entry: dict[str, str]) -> None:
        assert self._file is not None, "the ledger is open"
        try:
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise LedgerError(f"{self._path} cannot be written: {error}", next_step="make room for it") from error


async def resend(
    admin: Admin,
    letters: AsyncIterable[MessageExt],
    ledger: Ledger,
    report: Callable[[MessageExt, Outcome, str], None],
    *,
    rate: float | None = None,
) -> None:
    """Send dead letters again, one after the other, to the topics where they came from.

    :param report: told of each letter what became of it, with words for those that failed.
    :param rate: messages a second at most.
    :raises LedgerError: nothing more may be sent, because it could not be noted.
    """
    clock = admin.instance.clock
    due = clock.monotonic()
    async for letter in letters:
        name = letter.offset_msg_id
        topic = origin_topic(letter)
        if topic is None:
            report(letter, Outcome.FAILED, f"{name} does not say which topic it came from")
            continue
        if name in ledger.sent:
            report(letter, Outcome.SENT_BEFORE, "")
            continue
        if rate is not None:
            due = max(due, clock.monotonic())
            await clock.sleep(due - clock.monotonic())
            due += 1 / rate
        try:
            if name in ledger.intended and await _is_there(admin, letter, topic):
                ledger.done(name)
                report(letter, Outcome.SENT_BEFORE, "")
                continue
            if name not in ledger.intended:
                ledger.intend(name)
            await _send(admin, letter, topic)
        except LedgerError:
            raise
        except CometMQError as error:
            report(letter, Outcome.FAILED, str(error))
        else:
            ledger.done(name)
            report(letter, Outcome.SENT, "")


def _unique_key(letter: MessageExt) -> str:
    """What the message is found by in its topic; one whose producer gave no key gets the dead letter's id."""
    return letter.properties.get(UNIQ_KEY) or letter.offset_msg_id


async def _is_there(admin: Admin, letter: MessageExt, topic: str) -> bool:
    found = await admin.query_message(topic, _unique_key(letter), max_messages=MAX_QUERY_MESSAGES, unique_key=True)
    return any(message.properties.get(RESENT_FROM) == letter.offset_msg_id for message in found)


async def _send(admin: Admin, letter: MessageExt, topic: str) -> None:
    properties = {name: value for name, value in letter.properties.items() if name not in _OF_THE_WAY}
    properties[UNIQ_KEY] = _unique_key(letter)
    properties[RESENT_FROM] = letter.offset_msg_id
    instance = admin.instance
    queue = random.choice(queue_or_fail(await instance.routes.get(topic)))
    header = SendMessageRequestHeaderV2(
        producer_group=_GROUP,
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=1,
        queue_id=queue.queue_id,
        sys_flag=letter.sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK),
        born_timestamp=instance.clock.now_ms(),
        flag=letter.flag,
        properties=encode_properties(properties),
        broker_name=queue.broker_name,
    )
    address = await instance.master_of(queue)
    doing = f"sending {letter.offset_msg_id} to {topic} again"
    await instance.call(address, RequestCode.SEND_MESSAGE_V2, header, letter.stored_body, doing=doing)
