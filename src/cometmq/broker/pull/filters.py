"""The filter for each pull, taken from its header or from its group's heartbeats (``FilterAPI``, ``SubscriptionData``).

A tag expression is ``*`` (everything), one tag, or several tags joined by ``||``. Queues contain 32-bit hashes of tags,
which may collide. Consumers that pull compare the tags again. Consumers that pop do not, so the broker compares the
tags in the records with a matching hash. Other expressions are SQL92.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    CACHED_LONG_SUBSCRIPTIONS,
    CACHED_SUBSCRIPTIONS,
    LONG_SUBSCRIPTION_CHARS,
    MAX_KIND_CHARS,
    MAX_SUBSCRIPTION_CHARS,
)
from cometmq.broker.pull.consumer_filters import ConsumerFilterManager, is_tag_type
from cometmq.broker.pull.expired_messages import ExpiredMessages
from cometmq.broker.pull.filter_scan import FilterScan
from cometmq.broker.tables.consumer_group import BROADCASTING
from cometmq.broker.turn.targets import TOPIC_HELP, RefusedError
from cometmq.errors import CometMQError
from cometmq.filter import SQL92, FilterError, Selector, parse_selector
from cometmq.filter.records import properties_of, property_reader
from cometmq.message.ids import tags_code
from cometmq.message.names import RETRY_PREFIX
from cometmq.message.properties import RETRY_TOPIC, TAGS
from cometmq.message.record import RecordError
from cometmq.message.sysflag import PULL_SUBSCRIPTION
from cometmq.message.tags import split_tags
from cometmq.remoting.bodies import SubscriptionGroupConfig
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.headers import PullMessageRequestHeader
from cometmq.store.queue.get_message import Chooser, Predicate

ALL: Final = "*"
_PARSE_FAILED: Final = "parse the consumer's subscription failed"

PredicateKey = str | bytes | tuple[str, str]


class SubscriptionError(CometMQError):
    """Raised when a subscription's expression is invalid."""


class MessageFilter(msgspec.Struct, frozen=True):
    """The filter for a pull, which selects messages by tags code and by record.

    ``None`` accepts all messages. If there are codes, the predicate compares the tags themselves. ``choose``, if set,
    selects the same messages as ``predicate``.
    """

    codes: frozenset[int] | None = None
    predicate: Predicate | None = None
    choose: Chooser | None = None
    key: PredicateKey | None = None
    """Key of the predicate; predicates with the same meaning have equal keys."""
    chars: int = 0
    """Length of the predicate's expression, in characters."""

    @property
    def wants_all(self) -> bool:
        """Return whether the filter accepts every message."""
        return self.codes is None and self.predicate is None


EVERYTHING: Final = MessageFilter()


def matches_filter(wanted: MessageFilter, record: memoryview) -> bool:
    """Return whether a filter accepts a record, whose tags are read from its properties."""
    try:
        if wanted.codes is not None and tags_code(_read_tag(properties_of(record))) not in wanted.codes:
            return False
    except (RecordError, struct.error):
        return False
    return wanted.predicate is None or wanted.predicate(record)


def parse_tags(expression: str) -> MessageFilter:
    """Return the filter for a tag expression (``FilterAPI.buildSubscriptionData``).

    :raises SubscriptionError: the expression contains no tag or is too long.
    """
    if len(expression) <= LONG_SUBSCRIPTION_CHARS:
        return _tags(expression)
    _check_length(expression)
    return _long_tags(expression)


def parse_exact_tags(expression: str) -> MessageFilter:
    """Return a filter for a tag expression that compares the tags themselves, not only their hashes.

    :raises SubscriptionError: the expression contains no tag or is too long.
    """
    if len(expression) <= LONG_SUBSCRIPTION_CHARS:
        return _exact_tags(expression)
    _check_length(expression)
    return _long_exact_tags(expression)


def parse_sql(expression: str, expression_type: str) -> Selector:
    """Return the selector for an SQL92 expression.

    :raises SubscriptionError: the expression is empty, too long, malformed or of an unknown type.
    """
    _check_length(expression)
    if expression_type != SQL92:
        raise SubscriptionError(
            f"unknown expression type {expression_type[:MAX_KIND_CHARS]!r}", next_step="use TAG or SQL92"
        )
    if not expression:
        raise SubscriptionError("a subscription of type SQL92 needs an expression")
    try:
        return parse_selector(expression)
    except FilterError as error:
        raise SubscriptionError(error.message, next_step=error.next_step) from None


def _check_length(expression: str) -> None:
    if len(expression) > MAX_SUBSCRIPTION_CHARS:
        raise SubscriptionError(
            f"the subscription has {len(expression)} characters; the maximum is {MAX_SUBSCRIPTION_CHARS}"
        )


def _parse_tags(expression: str) -> MessageFilter:
    tags = _tags_of(expression)
    return EVERYTHING if tags is None else MessageFilter(frozenset(map(tags_code, tags)))


