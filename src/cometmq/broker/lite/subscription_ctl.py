"""Subscriptions to lite topics: LITE_SUBSCRIPTION_CTL (200071) (``LiteSubscriptionCtlProcessor``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    MAX_LITE_SUBSCRIPTION_BYTES,
    MAX_LITE_SUBSCRIPTION_VALUES,
    MAX_LITE_SUBSCRIPTIONS_OF_REQUEST,
)
from cometmq.broker.lite.checks import LiteChecks
from cometmq.broker.lite.crowd import LiteClient
from cometmq.broker.lite.index import LiteIndex, kept, numbers_of
from cometmq.broker.lite.indexes import LiteIndexes
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.broker.lite.progress import GroupProgress, LiteProgress
from cometmq.broker.lite.subscriptions import LiteSubscriptions
from cometmq.broker.pop.entries import OffsetSet
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.slices import Steps, batches, run_in_slices
from cometmq.broker.tables.group_attributes import LiteGroup
from cometmq.broker.turn.targets import RefusedError
from cometmq.limits import MAX_CLIENT_ID_CHARS
from cometmq.message.lite_names import check_lite_topic, lmq_name
from cometmq.remoting.bodies import BodyError, decode_request
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.lite.bodies import (
    LiteSubscriptionAction,
    LiteSubscriptionCtlRequestBody,
    LiteSubscriptionDTO,
    OffsetOption,
    OffsetOptionType,
)
from cometmq.remoting.lite.headers import LiteSubscriptionCtlRequestHeader
from cometmq.remoting.permissions import Action, Need, needs_of_body, on_group, on_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_LITES_AT_ONCE: Final = 1_000
_NAMES_AT_ONCE: Final = 10_000
"""Number of names that are checked in one slice (2 ms)."""
_MAX_OBJECTS: Final = 1 + 2 * MAX_LITE_SUBSCRIPTIONS_OF_REQUEST
"""Maximum number of objects in a body: each subscription may have an offset option."""
_LARGE_BODY_BYTES: Final = 100_000
"""Size of a body whose decoding and whose first slice are not done in one round of the event loop."""
_VERSIONS: Final = 2**63
_POLICY_MIN: Final = 1
_POLICY_MAX: Final = 2
_ADDS: Final = (LiteSubscriptionAction.PARTIAL_ADD, LiteSubscriptionAction.COMPLETE_ADD)


def _changes(body: bytes) -> list[LiteSubscriptionDTO]:
    if body.count(b",") > MAX_LITE_SUBSCRIPTION_VALUES:
        raise BodyError(
            f"LiteSubscriptionCtlRequestBody: too many values; the maximum is {MAX_LITE_SUBSCRIPTION_VALUES} commas"
        )
    kind = LiteSubscriptionCtlRequestBody
    return decode_request(kind, body, MAX_LITE_SUBSCRIPTION_BYTES, _MAX_OBJECTS).subscription_set or []


def _needs(body: bytes) -> Iterator[Need]:
    if not body:
        return
    for topic, group in sorted({(change.topic, change.group) for change in _changes(body)}):
        yield on_topic(topic, Action.SUB)
        yield on_group(group, Action.SUB)


class LiteSubscriptionProcessor:
    """Changes the subscriptions of clients."""

    def __init__(
        self,
        broker: BrokerContext,
        log: PopLog,
        indexes: LiteIndexes,
        progress: LiteProgress,
        subscriptions: LiteSubscriptions,
        checks: LiteChecks,
    ) -> None:
        self._live = broker.live
        self._log = log
        self._indexes = indexes
        self._progress = progress
        self._subscriptions = subscriptions
        self._checks = checks
        subscriptions.on_lost = self._reset

    @answers(
        RequestCode.LITE_SUBSCRIPTION_CTL,
        header=LiteSubscriptionCtlRequestHeader,
        limits=("MAX_LITE_SUBSCRIPTION_BYTES", "MAX_LITE_SUBSCRIPTION_VALUES", "MAX_LITE_SUBSCRIPTIONS_OF_REQUEST"),
        permission=needs_of_body(_needs, "each Topic and Group Sub"),
    )
    def change(
        self, connection: ServerConnection, request: Request[LiteSubscriptionCtlRequestHeader], body: bytes
    ) -> Response | None:
        """Change the lite topics that clients read; answer once new positions are stored."""
        if not body:
            return Response(ResponseCode.ILLEGAL_OPERATION, remark="Request body is null.")
        try:
            changes = _changes(body)
        except BodyError as error:
            return Response(ResponseCode.INVALID_PARAMETER, remark=error.message)
        if not changes:
            return Response(ResponseCode.ILLEGAL_OPERATION, remark="LiteSubscriptionCtlRequestBody is empty.")
        if len(changes) > MAX_LITE_SUBSCRIPTIONS_OF_REQUEST:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"{len(changes)} subscriptions in one request; the maximum is {MAX_LITE_SUBSCRIPTIONS_OF_REQUEST}",
            )
        steps = self._change_all(connection, changes)
        return run_in_slices(connection, request, steps, at_once=len(body) < _LARGE_BODY_BYTES)

    def _change_all(self, connection: ServerConnection, changes: list[LiteSubscriptionDTO]) -> Steps:
        try:
            for change in changes:
                if change.client_id.strip() and change.group.strip() and change.topic.strip():
                    yield from self._change(connection, change)
        except RefusedError as refused:
            return refused.response()
        return Response()

    def _change(self, connection: ServerConnection, change: LiteSubscriptionDTO) -> Iterator[None]:
        if change.action in _ADDS and not self._check(change).is_wildcard:
            yield from _check_names(change.lite_topic_set or [])
        known = self._subscriptions.clients.get((change.client_id, change.group))
        if change.action not in _ADDS:
            if known is None or known.index.parent != change.topic:
                return
            if change.action is LiteSubscriptionAction.COMPLETE_REMOVE:
                self._subscriptions.remove(known)
            else:
                yield from self._take(known, change.lite_topic_set or ())
            return
        settings = self._check(change)  # again: the topic may have been deleted while names were checked
        if change.action is LiteSubscriptionAction.COMPLETE_ADD:
            if known is not None and change.version < known.version:
                known.connection = connection
                return
            yield from self._replace(connection, change, settings)
        else:
            yield from self._add(connection, change, settings)

    def _check(self, change: LiteSubscriptionDTO) -> LiteGroup:
        """Check a change that adds lite topics.

        :raises RefusedError: it is not allowed.
        """
        if len(change.client_id) > MAX_CLIENT_ID_CHARS or not -_VERSIONS <= change.version < _VERSIONS:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"the clientId has more than {MAX_CLIENT_ID_CHARS} characters, or the version is no number of 64 bits",
            )
        self._check_clients(change)
        try:
            settings = self._checks.pair(change.topic, change.group)
        except RefusedError as refused:
            if refused.code == ResponseCode.NO_PERMISSION:
                raise RefusedError(
                    ResponseCode.ILLEGAL_OPERATION, "Consumer group is not allowed to consume."
                ) from None
            raise
        if settings.is_wildcard:
            if change.action is LiteSubscriptionAction.PARTIAL_ADD:
                raise RefusedError(
                    ResponseCode.ILLEGAL_OPERATION, "subscribe lite operation is not supported for this group"
                )
            return settings
        names = change.lite_topic_set or ()
        known = self._subscriptions.clients.get((change.client_id, change.group))
        of_client = 0 if known is None else len(known.numbers)
        total = len(names) + (of_client if change.action is LiteSubscriptionAction.PARTIAL_ADD else 0)
        most = settings.client_quota
        if most >= 0 and total > most and total > of_client:
            raise RefusedError(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"lite subscription quota exceeded {most}: the client would read {total} lite topics",
            )
        most = self._live.current.max_lite_subscription_count
        if self._subscriptions.count - of_client + total > most and total > of_client:
            raise RefusedError(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded {most}"
            )
        return settings

    def _check_clients(self, change: LiteSubscriptionDTO) -> None:
        clients, most = self._subscriptions.clients, self._live.current.max_lite_subscription_count
        if len(clients) >= most and (change.client_id, change.group) not in clients:
            raise RefusedError(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded {most}"
            )

    def _numbers(self, index: LiteIndex, names: list[str]) -> Iterator[list[int]]:
        """Yield the numbers of lite topics, which are added if they are missing, in slices.

        :raises RefusedError: there are too many lite topics.
        """
        for some in batches(names, _LITES_AT_ONCE):
            yield [self._indexes.add(index, name) for name in some]

    def _client(self, connection: ServerConnection, change: LiteSubscriptionDTO) -> LiteClient:
        index = self._indexes.of(change.topic)
        client = self._subscriptions.client(change.client_id, change.group, index, connection)
        client.version = max(client.version, change.version)
        return client

    def _replace(
        self, connection: ServerConnection, change: LiteSubscriptionDTO, settings: LiteGroup
    ) -> Iterator[None]:
        if settings.is_wildcard:
            client = self._client(connection, change)
            for number in list(client.numbers):
                self._subscriptions.take(client, number)
            if self._subscriptions.set_wildcard(client, True):
                yield from self._all_ready(client)
            return
        index = self._indexes.of(change.topic)
        with kept(index):
            numbers: set[int] = set()
            for some in self._numbers(index, change.lite_topic_set or []):
                numbers.update(some)
                if len(some) == _LITES_AT_ONCE:
                    yield
            self._demand_current(index)
            client = self._client(connection, change)
            self._subscriptions.set_wildcard(client, False)
            yield from self._subscriptions.replace(client, numbers, settings)

    def _all_ready(self, client: LiteClient) -> Iterator[None]:
        for at, number in enumerate(numbers_of(client.index)):
            self._subscriptions.make_ready(client, number)
            if at % _LITES_AT_ONCE == _LITES_AT_ONCE - 1:
                yield

    def _add(self, connection: ServerConnection, change: LiteSubscriptionDTO, settings: LiteGroup) -> Iterator[None]:
        client: LiteClient | None = None
        index = self._indexes.of(change.topic)
        for some in self._numbers(index, change.lite_topic_set or []):
            self._demand_current(index)
            client = client or self._client(connection, change)
            if not self._subscriptions.has(client):
                return
            for number in some:
                if change.offset_option is not None:
                    self._set_offset(client, number, change.offset_option)
                self._subscriptions.add(client, number, settings)
                self._subscriptions.make_ready(client, number)
            yield

    def _demand_current(self, index: LiteIndex) -> None:
        """Check that a parent topic has not been deleted since a request began.

        :raises RefusedError: it was deleted.
        """
        if self._indexes.by_parent.get(index.parent) is not index:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"the topic [{index.parent}] was deleted")

    def _take(self, client: LiteClient, names: list[str] | tuple[str, ...]) -> Iterator[None]:
        resets = self._checks.settings(client.group).resets_on_unsubscribe
        for some in batches(names, _LITES_AT_ONCE):
            for name in some:
                number = client.index.find(name)
                if number != NO_NAME and number in client.numbers:
                    self._subscriptions.take(client, number)
                    if resets:
                        self._reset(client.index, number, client.group)
            yield

    # --- offsets ----------------------------------------------------------------------------------
    def _reset(self, index: LiteIndex, number: int, group: str) -> None:
        """Let a group read a lite topic from its first message on."""
        self._set(self._progress.of(index.parent, group), number, index.extent(number)[0])

    def _set_offset(self, client: LiteClient, number: int, option: OffsetOption) -> None:
        """Let a group read a lite topic from where a client wants to."""
        progress = self._progress.of(client.index.parent, client.group)
        begin, end = client.index.extent(number)
        value = option.value
        if option.type is OffsetOptionType.POLICY:
            wanted = {_POLICY_MIN: begin, _POLICY_MAX: end}.get(value)
            if wanted is None:
                return
        elif option.type is OffsetOptionType.OFFSET:
            wanted = value
        elif option.type is OffsetOptionType.TAIL_N:
            wanted = (progress.offset(number) if progress.is_known(number) else end) - max(value, 0)
        else:
            wanted = self._offset_by_time(client.index, number, value)
        self._set(progress, number, min(max(wanted, begin), end))

    def _set(self, progress: GroupProgress, number: int, offset: int) -> None:
        if progress.offset(number) == offset and number not in progress.flights and progress.is_known(number):
            return
        self._log.check()
        name = lmq_name(progress.index.parent, progress.index.name(number))
        self._log.add(OffsetSet(name, progress.group, 0, offset))
        self._log.when_stored(_ignore)

    def _offset_by_time(self, index: LiteIndex, number: int, timestamp: int) -> int:
        """Return the offset of the first message of a lite topic that was stored at a time or later."""
        return index.offset_at(number, self._indexes.first_entry_since(index, timestamp))


def _check_names(names: list[str]) -> Iterator[None]:
    """Check the names of lite topics in slices, all before the first one is added.

    :raises RefusedError: a name is not allowed.
    """
    for at, name in enumerate(names):
        wrong = check_lite_topic(name)
        if wrong is not None:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, wrong)
        if at % _NAMES_AT_ONCE == _NAMES_AT_ONCE - 1:
            yield


def _ignore(_refusal: RefusedError | None) -> None:
    pass
