"""Requests of every kind that Apache's broker checks, of generated names, by known, unknown and wrong keys."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from tests.broker.wire import Wire, pull_header, send_header

from cometmq.remoting.admin_headers import CreateTopicRequestHeader, DeleteSubscriptionGroupRequestHeader
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetConsumerListByGroupRequestHeader,
    Header,
    QueryMessageRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.remoting.signing import Credentials

Kind = Callable[[random.Random], tuple[int, Header | None, bytes]]


@dataclass(frozen=True)
class Probe:
    """One request; its opaque is given when it is sent."""

    by: Credentials | None
    code: int
    header: Header | None
    body: bytes

    def command(self, wire: Wire) -> RemotingCommand:
        command = wire.command(self.code, self.header, self.body)
        if self.by is not None:
            self.by.sign(command)
        return command


def secret(name: str) -> str:
    """The password of a generated account."""
    return f"secret-of-{name}"


def signed(dice: random.Random, name: str, kinds: Sequence[Kind]) -> Probe:
    """A request of an account; a few have no signature, or a wrong one."""
    by: Credentials | None = Credentials(name, secret(name))
    chance = dice.random()
    if chance < 0.03:
        by = None
    elif chance < 0.07:
        by = Credentials(name, "another-secret")
    return Probe(by, *dice.choice(kinds)(dice))


def kinds(topics: Sequence[str], groups: Sequence[str]) -> tuple[Kind, ...]:
    """The kinds of requests that clients and tools of both lists of accounts send."""

    def topic_of(dice: random.Random, group: str) -> str:
        return dice.choice(topics) if dice.random() < 0.85 else "%RETRY%" + group

    def send(dice: random.Random) -> tuple[int, Header, bytes]:
        group = dice.choice(groups)
        header = send_header(topic_of(dice, group), producer_group=group, queue_id=0)
        return RequestCode.SEND_MESSAGE_V2, header, b"verdict"

    def pull(dice: random.Random) -> tuple[int, Header, bytes]:
        group = dice.choice(groups)
        return RequestCode.PULL_MESSAGE, pull_header(topic_of(dice, group), consumer_group=group), b""

    def heartbeat(dice: random.Random) -> tuple[int, Header | None, bytes]:
        subscriptions = [SubscriptionData(topic=dice.choice(topics), sub_string="*")]
        consumers = [ConsumerData(group_name=dice.choice(groups), subscription_data_set=subscriptions)]
        return RequestCode.HEART_BEAT, None, msgspec.json.encode(HeartbeatData("verdict", [], consumers))

    return (
        send,
        send,
        pull,
        pull,
        heartbeat,
        lambda dice: (RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader(dice.choice(topics), "k", 1, 0, 2**62), b""),
        lambda dice: (
            RequestCode.CONSUMER_SEND_MSG_BACK,
            ConsumerSendMsgBackRequestHeader(offset=2**40, group=dice.choice(groups), delay_level=1),
            b"",
        ),
        lambda dice: (
            RequestCode.UNREGISTER_CLIENT,
            UnregisterClientRequestHeader("verdict", None, dice.choice((*groups, None))),
            b"",
        ),
        lambda dice: (
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            GetConsumerListByGroupRequestHeader(dice.choice(groups)),
            b"",
        ),
        lambda dice: (
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetRequestHeader(dice.choice(groups), dice.choice(topics), 0, 0),
            b"",
        ),
        lambda dice: (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            CreateTopicRequestHeader(dice.choice(topics), "TBW102", 1, 1, 6, "SINGLE_TAG", order=False),
            b"",
        ),
        lambda dice: (
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            DeleteSubscriptionGroupRequestHeader("nobody" + dice.choice(groups)),
            b"",
        ),
    )
