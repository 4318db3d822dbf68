"""Pops of lite topics: POP_LITE_MESSAGE (200070), and acknowledgements and changes (``PopLiteMessageProcessor``).

A pop takes the messages of the client's ready lite topics, in order. A lite topic whose messages are handed out is
locked for its group until they are acknowledged or their invisible time is over, except for a pop with the same
attempt ID, which gets the same messages again.
"""

from __future__ import annotations

import heapq
from functools import partial
from itertools import count
from typing import Any, Final

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    LITE_TOPICS_OF_POP,
    MAX_ATTEMPT_ID_CHARS,
    MAX_POP_MESSAGES,
    MAX_POP_WAIT_MS,
    POP_RETRY_SECONDS,
    POP_REVIVE_MESSAGES,
    STORED_AGAIN_BYTES,
)
from cometmq.broker.lite.checks import LiteChecks, check_invisible
from cometmq.broker.lite.choice import LiteChoice
from cometmq.broker.lite.crowd import LiteClient
from cometmq.broker.lite.holding import HeldLitePop
from cometmq.broker.lite.life_times import LiteLifeTimes
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.broker.lite.progress import GroupProgress, LiteProgress
from cometmq.broker.lite.subscriptions import LiteSubscriptions
from cometmq.broker.pop.ack_message import read_handle
from cometmq.broker.pop.entries import Acked, AnyEntry, Changed, PoppedInOrder, Revived
from cometmq.broker.pop.held_requests import HeldRequests
from cometmq.broker.pop.invisible import NEVER
from cometmq.broker.pop.order import NO_FOLLOWER, NOT_BEGUN, OrderedMessages
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pop.revive import dead_letter
from cometmq.broker.turn.answers import OneAnswer
from cometmq.broker.turn.inner_message import InnerMessage
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.lite_names import lmq_name
from cometmq.message.names import PERM_READ
from cometmq.message.pop_info import ORDER_REVIVE_QUEUE
from cometmq.message.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, PropertiesText
from cometmq.periodic import Alarm
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.lite.headers import PopLiteMessageRequestHeader, PopLiteMessageResponseHeader
from cometmq.remoting.permissions import Action, needs_group, needs_topic
from cometmq.remoting.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_LATE_MS: Final = 500
"""A pop is refused if its wait time ended at least this many milliseconds ago."""
_EARLY_MS: Final = 20
_INNER: Final = frozenset({INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET})


class _Collected:
    __slots__ = ("chunks", "count", "counts", "pop_time", "size", "taken")

    def __init__(self, pop_time: int) -> None:
        self.pop_time = pop_time
        self.chunks: list[bytes] = []
        self.counts: list[int] = []
        self.count = self.size = 0
        self.taken: list[tuple[GroupProgress, int]] = []
        """Lite topics from which messages were taken."""


