"""Checks requests against quotas.

Theory of operation. A connection that sends, pulls or sends heartbeats has the meters of its address and its account,
and those of the groups that it names (:mod:`~cometmq.auth.quota.meters`). They are looked up at the first request, and
again when a quota or the account has changed; from the first lookup on, the connection counts toward the limits of
connections. Each request is checked against the meters, and uses tokens only if no meter refuses. The compiled core's
sends are counted together for each batch of the connection's bytes, with :meth:`Limiter.room` before it and
:meth:`Limiter.took` after it. Pulled messages are counted by handlers, since a pull may wait for messages.

A request that exceeds a quota is delayed if it can run within :data:`MAX_DELAY_SECONDS`. A delayed send uses its tokens
immediately, so that later sends wait longer and the order is kept. Any other request gets SYSTEM_BUSY after that time,
so that clients that retry immediately cost little.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from cometmq.auth.limits import MAX_SHOWN_SUBJECTS
from cometmq.auth.quota.delayed import Delayed
from cometmq.auth.quota.meter import Meter
from cometmq.auth.quota.meters import Meters
from cometmq.auth.quota.model import Limits, QuotaInfo, Subject, SubjectKind
from cometmq.auth.quota.over_quota import OverQuotaError
from cometmq.auth.quota.owners import TopicOwners
from cometmq.auth.quota.table import QuotaTable
from cometmq.clock import Clock
from cometmq.message.names import RETRY_PREFIX
from cometmq.remoting.bodies import BodyError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.frame import Frame
from cometmq.remoting.permissions import CALLER, Kind
from cometmq.remoting.processors import Processor, Request, Response
from cometmq.remoting.server_connection import ServerConnection

MAX_DELAY_SECONDS: Final = 1.0
"""Maximum delay of a request. Clients wait 3 s for a response, or for all attempts together."""

_IN: Final = ("messagesIn", "bytesIn")
_OUT: Final = ("messagesOut", "bytesOut")
_SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
_STORES: Final = _SENDS | {RequestCode.CONSUMER_SEND_MSG_BACK}
"""The codes of requests that store a message."""
_PULLS: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.POP_LITE_MESSAGE,
    }
)
_QUERIES: Final = frozenset({RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID})
_FRAME_WORDS_BYTES: Final = 8
_MOST_MESSAGES: Final = 2**31
_MOST_BYTES: Final = 2**31

Room = tuple[str | None, int, int]
"""Limits for the compiled core: the only producer group that may send, and maximum numbers of messages and bytes."""

NO_BOUNDS: Final[Room] = (None, _MOST_MESSAGES, _MOST_BYTES)
"""No limits, so that the compiled core may handle everything."""

Handle = Callable[[ServerConnection, Processor, Request[Any], bytes], None]

OnDenial = Callable[[ServerConnection, Request[Any], str], None]


class Limiter:
    """A :class:`~cometmq.remoting.server.Limiter` that enforces a broker's quotas.

    :param exists: returns whether a topic exists.
    :param on_denial: called with each denied request.
    """

    def __init__(
        self,
        table: QuotaTable,
        owners: TopicOwners,
        exists: Callable[[str], bool],
        on_denial: OnDenial | None = None,
        *,
        clock: Clock,
    ) -> None:
        self.table: Final = table
        self.is_active = bool(table.quotas)
        """True if there are quotas."""
        table.on_change.append(self._quotas_changed)
        self._owners = owners
        self._exists = exists
        self._clock = clock
        self._delayed = Delayed(clock=clock)
        self._meters = Meters(table, clock=clock)
        self._on_denial = on_denial
        self.denied: Final[Counter[tuple[SubjectKind, str]]] = Counter()
        """The number of denied requests, by kind of subject and limit."""
        self.delayed: Final[Counter[tuple[SubjectKind, str]]] = Counter()
        """The number of delayed requests, by kind of subject and limit."""

    def _quotas_changed(self) -> None:
        self.is_active = bool(self.table.quotas)

    def stop(self) -> None:
        """Handle all delayed requests immediately."""
        self._delayed.stop()

    # --- requests -----------------------------------------------------------------------------
    def holds(
        self,
        connection: ServerConnection,
        processor: Processor,
        request: Request[Any],
        frame: Frame,
        handle: Handle,
    ) -> bool:
        """Return whether a request exceeds a quota; if so, answer the request or handle it later."""
        code = processor.code
        over: OverQuotaError | None = None
        try:
            if code in _SENDS:
                over = self._send(connection, request, frame)
            elif code == RequestCode.CONSUMER_SEND_MSG_BACK:
                over = self._store(connection, request.header.group, frame)
            elif code == RequestCode.END_TRANSACTION:
                self._end(connection, request.header.producer_group, frame)
            elif code in _PULLS or code in _QUERIES:
                over = self._pull(connection, getattr(request.header, "consumer_group", None))
            elif code == RequestCode.HEART_BEAT:
                self._heartbeat(connection, processor, request, frame)
            elif code == RequestCode.UPDATE_AND_CREATE_TOPIC:
                self._make_topic(connection, request.header.topic)
            elif code == RequestCode.UPDATE_AND_CREATE_TOPIC_LIST:
                self._make_topics(connection, processor, request, frame)
        except OverQuotaError as denied:
            self._deny(connection, request, denied)
            return True
        if over is None:
            return False
        over.meter.hold()
        self.delayed[over.meter.subject.kind, over.limit] += 1
        caller = CALLER.get()

        def proceed() -> None:
            if connection.closed:
                return
            again = None if code in _STORES else self._pull_again(connection, request)
            if again is not None:
                self._deny(connection, request, again, is_late=True)
                return
            CALLER.set(caller)
            handle(connection, processor, request, frame.body)

        self._delayed.after(over.wait_s, _size(frame), proceed)
        return True

    def _deny(
        self, connection: ServerConnection, request: Request[Any], denied: OverQuotaError, *, is_late: bool = False
    ) -> None:
        """Deny a request, after a delay unless the request has already waited."""
        denied.meter.deny()
        self.denied[denied.meter.subject.kind, denied.limit] += 1
        if self._on_denial is not None:
            self._on_denial(connection, request, denied.remark)
        response = Response(ResponseCode.SYSTEM_BUSY, remark=denied.remark)

        def answer() -> None:
            connection.count(request, response.code)
            if not request.oneway:
                connection.deliver(request, response)

        if is_late or request.oneway or denied.limit == "topics" or not self._delayed.has_room(0):
            answer()
        else:
            self._delayed.after(min(denied.wait_s, MAX_DELAY_SECONDS), 0, answer)

    def _send(self, connection: ServerConnection, request: Request[Any], frame: Frame) -> OverQuotaError | None:
        now = self._clock.monotonic()
        header = request.header
        uses = self._meters.of(connection, now)
        meters = self._meters.with_group(uses, header.producer_group, now)
        size = _size(frame)
        over = self._check(meters, _IN, now, size)
        if not self._exists(header.topic) and not header.topic.startswith(RETRY_PREFIX):
            self._count_topic(meters, header.topic)
        for meter in meters:
            meter.take(_IN, 1, size, now)
        uses.producer_group = header.producer_group
        return over

    def _store(self, connection: ServerConnection, group: str, frame: Frame) -> OverQuotaError | None:
        """Count a message that a group sends back as a message that the group sends."""
        now = self._clock.monotonic()
        meters = self._meters.with_group(self._meters.of(connection, now), group, now)
        size = _size(frame)
        over = self._check(meters, _IN, now, size)
        for meter in meters:
            meter.take(_IN, 1, size, now)
        return over

    def _end(self, connection: ServerConnection, group: str, frame: Frame) -> None:
        """Count the bytes of an END_TRANSACTION request, which is never denied.

        Otherwise the transaction would remain open and the broker would check it repeatedly. Its message was counted on
        arrival.
        """
        uses = self._meters.of_connection.get(connection)
        if uses is not None:
            now = self._clock.monotonic()
            for meter in self._meters.counting(uses, group):
                meter.take(_IN, 0, _size(frame), now)

    def _pull(self, connection: ServerConnection, group: str | None) -> OverQuotaError | None:
        now = self._clock.monotonic()
        return self._check(self._meters.with_group(self._meters.of(connection, now), group, now), _OUT, now, 0)

    def _pull_again(self, connection: ServerConnection, request: Request[Any]) -> OverQuotaError | None:
        """Return the quota that a pull still exceeds after waiting, or None."""
        try:
            return self._pull(connection, getattr(request.header, "consumer_group", None))
        except OverQuotaError as over:
            return over

    def _heartbeat(
        self, connection: ServerConnection, processor: Processor, request: Request[Any], frame: Frame
    ) -> None:
        """Count the connection that sends a heartbeat."""
        now = self._clock.monotonic()
        uses = self._meters.of(connection, now)
        if SubjectKind.GROUP not in self.table.kinds or processor.permission is None:
            return
        try:
            groups = [
                need.name for need in processor.permission.needs(request.header, frame.body) if need.kind is Kind.GROUP
            ]
        except BodyError:
            return  # the handler of the request reports the error
        for group in groups:
            self._meters.group(uses, group, now)

    def _make_topic(self, connection: ServerConnection, topic: str) -> None:
        account = connection.account
        if not self._exists(topic) and not (account is not None and account.is_super):
            now = self._clock.monotonic()
            self._count_topic(tuple(self._meters.named_by(connection, account, now)), topic)

    def _make_topics(
        self, connection: ServerConnection, processor: Processor, request: Request[Any], frame: Frame
    ) -> None:
        if processor.permission is None:
            return
        try:
            names = {need.name for need in processor.permission.needs(request.header, frame.body)}
        except BodyError:
            return  # the handler of the request reports the error
        for name in names:
            self._make_topic(connection, name)

    def more(self, connection: ServerConnection, group: str, messages: int) -> None:
        """Count the remaining messages of an accepted batch, whose first message is already counted."""
        uses = self._meters.of_connection.get(connection)
        if uses is not None and messages:
            now = self._clock.monotonic()
            for meter in self._meters.counting(uses, group):
                meter.take(_IN, messages, 0, now)

    def got(self, connection: ServerConnection, group: str | None, messages: int, size: int) -> None:
        """Count the messages that a connection receives."""
        uses = self._meters.of_connection.get(connection)
        if uses is not None:
            now = self._clock.monotonic()
            for meter in self._meters.counting(uses, group):
                meter.take(_OUT, messages, size, now)

    # --- plain sends --------------------------------------------------------------------------
    def room(self, connection: ServerConnection) -> Room | None:
        """Return the limits for the compiled core, or ``None`` if Python must handle the connection's next request."""
        uses = self._meters.of_connection.get(connection)
        if uses is None or uses.version != self.table.version or uses.account is not connection.account:
            return None
        now = self._clock.monotonic()
        group: str | None = None
        meters = uses.meters
        if SubjectKind.GROUP in self.table.kinds:
            group = uses.producer_group
            if group is None or group not in uses.groups:
                return None
            meters = self._meters.counting(uses, group)
        messages, size = _MOST_MESSAGES, _MOST_BYTES
        for meter in meters:
            messages, size = meter.room(_IN, (messages, size), now)
        return (group, messages, size) if messages and size else None

    def took(self, connection: ServerConnection, group: str | None, messages: int, size: int) -> None:
        """Count the messages and bytes that the compiled core has handled."""
        uses = self._meters.of_connection[connection]
        now = self._clock.monotonic()
        for meter in self._meters.counting(uses, group):
            meter.take(_IN, messages, size, now)

    # --- meters -------------------------------------------------------------------------------
    def _check(self, meters: tuple[Meter, ...], names: tuple[str, str], now: float, size: int) -> OverQuotaError | None:
        """Return the quota that delays a request longest, or ``None`` if the request need not wait.

        :param size: number of bytes kept in memory during the wait.
        :raises OverQuotaError: the wait would be too long.
        """
        longest: OverQuotaError | None = None
        for meter in meters:
            over = meter.refuses(names, now)
            if over is not None and (longest is None or over[1] > longest.wait_s):
                longest = OverQuotaError(meter, *over)
        if longest is not None and (longest.wait_s > MAX_DELAY_SECONDS or not self._delayed.has_room(size)):
            raise longest
        return longest

    def _count_topic(self, meters: tuple[Meter, ...], topic: str) -> None:
        limited = [meter for meter in meters if meter.limits.topics is not None]
        for meter in limited:
            most = meter.limits.topics or 0
            if self._owners.count(str(meter.subject), most) >= most:
                raise OverQuotaError(meter, "topics", math.inf)
        for meter in limited:
            self._owners.add(str(meter.subject), topic)

    def expire(self) -> None:
        """Forget idle subjects, whose buckets are full again."""
        self._meters.expire()

    # --- lists --------------------------------------------------------------------------------
    def listed(self, *, each: bool) -> list[QuotaInfo]:
        """List the quotas, or all subjects with a meter; subjects with the most denials are listed first.

        The list has at most :data:`~cometmq.auth.limits.MAX_SHOWN_SUBJECTS` subjects.
        """
        now = self._clock.monotonic()
        if each:
            most = heapq.nlargest(MAX_SHOWN_SUBJECTS, self._meters.known.values(), key=lambda meter: meter.denials)
            current = (self._meters.meter(*meter.subject, now) for meter in most)
            return [self._info(meter) for meter in current if meter is not None]
        found: list[QuotaInfo] = []
        for subject, quota in self.table.quotas.items():
            meter = self._meters.meter(*subject, now) if subject in self._meters.known else None
            info = self._info(meter) if meter is not None else QuotaInfo(str(subject), quota.limits, str(subject))
            info.denials, info.delayed = quota.denials, quota.delayed
            if not subject.is_one:
                info.subjects = quota.subjects
            found.append(info)
        return found

    def shown(self, subject: Subject) -> QuotaInfo | None:
        """Return the quota that applies to a subject and its current use, or ``None`` if no quota applies."""
        if not subject.is_one:
            quota = self.table.quotas.get(subject)
            if quota is None:
                return None
            text = str(subject)
            return QuotaInfo(text, quota.limits, text, {}, quota.denials, quota.delayed, quota.subjects)
        meter = self._meters.meter(*subject, self._clock.monotonic())
        return None if meter is None else self._info(meter)

    def _info(self, meter: Meter) -> QuotaInfo:
        now = self._clock.monotonic()
        limits: Limits = meter.limits
        use = {name: round(bucket.use(now), 1) for name, bucket in meter.buckets.items()}
        if limits.connections is not None:
            use["connections"] = meter.connections
        if limits.topics is not None:
            use["topics"] = self._owners.existing(str(meter.subject))
        return QuotaInfo(str(meter.subject), limits, str(meter.quota.subject), use, meter.denials, meter.delayed)


def _size(frame: Frame) -> int:
    return len(frame.header) + len(frame.body) + _FRAME_WORDS_BYTES