def _parse_exact_tags(expression: str) -> MessageFilter:
    tags = _tags_of(expression)
    if tags is None:
        return EVERYTHING
    return MessageFilter(frozenset(map(tags_code, tags)), partial(_is_tagged, tags), key=(TAGS, expression))


def _tags_of(expression: str) -> frozenset[str] | None:
    """Return the tags in an expression, or ``None`` if it selects all messages."""
    if not expression or expression == ALL:
        return None
    tags = frozenset(split_tags(expression))
    if not tags:
        raise SubscriptionError(f"the subscription {expression!r} contains no tag")
    return tags


def _is_tagged(tags: frozenset[str], record: memoryview) -> bool:
    try:
        return _read_tag(properties_of(record)) in tags
    except (RecordError, struct.error):
        return False


_read_tag: Final = property_reader(TAGS)
_tags: Final = lru_cache(CACHED_SUBSCRIPTIONS)(_parse_tags)
_long_tags: Final = lru_cache(CACHED_LONG_SUBSCRIPTIONS)(_parse_tags)
_exact_tags: Final = lru_cache(CACHED_SUBSCRIPTIONS)(_parse_exact_tags)
_long_exact_tags: Final = lru_cache(CACHED_LONG_SUBSCRIPTIONS)(_parse_exact_tags)


def _from_tags(expression: str, parse: Callable[[str], MessageFilter]) -> MessageFilter:
    try:
        return parse(expression)
    except SubscriptionError:
        raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED) from None


class PullFilters:
    """Finds the filter for each pull."""

    def __init__(self, broker: BrokerContext, filters: ConsumerFilterManager) -> None:
        self._live = broker.live
        self._consumers = broker.clients.consumers
        self._filters = filters
        self._scan = FilterScan(broker.store)
        self.expired: Final = ExpiredMessages(broker)
        """Leaves out messages whose life times have ended."""

    def of(self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig) -> MessageFilter:
        """Return the filter for a pull.

        :raises RefusedError: the group does not subscribe to the topic, or the expression cannot be used.
        """
        expression_type: str | None
        if header.sys_flag & PULL_SUBSCRIPTION:
            expression, expression_type = header.subscription or "", header.expression_type
            if not is_tag_type(expression_type) and not expression:
                raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED)
        else:
            expression, expression_type = self._from_heartbeat(header, group)
        if is_tag_type(expression_type):
            return _from_tags(expression, parse_tags)
        assert expression_type is not None
        config = self._live.current
        if not config.enable_property_filter:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, not_supported_remark(expression_type))
        if config.filter_support_retry and header.topic.startswith(RETRY_PREFIX):
            group_name = header.topic[len(RETRY_PREFIX) :]
            return MessageFilter(predicate=self._for_retries(group_name), key=(RETRY_PREFIX, group_name))
        return self._from_sql(expression, expression_type)

    def of_pop(self, expression: str | None, expression_type: str | None) -> MessageFilter:
        """Return the filter for a pop with a tag or SQL92 expression. An empty expression accepts all messages.

        :raises RefusedError: the expression cannot be used.
        """
        if not expression:
            return EVERYTHING
        if is_tag_type(expression_type):
            return _from_tags(expression, parse_exact_tags)
        assert expression_type is not None
        return self._from_sql(expression, expression_type)

    def _from_sql(self, expression: str, expression_type: str) -> MessageFilter:
        try:
            selector = parse_sql(expression, expression_type)
        except SubscriptionError as error:
            raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"{_PARSE_FAILED}: {error}") from None
        choose = partial(self._scan.choose, selector)
        return MessageFilter(predicate=selector.matches_record, choose=choose, key=selector.key, chars=len(expression))

    def _from_heartbeat(self, header: PullMessageRequestHeader, config: SubscriptionGroupConfig) -> tuple[str, str]:
        """Return the expression and its type for this topic from the group's last heartbeat."""
        group = self._consumers.get(header.consumer_group)
        if group is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{TOPIC_HELP}")
        if not config.consume_broadcast_enable and group.message_model == BROADCASTING:
            raise RefusedError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{TOPIC_HELP}"
            )
        if subscription.sub_version < header.sub_version:
            raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if is_tag_type(subscription.expression_type):
            return subscription.sub_string, subscription.expression_type
        data = self._filters.get(header.topic, header.consumer_group)
        if data is None:
            raise RefusedError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if data.client_version < header.sub_version:
            raise RefusedError(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
        return data.expression, data.expression_type

    def _for_retries(self, group: str) -> Predicate:
        """Return a filter that treats messages in a retry topic like messages in their original topic."""
        read = property_reader(RETRY_TOPIC)

        def wanted(record: memoryview) -> bool:
            try:
                topic = read(properties_of(record))
            except (RecordError, struct.error):
                return False
            data = None if topic is None else self._filters.get(topic, group)
            return data is None or parse_selector(data.expression).matches_record(record)

        return wanted


def not_supported_remark(expression_type: str) -> str:
    """Return the error text for SQL92 expressions while ``enablePropertyFilter`` is disabled."""
    return f"The broker does not support consumer to filter message by {expression_type[:MAX_KIND_CHARS]}"