class PopLiteProcessor:
    """Answers pops of lite topics or holds them until messages arrive."""

    def __init__(
        self,
        broker: BrokerContext,
        log: PopLog,
        progress: LiteProgress,
        subscriptions: LiteSubscriptions,
        checks: LiteChecks,
    ) -> None:
        self._live = broker.live
        self._store = broker.store
        self._clock = broker.clock
        self._stats = broker.stats
        self._limiter = broker.limiter
        self._failed = broker.failed
        self._turn = broker.turn
        self._checks = checks
        self._log = log
        self._progress = progress
        self._subscriptions = subscriptions
        self._lives = LiteLifeTimes(broker)
        self._choice = LiteChoice(broker, self._lives)
        self.held: Final[HeldRequests[HeldLitePop]] = HeldRequests(broker.live, broker.clock)
        self._due: list[tuple[int, int, GroupProgress, int]] = []
        self._serials = count()
        self._alarm = Alarm(self._check_due, clock=broker.clock)
        self._alarm_ms = NEVER
        self._wait_until = 0
        progress.on_due = self._schedule_check
        progress.on_change = self._may_go_on
        subscriptions.on_ready = self._wake

    def start(self) -> None:
        """Schedule the checks of the messages that are handed out."""
        for progress in self._progress:
            for number, flight in progress.flights.items():
                self._schedule_check(progress, number, min(handed.due for handed in flight.messages.values()))

    def stop(self) -> None:
        """Answer the waiting pops, and stop checking."""
        self._alarm.close()
        self.held.stop()

    # --- pops -------------------------------------------------------------------------------------
    @answers(
        RequestCode.POP_LITE_MESSAGE,
        limits=(
            "MAX_POP_MESSAGES",
            "MAX_ATTEMPT_ID_CHARS",
            "MAX_POP_INVISIBLE_MS",
            "MAX_POP_WAIT_MS",
            "MAX_HELD_POPS_OF_CONNECTION",
        ),
        permission=needs_topic(Action.SUB) & needs_group(Action.SUB),
    )
    def pop(
        self, connection: ServerConnection, request: Request[PopLiteMessageRequestHeader], _body: bytes
    ) -> Response | None:
        """Hand out messages of a client's lite topics for a limited time, or wait until messages arrive."""
        header = request.header
        now_ms = self._clock.now_ms()
        if not header.born_time:
            header.born_time = now_ms
        self._check(header, now_ms)
        client = self._subscriptions.clients.get((header.client_id, header.consumer_group))
        if client is not None:
            client.accessed_ms = now_ms
        if self._pop(connection, request):
            return None
        wait_ms = min(header.born_time + header.poll_time - now_ms - _EARLY_MS, header.poll_time, MAX_POP_WAIT_MS)
        if header.poll_time > 0 and wait_ms > 0:
            nothing = partial(self._nothing, header, ResponseCode.POLLING_TIMEOUT)
            if self.held.hold(HeldLitePop(connection, request, self._run_again, nothing), wait_ms):
                if client is not None and client.has_ready:
                    self._wake(client)
                return None
            code = ResponseCode.POLLING_FULL
        else:
            code = ResponseCode.POLLING_TIMEOUT
        if client is not None:
            self._subscriptions.looked(client, is_waiting=False)
        return self._nothing(header, code)

    def _check(self, header: PopLiteMessageRequestHeader, now_ms: int) -> None:
        ip = self._live.current.broker_ip1
        if now_ms - header.born_time - header.poll_time > _LATE_MS:
            raise RefusedError(ResponseCode.POLLING_TIMEOUT, f"the broker[{ip}] pop message is timeout too much")
        if not self._live.current.broker_permission & PERM_READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the broker[{ip}] pop message is forbidden")
        if not 0 < header.max_msg_num <= MAX_POP_MESSAGES:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{ip}] pop message's num is greater than {MAX_POP_MESSAGES} or not positive",
            )
        if len(header.attempt_id or "") > MAX_ATTEMPT_ID_CHARS:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, f"attemptId exceeds {MAX_ATTEMPT_ID_CHARS} characters")
        check_invisible(header.invisible_time)
        self._checks.pair(header.topic, header.consumer_group)

    def _wake(self, client: LiteClient) -> bool:
        self.held.wake(*client.key)
        return self.held.is_waiting(*client.key)

    def _run_again(self, held: HeldLitePop) -> bool:
        header: PopLiteMessageRequestHeader = held.request.header
        self._checks.pair(header.topic, header.consumer_group)
        return self._pop(held.connection, held.request)

    def _pop(self, connection: ServerConnection, request: Request[PopLiteMessageRequestHeader]) -> bool:
        """Take messages and answer when their entries are stored; return False if there are none."""
        header = request.header
        client = self._subscriptions.clients.get((header.client_id, header.consumer_group))
        if client is None or client.index.parent != header.topic:
            return False
        collected = self._collect(client, header)
        self._subscriptions.looked(client, is_waiting=not collected.count)
        if not collected.count:
            return False
        client.consumed_ms = client.accessed_ms = self._clock.now_ms()
        client.attempt = (header.attempt_id or "", [number for _, number in collected.taken])
        self._answer_when_stored(connection, request, collected)
        return True

    def _collect(self, client: LiteClient, header: PopLiteMessageRequestHeader) -> _Collected:
        now_ms = self._clock.now_ms()
        progress = self._progress.of(client.index.parent, client.group)
        collected = _Collected(max(now_ms, progress.floor_ms + 1))
        most_bytes = self._live.current.max_transfer_bytes_on_message_in_memory
        if header.attempt_id and client.attempt[0] == header.attempt_id:
            again = dict.fromkeys(number for number in client.attempt[1] if client.is_reading(number))
            client.ready = again | client.ready
        sources = client.sources()
        for _ in range(LITE_TOPICS_OF_POP):
            if not sources or collected.count >= header.max_msg_num or collected.size >= most_bytes:
                break
            ready = sources.pop(0)
            number = next(iter(ready))
            del ready[number]
            if ready:
                sources.append(ready)
            try:
                self._take(progress, number, header, collected, now_ms)
            except RefusedError:
                ready[number] = None
                if not collected.count:
                    raise
                break
        if client.has_ready and not collected.count:
            self._wake(client)
        return collected

    def _take(
        self,
        progress: GroupProgress,
        number: int,
        header: PopLiteMessageRequestHeader,
        collected: _Collected,
        now_ms: int,
    ) -> None:
        """Take the next messages of a lite topic, unless it is locked."""
        attempt_id = header.attempt_id or ""
        flight = progress.ordered(number)
        if flight.is_locked(now_ms, attempt_id):
            return
        if flight.dead(now_ms, self._max_retries(progress)) or self._lives.ended(progress, number, flight):
            self._schedule_check(progress, number, now_ms)
            return
        self._log.check()
        name = lmq_name(progress.index.parent, progress.index.name(number))
        offsets, chunks, next_offset, lost = self._choice.choose(
            progress, number, flight, header.max_msg_num - collected.count
        )
        for offset in lost:
            self._log.add(Revived(name, progress.group, 0, flight.messages[offset].pop_time, offset, "", 0))
        if lost and not offsets:
            self._log.when_stored(_ignore)
        if not offsets:
            return
        pop_time = max(collected.pop_time, flight.latest + 1)
        collected.pop_time = pop_time
        counts = flight.counts(offsets, attempt_id, {flight.committed})
        not_begun = flight.not_begun(offsets)
        marks = [NOT_BEGUN] * len(not_begun)
        collected.chunks += chunks
        collected.counts += counts
        collected.count += len(offsets)
        collected.size += sum(map(len, chunks))
        collected.taken.append((progress, number))
        self._log.add(
            PoppedInOrder(
                *(name, progress.group, 0, offsets + not_begun, counts + marks, next_offset),
                *(pop_time, header.invisible_time, attempt_id),
            )
        )

    def _answer_when_stored(
        self, connection: ServerConnection, request: Request[PopLiteMessageRequestHeader], collected: _Collected
    ) -> None:
        header = request.header
        response = Response(
            ResponseCode.SUCCESS,
            self._header(header, collected.pop_time, ";".join(map(str, collected.counts))),
            "FOUND",
            collected.chunks,
        )

        def answer(refusal: RefusedError | None) -> None:
            if refusal is not None:
                for progress, number in collected.taken:
                    self._may_go_on(progress, number)
                connection.respond(request, refusal.response(), polling=True)
                return
            self._limiter.got(connection, header.consumer_group, collected.count, collected.size)
            self._stats.get(header.topic, header.consumer_group, collected.count, collected.size)
            connection.respond(request, response, polling=True)

        self._log.when_stored_or_late(answer)

    @staticmethod
    def _header(header: PopLiteMessageRequestHeader, pop_time: int, counts: str) -> PopLiteMessageResponseHeader:
        return PopLiteMessageResponseHeader(
            pop_time=pop_time,
            invisible_time=header.invisible_time,
            revive_qid=ORDER_REVIVE_QUEUE,
            order_count_info=counts,
        )

    def _nothing(self, header: PopLiteMessageRequestHeader, code: int) -> Response:
        self._stats.count_pull_miss()
        return Response(code, self._header(header, self._clock.now_ms(), ""), "NO_MESSAGE_IN_QUEUE")

    # --- acknowledgements -------------------------------------------------------------------------
    @answers(
        RequestCode.ACK_LITE_MESSAGE,
        header=AckMessageRequestHeader,
        permission=needs_topic(Action.SUB) & needs_group(Action.SUB),
    )
    def ack(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response | None:
        """Acknowledge a message of a lite topic, as ACK_MESSAGE with ``liteTopic`` does."""
        header: AckMessageRequestHeader = request.header
        pop_time = read_handle(header.extra_info).pop_time
        name, flight = self._find(header)
        if flight is None or flight.held(header.offset, pop_time) is None:
            return Response()
        self._log.check()
        self._log.add(Acked(name, header.consumer_group, 0, pop_time, [header.offset]))
        self._answer(connection, request, Response())
        return None

    def change(
        self, connection: ServerConnection, request: Request[ChangeInvisibleTimeRequestHeader]
    ) -> Response | None:
        """Make a message of a lite topic visible again ``invisibleTime`` from now; its handle keeps its pop time.

        With ``suspend``, all messages of the pop become visible at this time, and their delivery does not count.
        """
        header = request.header
        handle = read_handle(header.extra_info)
        check_invisible(header.invisible_time)
        now_ms = self._clock.now_ms()
        name, flight = self._find(header)
        invisible_ms = now_ms + header.invisible_time - handle.pop_time
        response = Response(0, ChangeInvisibleTimeResponseHeader(handle.pop_time, invisible_ms, handle.revive_queue))
        if flight is None or flight.held(header.offset, handle.pop_time) is None:
            return response
        self._log.check()
        times = (handle.pop_time, header.offset, handle.pop_time, invisible_ms)
        self._log.add(Changed(name, header.consumer_group, 0, *times, header.suspend))
        self._answer(connection, request, response)
        return None

    def _find(
        self, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader
    ) -> tuple[str, OrderedMessages | None]:
        """Return the name of a lite topic's queue, and the messages that are handed out there to the group."""
        lite = header.lite_topic or ""
        self._checks.pair(header.topic, header.consumer_group)
        progress = self._progress.find(header.topic, header.consumer_group)
        number = NO_NAME if progress is None else progress.index.find(lite)
        flight = None if progress is None or number == NO_NAME else progress.flights.get(number)
        return lmq_name(header.topic, lite), flight

    def _answer(self, connection: ServerConnection, request: Request[Any], response: Response) -> None:
        answer = OneAnswer(connection, request)
        self._log.when_stored(
            lambda refusal: answer.respond(response if refusal is None else refusal.response()),
            answer.respond_flush_timeout,
        )

    # --- messages that are due --------------------------------------------------------------------
    def _may_go_on(self, progress: GroupProgress, number: int) -> None:
        flight = progress.flights.get(number)
        if flight is None or not flight.is_locked(self._clock.now_ms(), ""):
            self._subscriptions.changed(progress.index, number, progress.group)

    def _schedule_check(self, progress: GroupProgress, number: int, due_ms: int) -> None:
        if progress.looks.get(number, NEVER) <= due_ms:
            return
        progress.looks[number] = due_ms
        heapq.heappush(self._due, (due_ms, next(self._serials), progress, number))
        self._set_alarm()

    def _set_alarm(self) -> None:
        when_ms = max(self._due[0][0], self._wait_until) if self._due else NEVER
        if when_ms < self._alarm_ms or not self._alarm.is_set:
            self._alarm_ms = when_ms
            if when_ms < NEVER:
                self._alarm.at(when_ms)

    def _check_due(self) -> None:
        self._alarm_ms = NEVER
        now_ms = self._clock.now_ms()
        room, room_bytes = POP_REVIVE_MESSAGES, STORED_AGAIN_BYTES
        while self._due and self._due[0][0] <= now_ms and room > 0 and room_bytes > 0:
            room -= 1
            due_ms, _, progress, number = heapq.heappop(self._due)
            if progress.looks.get(number) != due_ms:
                continue
            del progress.looks[number]
            if number not in progress.flights and not self._lives.may_end(progress.index.parent):
                continue
            flight = progress.ordered(number)
            if flight.is_locked(now_ms, ""):
                self._schedule_check(progress, number, flight.next_due(now_ms))
                continue
            try:
                count, size = self._bury(progress, number, flight, now_ms)
            except RefusedError:
                self._wait_until = now_ms + int(POP_RETRY_SECONDS * 1000)
                self._schedule_check(progress, number, now_ms)
                break
            room, room_bytes = room - count, room_bytes - size
            self._may_go_on(progress, number)
        self._set_alarm()

    def _bury(self, progress: GroupProgress, number: int, flight: OrderedMessages, now_ms: int) -> tuple[int, int]:
        """End the due messages that have reached their maximum number of deliveries, and the expired ones; store
        their dead letters. Return the number of messages, and the size of the dead letters.

        :raises RefusedError: nothing can be stored now.
        """
        over = self._lives.ended(progress, number, flight)
        dead = {offset: handed.pop_time for offset, handed in flight.dead(now_ms, self._max_retries(progress))}
        if not dead and not over:
            return 0, 0
        self._turn.take_back()
        self._log.check()
        name = lmq_name(progress.index.parent, progress.index.name(number))
        entries: list[AnyEntry] = []
        if flight.messages:
            dead |= {offset: flight.messages[offset].pop_time for offset in over}
        else:
            pop_time = max(now_ms, progress.floor_ms + 1)
            dead = dict.fromkeys(over, pop_time)
            times = [0] * len(over)
            entries.append(PoppedInOrder(name, progress.group, 0, over, times, over[-1] + 1, pop_time, 0, ""))
        passed = [] if self._lives.makes_dead_letters(progress.index.parent) else over
        topic, end = "", 0
        if len(passed) < len(dead):
            topic = self._failed.dead_letter_topic(progress.group).topic_name
            end = self._store.queue(topic, 0).next_offset
        copies: list[InnerMessage] = []
        first = flight.committed
        left = min(flight.messages.keys() - dead.keys(), default=first)
        for offset, pop_time in sorted(dead.items()):
            follower = left if offset == first < left else NO_FOLLOWER
            record = None if offset in passed else self._choice.record(progress, number, offset)
            if record is None:
                entries.append(Revived(name, progress.group, 0, pop_time, offset, "", 0, follower=follower))
                continue
            end_of_copies = end + len(copies)
            entries.append(Revived(name, progress.group, 0, pop_time, offset, topic, end_of_copies, follower=follower))
            copy = self._lives.letter(record, topic) if offset in over else dead_letter(record, topic, record.topic)
            text = PropertiesText(copy.properties).without(_INNER).text
            copies.append(msgspec.structs.replace(copy, properties=text))
        self._log.put_with(entries, copies, partial(self._buried, progress, len(copies), len(passed)))
        return len(dead), sum(len(copy.body) for copy in copies)

    def _max_retries(self, progress: GroupProgress) -> int:
        return self._failed.max_retries(progress.group)

    def _buried(self, progress: GroupProgress, count: int, passed: int, refusal: RefusedError | None) -> None:
        if refusal is None:
            self._lives.passed(progress, passed)
        if refusal is None and self._stats.traffic is not None:
            for _ in range(count):
                self._stats.traffic.died(progress.index.parent, progress.group)


def _ignore(_refusal: RefusedError | None) -> None:
    pass
