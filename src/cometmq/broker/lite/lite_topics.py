"""Lists the lite topics of a parent topic, and removes them before they expire (codes 30048 and 30049).

Apache's protocol has no such requests. A position is a lite topic's number. Therefore each lite topic that exists
throughout is listed once, and no sorted copy is needed. Each request compares a limited number of names, in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_LISTED_LITE_TOPICS, MAX_SEARCHED_LITE_TOPICS
from cometmq.broker.lite.checks import LiteChecks
from cometmq.broker.lite.expiry import LiteExpiry, Need
from cometmq.broker.lite.index import LiteIndex
from cometmq.broker.lite.indexes import LiteIndexes
from cometmq.broker.lite.lite_admin import stored_at
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.broker.lite.subscriptions import LiteSubscriptions
from cometmq.broker.slices import Steps, run_in_slices
from cometmq.broker.turn.targets import RefusedError
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.lite.bodies import ExpireLiteTopicsResponseBody, GetLiteTopicsResponseBody, LiteTopicInfo
from cometmq.remoting.lite.headers import ExpireLiteTopicsRequestHeader, GetLiteTopicsRequestHeader
from cometmq.remoting.permissions import Action, needs_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_COST_OF_SLICE: Final = 4_000
"""One is the comparison of a name (about 0.5 µs)."""
_COST_OF_ROW: Final = 100


class LiteTopicAdmin:
    """Answers GET_LITE_TOPICS and EXPIRE_LITE_TOPICS."""

    def __init__(
        self,
        broker: BrokerContext,
        indexes: LiteIndexes,
        subscriptions: LiteSubscriptions,
        checks: LiteChecks,
        expiry: LiteExpiry,
    ) -> None:
        self._store = broker.store
        self._indexes = indexes
        self._subscriptions = subscriptions
        self._checks = checks
        self._expiry = expiry

    @answers(
        RequestCode.GET_LITE_TOPICS,
        limits=("MAX_LISTED_LITE_TOPICS", "MAX_SEARCHED_LITE_TOPICS"),
        permission=needs_topic(Action.GET),
    )
    def list(
        self, connection: ServerConnection, request: Request[GetLiteTopicsRequestHeader], _body: bytes
    ) -> Response | None:
        """List the lite topics of a parent topic whose names begin with a prefix, in pages (a CometMQ extension)."""
        header = request.header
        self._checks.parent(header.topic)
        return run_in_slices(connection, request, self._list(header))

    def _list(self, header: GetLiteTopicsRequestHeader) -> Steps:
        index = self._indexes.of(header.topic)
        most = min(max(header.max_num, 1), MAX_LISTED_LITE_TOPICS)
        body = GetLiteTopicsResponseBody()
        scan = _Scan(index, header.prefix or "", header.position)
        cost = 0
        for number in scan:
            cost += 1
            if number != NO_NAME:
                body.lite_topics.append(self._info(index, number))
                cost += _COST_OF_ROW
                if len(body.lite_topics) == most:
                    break
            if cost >= _COST_OF_SLICE:
                cost = 0
                yield
                if not self._has(index):
                    break
        body.next_position = scan.next_position
        return Response(body=encode_body(body))

    def _info(self, index: LiteIndex, number: int) -> LiteTopicInfo:
        begin, end = index.extent(number)
        return LiteTopicInfo(
            lite_topic=index.name(number),
            min_offset=begin,
            max_offset=end,
            last_update_timestamp=stored_at(self._store, index, index.last(number)),
            subscribers=self._subscriptions.count_of(index, number),
        )

    def _has(self, index: LiteIndex) -> bool:
        return self._indexes.by_parent.get(index.parent) is index

    @answers(
        RequestCode.EXPIRE_LITE_TOPICS,
        limits=("MAX_SEARCHED_LITE_TOPICS",),
        permission=needs_topic(Action.DELETE),
    )
    def expire(
        self, connection: ServerConnection, request: Request[ExpireLiteTopicsRequestHeader], _body: bytes
    ) -> Response | None:
        """Remove a lite topic, or those with a prefix, that no client reads, and answer once this is stored (a CometMQ
        extension).
        """
        header = request.header
        self._checks.parent(header.topic)
        if (header.lite_topic is None) == (header.prefix is None):
            raise RefusedError(ResponseCode.INVALID_PARAMETER, "give either liteTopic or prefix")
        removal = _Removal()
        return run_in_slices(connection, request, self._expire(header, removal), before_answer=removal.when_stored)

    def _expire(self, header: ExpireLiteTopicsRequestHeader, removal: _Removal) -> Steps:
        index = self._indexes.of(header.topic)
        body = ExpireLiteTopicsResponseBody()
        try:
            if header.lite_topic is None:
                yield from self._expire_all(index, header, body, removal)
            elif (number := index.find(header.lite_topic)) != NO_NAME:
                self._expire_one(index, number, header.with_unread, body, removal)
        except RefusedError as refused:
            return refused.response()
        return removal.response(body)

    def _expire_all(
        self,
        index: LiteIndex,
        header: ExpireLiteTopicsRequestHeader,
        body: ExpireLiteTopicsResponseBody,
        removal: _Removal,
    ) -> Generator[None, None, None]:
        scan = _Scan(index, header.prefix or "", header.position)
        cost = 0
        for number in scan:
            cost += 1
            if number != NO_NAME:
                begin, end = index.extent(number)
                cost += self._expiry.cost + end - begin
                self._expire_one(index, number, header.with_unread, body, removal)
            if cost >= _COST_OF_SLICE:
                cost = 0
                yield
                if not self._has(index):
                    return
                if not self._expiry.may_remove(index):
                    break
        body.next_position = scan.next_position

    def _expire_one(
        self,
        index: LiteIndex,
        number: int,
        with_unread: bool,
        body: ExpireLiteTopicsResponseBody,
        removal: _Removal,
    ) -> None:
        if not self._expiry.may_remove(index):
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY, "lite topics are being saved or subscribed to, try again in a second"
            )
        need = self._expiry.need(index, number)
        if need is Need.READ:
            body.read += 1
        elif need is Need.UNREAD and not with_unread:
            body.unread += 1
        else:
            self._expiry.remove(index, number, removal.begin())
            body.removed += 1


class _Scan:
    """The numbers of an index from a position on: each one whose name begins with a prefix, and ``NO_NAME`` for each
    other.
    """

    def __init__(self, index: LiteIndex, prefix: str, position: int) -> None:
        self._index = index
        self._prefix = prefix.encode("utf-8", "replace")
        self._at = max(position, 0)
        self._end = min(self._at + MAX_SEARCHED_LITE_TOPICS, index.size)

    def __iter__(self) -> Generator[int, None, None]:
        index, prefix = self._index, self._prefix
        while self._at < self._end:
            number = self._at
            self._at += 1
            name = index.raw_name(number)
            yield number if name and name.startswith(prefix) else NO_NAME

    @property
    def next_position(self) -> int:
        """The position after the last number, or -1 if it was the index's last one."""
        return self._at if self._at < self._index.size else -1


class _Removal:
    """The removals of a request that are not stored yet."""

    def __init__(self) -> None:
        self._waiting = 0
        self._answer: Response | None = None
        self._respond: Callable[[], None] | None = None

    def begin(self) -> Callable[[RefusedError | None], None]:
        """Return the function to call once a removal is stored or refused."""
        self._waiting += 1
        return self._stored

    def response(self, body: ExpireLiteTopicsResponseBody) -> Response:
        """Return the response, which becomes a refusal if a removal cannot be stored."""
        if self._answer is None:
            self._answer = Response(body=encode_body(body))
        return self._answer

    def _stored(self, refusal: RefusedError | None) -> None:
        self._waiting -= 1
        if refusal is not None:
            if self._answer is None:
                self._answer = Response()
            self._answer.code, self._answer.remark, self._answer.body = refusal.code, refusal.remark, b""
        if not self._waiting and self._respond is not None:
            self._respond()

    def when_stored(self, respond: Callable[[], None]) -> None:
        """Call ``respond`` once all removals are stored or refused."""
        if self._waiting:
            self._respond = respond
        else:
            respond()
