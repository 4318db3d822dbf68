"""Which messages a pull wants: by its own header, or by what the group's heartbeats said (``PullMessageProcessor``)."""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from cometmq.broker.clients import BROADCASTING, ConsumerManager
from cometmq.broker.consumer_filters import ConsumerFilterManager
from cometmq.broker.filter_scan import FilterScan
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.send_targets import TOPIC_HELP
from cometmq.broker.subscriptions import MessageFilter, SubscriptionError, is_tag_type, parse_sql, parse_tags
from cometmq.filter import parse_selector
from cometmq.filter.records import properties_of, property_reader
from cometmq.limits import MAX_KIND_CHARS
from cometmq.message.names import RETRY_PREFIX
from cometmq.message.properties import RETRY_TOPIC
from cometmq.message.record import RecordError
from cometmq.message.sysflag import PULL_SUBSCRIPTION
from cometmq.remoting.bodies import SubscriptionGroupConfig
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.headers import PullMessageRequestHeader
from cometmq.store.get_message import Predicate

_PARSE_FAILED: Final = "parse the consumer's subscription failed"


class PullRefusedError(Exception):
    """A pull that is answered with an error."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class PullFilters:
    """Finds the filter of each pull."""

    def __init__(
        self, live: LiveConfig, consumers: ConsumerManager, filters: ConsumerFilterManager, scan: FilterScan
    ) -> None:
        self._live = live
        self._consumers = consumers
        self._filters = filters
        self._scan = scan

    def of(self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig) -> MessageFilter:
        """What a pull wants.

        :raises PullRefusedError: the group does not subscribe to the topic, or its expression cannot be used.
        """
        expression_type: str | None
        if header.sys_flag & PULL_SUBSCRIPTION:
            expression, expression_type = header.subscription or "", header.expression_type
            if not is_tag_type(expression_type) and not expression:
                raise PullRefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED)
        else:
            expression, expression_type = self._of_heartbeat(header, group)
        if is_tag_type(expression_type):
            try:
                return parse_tags(expression)
            except SubscriptionError:
                raise PullRefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED) from None
        assert expression_type is not None
        config = self._live.current
        if not config.enable_property_filter:
            raise PullRefusedError(ResponseCode.SYSTEM_ERROR, not_supported(expression_type))
        if config.filter_support_retry and header.topic.startswith(RETRY_PREFIX):
            group_name = header.topic[len(RETRY_PREFIX) :]
            return MessageFilter(predicate=self._of_retries(group_name), key=(RETRY_PREFIX, group_name))
        try:
            selector = parse_sql(expression, expression_type)
        except SubscriptionError as error:
            raise PullRefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"{_PARSE_FAILED}: {error}") from None
        choose = partial(self._scan.choose, selector)
        return MessageFilter(predicate=selector.matches_record, choose=choose, key=selector.key, chars=len(expression))

    def _of_heartbeat(self, header: PullMessageRequestHeader, config: SubscriptionGroupConfig) -> tuple[str, str]:
        """Expression and type that the group's last heartbeat named for this topic."""
        group = self._consumers.get(header.consumer_group)
        if group is None:
            raise PullRefusedError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{TOPIC_HELP}"
            )
        if not config.consume_broadcast_enable and group.message_model == BROADCASTING:
            raise PullRefusedError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise PullRefusedError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{TOPIC_HELP}"
            )
        if subscription.sub_version < header.sub_version:
            raise PullRefusedError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if is_tag_type(subscription.expression_type):
            return subscription.sub_string, subscription.expression_type
        data = self._filters.get(header.topic, header.consumer_group)
        if data is None:
            raise PullRefusedError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if data.client_version < header.sub_version:
            raise PullRefusedError(
                ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
            )
        return data.expression, data.expression_type

    def _of_retries(self, group: str) -> Predicate:
        """Messages of a retry topic by the filter for their own topic (``ExpressionForRetryMessageFilter``)."""
        read = property_reader(RETRY_TOPIC)

        def wanted(record: memoryview) -> bool:
            try:
                topic = read(properties_of(record))
            except (RecordError, struct.error):
                return False
            data = None if topic is None else self._filters.get(topic, group)
            return data is None or parse_selector(data.expression).matches_record(record)

        return wanted


def not_supported(expression_type: str) -> str:
    """The words for an expression while ``enablePropertyFilter`` is off."""
    return f"The broker does not support consumer to filter message by {expression_type[:MAX_KIND_CHARS]}"
