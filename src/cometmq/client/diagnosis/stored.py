"""Checks of the message itself: whether it is stored, delayed, half, expired or deleted, and whether its queue is
readable.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from cometmq.client.admin import Admin
from cometmq.client.admin.several import gathered
from cometmq.client.diagnosis.checks import Check, Question, Unavailable, Verdict, moment, quote, tried
from cometmq.client.diagnosis.place import Extent, by_unique_key
from cometmq.client.trace.reader import MessageWay, way_of
from cometmq.message.message import MessageExt
from cometmq.message.names import (
    PERM_READ,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
)
from cometmq.message.properties import DELAY, PGROUP, REAL_TOPIC, TIMER_OUT_MS
from cometmq.quantity import quantity
from cometmq.remoting.admin_bodies import OpenTransaction, WaitingMessage
from cometmq.remoting.bodies import TopicRouteData

SEARCHED: Final = 10_000
"""Maximum number of delayed messages and of open transactions that are searched on each broker."""
_LISTED_MS: Final = 5_000
"""A broker lists a delayed message a second after it was sent, at the latest after this time."""
_ID_BYTES: Final = 16
"""Length of a client's message id with an IPv4 address."""
_ID_5_CHARS: Final = 34
_START_OF_2021_S: Final = 1_609_459_200
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_LEVELS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""The delay levels, in seconds, that a broker has by default (``messageDelayLevel``)."""


def level_due_ms(message: MessageExt) -> int | None:
    """Return the time at which a message that is parked with a delay level becomes due, with default levels."""
    level = message.properties.get(DELAY, "")
    if not (level.isascii() and level.isdigit() and 1 <= int(level) <= len(_LEVELS_S)):
        return None
    return message.store_timestamp + _LEVELS_S[int(level) - 1] * 1000


def out_of_range(question: Question, extent: Extent) -> Check:
    """Explain why a queue has no message at an offset."""
    span = f"the queue has the offsets {extent.first} to {extent.end - 1}"
    if extent.first == extent.end:
        span = f"the queue is empty, and its next offset is {extent.end}"
    offset = question.offset or 0
    if offset >= extent.end:
        return Check("stored", Verdict.CAUSE, f"No message has offset {offset} yet: {span}.", "Check the offset.")
    return Check(
        "stored",
        Verdict.CAUSE,
        f"The message at offset {offset} is deleted: {span}. The broker deletes old messages (fileReservedTime).",
        "Keep messages longer, or read them from an archive or a backup.",
    )


async def absent(admin: Admin, question: Question) -> list[Check]:
    """Explain why a topic has no message with an id."""
    now_ms = admin.instance.clock.now_ms()
    delayed = await _delayed(admin, question, now_ms)
    half = await _half(admin, question)
    if Verdict.CAUSE in (delayed.verdict, half.verdict):
        return [
            Check("stored", Verdict.RULED_OUT, "The broker has the message, but not in its topic yet."),
            delayed,
            half,
        ]
    return [await _gone(admin, question, now_ms), delayed, half]


class _Parked(NamedTuple):
    """A copy of the message that is or was delayed."""

    due_ms: int
    stored_ms: int
    has_level: bool
    """The delay is a level, so the message cannot be recalled."""


async def _delayed(admin: Admin, question: Question, now_ms: int) -> Check:
    masters, parked = await tried(admin.masters()), await tried(_parked(admin, question))
    places: dict[str, str] = {} if isinstance(masters, Unavailable) else masters

    async def waiting(address: str) -> tuple[list[WaitingMessage], bool]:
        """Return the waiting messages with this id, and whether all waiting messages were searched."""
        found = await admin.waiting_messages(address, topic=question.topic, limit=SEARCHED)
        return [message for message in found if message.uniq_key == question.msg_id], len(found) < SEARCHED

    listed = await gathered({name: tried(waiting(address)) for name, address in places.items()})
    for found in listed.values():
        if not isinstance(found, Unavailable) and found[0]:
            return _waits_until(found[0][0].due)
    if isinstance(parked, Unavailable):
        return Check("delayed", Verdict.UNKNOWN, f"The delayed messages cannot be searched: {parked.reason}.")
    if parked is None or parked.due_ms <= now_ms:
        return Check("delayed", Verdict.RULED_OUT, "No message that is delayed until later has this id.")
    is_searched = bool(listed) and all(not isinstance(found, Unavailable) and found[1] for found in listed.values())
    if parked.has_level or not is_searched or now_ms - parked.stored_ms < _LISTED_MS:
        return _waits_until(parked.due_ms)
    return Check(
        "delayed",
        Verdict.CAUSE,
        f"The message was delayed until {moment(parked.due_ms)}, but no longer waits: it was recalled.",
        "Send it again, if the recall was a mistake.",
    )


def _waits_until(due_ms: int) -> Check:
    evidence = f"The message is delayed: the broker delivers it at {moment(due_ms)}."
    return Check("delayed", Verdict.CAUSE, evidence, "Wait until then, or recall the message and send it again.")


async def _parked(admin: Admin, question: Question) -> _Parked | None:
    """Return the copy of the message that is due last, or None if it has never been delayed."""
    copies = []
    for system_topic in (TIMER_TOPIC, SCHEDULE_TOPIC):
        for message in await by_unique_key(admin, system_topic, question.msg_id):
            if message.properties.get(REAL_TOPIC) == question.topic:
                out = message.properties.get(TIMER_OUT_MS, "")
                due_ms = int(out) if out.isascii() and out.isdigit() and len(out) < 19 else level_due_ms(message) or 0
                copies.append(_Parked(due_ms, message.store_timestamp, system_topic == SCHEDULE_TOPIC))
    return max(copies, default=None)


async def _half(admin: Admin, question: Question) -> Check:
    name, msg_id = "transaction", question.msg_id

    async def opened(address: str) -> list[OpenTransaction]:
        found = await admin.open_transactions(address, limit=SEARCHED)
        return [one for one in found if one.uniq_key == msg_id]

    masters = await tried(admin.masters())
    places: dict[str, str] = {} if isinstance(masters, Unavailable) else masters
    listed = await gathered({at: tried(opened(address)) for at, address in places.items()})
    for found in listed.values():
        if isinstance(found, list) and found:
            evidence = (
                f"The message is half: its transaction was begun at {moment(found[0].begun)} by producer group "
                f"{quote(found[0].group)}, and is neither committed nor rolled back. The broker has asked "
                f"{quantity(found[0].check_times, 'time')}."
            )
            return Check(name, Verdict.CAUSE, evidence, "Check that a producer of this group runs and answers checks.")
    halves = await tried(by_unique_key(admin, TRANS_HALF_TOPIC, msg_id))
    given_up = await tried(by_unique_key(admin, TRANS_CHECK_MAX_TIME_TOPIC, msg_id))
    if isinstance(given_up, list) and given_up:
        evidence = f"The broker has given up the transaction at {moment(given_up[-1].store_timestamp)}."
        return Check(name, Verdict.CAUSE, evidence, f"Resume it: cometmq transaction resume {msg_id}")
    if isinstance(halves, Unavailable):
        return Check(name, Verdict.UNKNOWN, f"The half messages cannot be searched: {halves.reason}.")
    ours = [half for half in halves if half.properties.get(REAL_TOPIC) == question.topic]
    if not ours:
        return Check(name, Verdict.RULED_OUT, "No half message has this id.")
    group = quote(ours[-1].properties.get(PGROUP, ""))
    if not listed or any(isinstance(found, Unavailable) for found in listed.values()):
        evidence = f"The message is half, or rolled back: producer group {group} has not committed its transaction."
    else:
        evidence = f"Producer group {group} has rolled back the transaction of this message."
    return Check(name, Verdict.CAUSE, evidence, "Check the producer's transaction listener.")


async def _gone(admin: Admin, question: Question, now_ms: int) -> Check:
    way = await tried(way_of(admin, question.msg_id))
    sends = way.sends if isinstance(way, MessageWay) else ()
    sent = f" Its trace records a send at {moment(sends[-1][0].time_ms)}." if sends else ""
    times = await gathered({at: admin.offsets.earliest_store_time(at) for at in await admin.queues(question.topic)})
    stored = [time for time in times.values() if time > 0]
    made_ms = made_about_ms(question.msg_id, now_ms)
    if stored and made_ms is not None and made_ms < min(stored):
        evidence = (
            f"The message is deleted: its id was made at about {moment(made_ms)}, and the oldest message of the topic "
            f"was stored at {moment(min(stored))}.{sent}"
        )
        return Check("stored", Verdict.CAUSE, evidence, "Keep messages longer (fileReservedTime), or use an archive.")
    evidence = (
        f"The index of topic {question.topic_in_words} has no message with this id: "
        f"it was never stored here, or is deleted.{sent}"
    )
    return Check(
        "stored",
        Verdict.CAUSE,
        evidence,
        "Check the id, the topic and the producer's send result; a broker with messageIndexEnable=false has no index.",
    )


def made_about_ms(msg_id: str, now_ms: int) -> int | None:
    """Return the time in a client's message id, or None for an offset id or another text.

    An id counts milliseconds from the first of a month (``MessageClientIDSetter``), in the C++ client from the day
    before it, or in RocketMQ 5 over gRPC seconds from 2021 (``MessageIdCodec``). The time of the C++ client may be an
    hour too late, since its start of the month may be in daylight saving time.
    """
    if len(msg_id) not in (32, _ID_5_CHARS, 56) or _HEX.fullmatch(msg_id) is None:
        return None
    if len(msg_id) == _ID_5_CHARS:
        return (_START_OF_2021_S + int(msg_id[-16:-8], 16)) * 1000 if msg_id.startswith("01") else None
    raw = bytes.fromhex(msg_id)
    is_cpp = _is_of_cpp(raw)
    if not is_cpp and _is_offset_id(raw):
        return None
    passed = timedelta(milliseconds=int.from_bytes(raw[-6:-2], "little" if is_cpp else "big"))
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    before = timedelta(days=1 if is_cpp else 0)
    made = month - before + passed
    if made > now + timedelta(days=1):
        made = (month - timedelta(days=1)).replace(day=1) - before + passed
    return round(made.timestamp() * 1000)


def _is_offset_id(raw: bytes) -> bool:
    """Return whether an id has the form of an offset id: a port after the address, and a log offset below 2^48."""
    return raw[-12:-10] == b"\0\0" != raw[-10:-8] and raw[-8:-6] == b"\0\0"


def _is_of_cpp(raw: bytes) -> bool:
    """Return whether an id is one of the C++ client's, which writes its numbers in the machine's byte order.

    Its layout: ip (4), upper 16 bits of the pid (2), a random number (2), zeros (2), milliseconds (4), a counter of one
    byte (2). An offset id could have the same form only if its log offset were above 2^40.
    """
    return (
        len(raw) == _ID_BYTES and not raw[5] and any(raw[6:8]) and not any(raw[8:10]) and bool(raw[10]) and not raw[15]
    )


def life_time(message: MessageExt, now_ms: int) -> Check:
    """Check that the message's life time is not over."""
    if message.expires_at is None:
        return Check("life time", Verdict.RULED_OUT, "The message has no life time.")
    ends_ms = round(message.expires_at.timestamp() * 1000)
    if ends_ms > now_ms:
        return Check("life time", Verdict.RULED_OUT, f"The message lives until {moment(ends_ms)}.")
    return Check(
        "life time",
        Verdict.CAUSE,
        f"The message's life time ended at {moment(ends_ms)}, so the broker no longer delivers it.",
        "Send it again with a longer life time, or consume faster.",
    )


def readable(message: MessageExt, topic: str, route: TopicRouteData) -> Check:
    """Check that consumers may read the message's queue."""
    place = f"queue {message.queue_id} on {message.broker_name}"
    data = next((one for one in route.queue_datas if one.broker_name == message.broker_name), None)
    if data is None:
        evidence = f"The nameserver has no route to broker {message.broker_name}, which has the message."
        return Check("queue", Verdict.CAUSE, evidence, "Start this broker, or check its registration.")
    if not data.perm & PERM_READ:
        evidence = f"Topic {topic} is not readable on {message.broker_name}."
        return Check("queue", Verdict.CAUSE, evidence, f"Run: cometmq topic alter {topic} --permission rw")
    if message.queue_id >= data.read_queue_nums:
        evidence = f"The topic has {quantity(data.read_queue_nums, 'read queue')}, so nobody reads {place}."
        return Check(
            "queue", Verdict.CAUSE, evidence, f"Run: cometmq topic alter {topic} --read-queues {message.queue_id + 1}"
        )
    return Check("queue", Verdict.RULED_OUT, f"Consumers may read {place}.")
