"""Generated accounts of ACL 1.0 and requests of them, and the verdicts of a server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from tests.broker.wire import Wire, pull_header, send_header

from cometmq.auth.yaml_file import dump_yaml
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

TOPICS: Final = tuple(f"Verdict{n}" for n in range(4))
GROUPS: Final = tuple(f"verdicts{n}" for n in range(4))
PERMISSIONS: Final = ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB", "ANY", " PUB ", "pub")
WHITE: Final = (None, "", "10.0.0.*", "127.0.0.1", "127.0.0.1-9", "127.0.0.{2,3}", "10.0.0.1,127.0.0.1", "127.0.*.*")
ACCOUNTS: Final = 120


def secret(name: str) -> str:
    return f"secret-of-{name}"


def accounts_file(seed: int) -> bytes:
    """A file of generated accounts, named ``verdict-0`` and so on."""
    dice = random.Random(seed)
    accounts: list[dict[str, Any]] = []
    for number in range(ACCOUNTS):
        name = f"verdict-{number}"
        account: dict[str, Any] = {"accessKey": name, "secretKey": secret(name), "admin": dice.random() < 0.25}
        for key in ("defaultTopicPerm", "defaultGroupPerm"):
            if dice.random() < 0.7:
                account[key] = dice.choice(PERMISSIONS)
        if dice.random() < 0.7:
            names = [*TOPICS, "%RETRY%" + GROUPS[0], "RMQ_SYS_TRACE_TOPIC"]
            account["topicPerms"] = [f"{topic}={dice.choice(PERMISSIONS)}" for topic in names if dice.random() < 0.5]
        if dice.random() < 0.7:
            account["groupPerms"] = [f"{group} = {dice.choice(PERMISSIONS)}" for group in GROUPS if dice.random() < 0.5]
        if dice.random() < 0.2:
            account["whiteRemoteAddress"] = dice.choice(WHITE)
        accounts.append(account)
    return dump_yaml({"accounts": accounts})


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


def probes(seed: int, count: int) -> Iterator[Probe]:
    """Requests of every kind that Apache's broker checks, by known, unknown and wrong keys."""
    dice = random.Random(seed)
    for _ in range(count):
        name = f"verdict-{dice.randrange(ACCOUNTS + 5)}"
        by: Credentials | None = Credentials(name, secret(name))
        chance = dice.random()
        if chance < 0.03:
            by = None
        elif chance < 0.08:
            by = Credentials(name, "another-secret")
        yield Probe(by, *dice.choice(_KINDS)(dice))


def _send(dice: random.Random) -> tuple[int, Header, bytes]:
    topic, group = dice.choice((*TOPICS, "RMQ_SYS_TRACE_TOPIC")), dice.choice(GROUPS)
    if dice.random() < 0.2:
        topic = "%RETRY%" + group
    return RequestCode.SEND_MESSAGE_V2, send_header(topic, producer_group=group, queue_id=0), b"verdict"


def _pull(dice: random.Random) -> tuple[int, Header, bytes]:
    group = dice.choice(GROUPS)
    topic = dice.choice((*TOPICS, "%RETRY%" + group))
    return RequestCode.PULL_MESSAGE, pull_header(topic, consumer_group=group), b""


def _heartbeat(dice: random.Random) -> tuple[int, Header | None, bytes]:
    subscriptions = [SubscriptionData(topic=topic, sub_string="*") for topic in dice.sample(TOPICS, 1)]
    consumers = [ConsumerData(group_name=dice.choice(GROUPS), subscription_data_set=subscriptions)]
    return RequestCode.HEART_BEAT, None, msgspec.json.encode(HeartbeatData("verdict", [], consumers))


def _group(dice: random.Random) -> tuple[int, Header | None, bytes]:
    body = {"groupName": dice.choice(GROUPS), "retryQueueNums": 1, "retryMaxTimes": 16, "consumeEnable": True}
    return RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, msgspec.json.encode(body)


_KINDS: Final = (
    _send,
    _send,
    _pull,
    _pull,
    _heartbeat,
    _group,
    lambda dice: (RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader(dice.choice(TOPICS), "k", 1, 0, 2**62), b""),
    lambda dice: (
        RequestCode.CONSUMER_SEND_MSG_BACK,
        ConsumerSendMsgBackRequestHeader(offset=2**40, group=dice.choice(GROUPS), delay_level=1),
        b"",
    ),
    lambda dice: (
        RequestCode.UNREGISTER_CLIENT,
        UnregisterClientRequestHeader("verdict", None, dice.choice((*GROUPS, None))),
        b"",
    ),
    lambda dice: (
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        GetConsumerListByGroupRequestHeader(dice.choice(GROUPS)),
        b"",
    ),
    lambda dice: (
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateConsumerOffsetRequestHeader(dice.choice(GROUPS), dice.choice(TOPICS), 0, 0),
        b"",
    ),
    lambda dice: (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        CreateTopicRequestHeader(dice.choice(TOPICS), "TBW102", 1, 1, 6, "SINGLE_TAG", order=False),
        b"",
    ),
    lambda dice: (
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        DeleteSubscriptionGroupRequestHeader("nobody" + dice.choice(GROUPS)),
        b"",
    ),
)


def denial(answer: RemotingCommand) -> tuple[int, str] | None:
    """The code and the words of a denial, as clients look for them; ``None`` if the request was handled."""
    remark = answer.remark or ""
    if "AclException" not in remark:
        return None
    return answer.code, remark.split(", ")[0] if "request code" not in remark else ", ".join(remark.split(", ")[:2])
