"""Requests of POP with accounts on: each needs the topic and the group, and the retry topics of a group are its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.access.test_access import ask
from tests.broker.access.test_users import INIT, ROOT, create_user, put_acl
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pop.popping import pop_command
from tests.broker.wire import Wire

from cometmq.message.pop_info import ReceiptHandle
from cometmq.remoting.admin_headers import CreateTopicRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
)
from cometmq.remoting.signing import Credentials
from cometmq.testing import VirtualClock

TOPIC, GROUP = "Orders", "billing"
RETRY = f"%RETRY%{GROUP}_{TOPIC}"
HANDLE = ReceiptHandle(0, 1_700_000_000_000, 60_000, 0, "0", "broker-a", 0, 0).encode()
FULL, ONLY_TOPIC, ONLY_GROUP, OTHER_GROUP = (
    Credentials(f"{name}-account", f"secret-of-{name}") for name in ("full", "topic", "group", "other")
)
PERMISSIONS = {
    FULL: ([TOPIC], [GROUP]),
    ONLY_TOPIC: ([TOPIC], []),
    ONLY_GROUP: ([], [GROUP]),
    OTHER_GROUP: ([TOPIC], ["bill"]),
}
"""What each account may consume: topics and groups."""

Make = Callable[[Wire, int, str], RemotingCommand]


def batch(wire: Wire, kind: str) -> RemotingCommand:
    bits = base64.b64encode(b"\x01").decode()
    ack = {"c": GROUP, "t": TOPIC, "r": kind, "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 60_000, "b": bits}
    return wire.command(RequestCode.BATCH_ACK_MESSAGE, None, json.dumps({"acks": [ack]}).encode())


def assignment(wire: Wire, topic: str) -> RemotingCommand:
    body = {"topic": topic, "consumerGroup": GROUP, "clientId": "c"}
    return wire.command(RequestCode.QUERY_ASSIGNMENT, None, json.dumps(body).encode())


REQUESTS: dict[str, Make] = {
    "pop": lambda wire, now, topic: pop_command(wire, now, topic, consumer_group=GROUP),
    "ack": lambda wire, _, topic: wire.command(
        RequestCode.ACK_MESSAGE, AckMessageRequestHeader(GROUP, topic, 0, HANDLE, 0)
    ),
    "batch ack": lambda wire, _, topic: batch(wire, "0" if topic == TOPIC else "1"),
    "change": lambda wire, _, topic: wire.command(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTimeRequestHeader(GROUP, topic, 0, HANDLE, 0, 1_000)
    ),
    "notification": lambda wire, now, topic: wire.command(
        RequestCode.NOTIFICATION, NotificationRequestHeader(GROUP, topic, -1, 0, now)
    ),
    "peek": lambda wire, _, topic: wire.command(
        RequestCode.PEEK_MESSAGE, PeekMessageRequestHeader(GROUP, topic, -1, 1)
    ),
    "polling info": lambda wire, _, topic: wire.command(
        RequestCode.POLLING_INFO, PollingInfoRequestHeader(GROUP, topic, -1)
    ),
    "assignment": lambda wire, _, topic: assignment(wire, topic),
}
OF_THE_GROUP = (RETRY, f"%RETRY%{GROUP}")
"""Retry topics: who consumes as the group may use them, with no permission for the topic."""
ALLOWED = {ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND}


@pytest.fixture(params=["ACL 1.0", "ACL 2.0"])
async def guarded(
    request: pytest.FixtureRequest, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path
) -> Wire:
    """A broker with the accounts above, a topic and the retry topics."""
    if request.param == "ACL 1.0":
        path = tmp_path / "conf" / "plain_acl.yml"
        path.parent.mkdir()
        rows: list[dict[str, Any]] = [
            {
                "accessKey": by.access_key,
                "secretKey": by.secret_key,
                "topicPerms": [f"{name}=SUB" for name in topics],
                "groupPerms": [f"{name}=SUB" for name in groups],
            }
            for by, (topics, groups) in PERMISSIONS.items()
        ]
        operator = Credentials("operators", "secret-of-operators")
        rows.append({"accessKey": operator.access_key, "secretKey": operator.secret_key, "admin": True})
        path.write_text(json.dumps({"accounts": rows}))
        path.chmod(0o600)
        wire = await connect_to(await start_broker(acl_enable=True, acl_path=str(path.parent)))
    else:
        operator = ROOT
        wire = await connect_to(await start_broker(**INIT))
        for by, (topics, groups) in PERMISSIONS.items():
            assert (await create_user(wire, ROOT, by.access_key, by.secret_key)).code == 0
            entries = [(f"Topic:{name}", "Sub", "Allow") for name in topics]
            entries += [(f"Group:{name}", "Sub", "Allow") for name in groups]
            assert (await put_acl(wire, ROOT, by.access_key, *entries)).code == 0
    for name in (TOPIC, *OF_THE_GROUP):
        header = CreateTopicRequestHeader(name, "TBW102", 1, 1, 6, "SINGLE_TAG", order=False)
        assert (await ask(wire, operator, RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
    return wire


async def answer(wire: Wire, clock: VirtualClock, what: str, by: Credentials | None, topic: str) -> RemotingCommand:
    command = REQUESTS[what](wire, clock.now_ms(), topic)
    if by is not None:
        by.sign(command)
    return await wire.ask(command)


def is_refused(found: RemotingCommand) -> bool:
    remark = found.remark or ""
    return "AclException" in remark or (
        found.code == ResponseCode.NO_PERMISSION and ("no matched policies" in remark or "cannot be null" in remark)
    )


@pytest.mark.parametrize("what", REQUESTS)
async def test_a_request_needs_both_the_topic_and_the_group(guarded: Wire, clock: VirtualClock, what: str) -> None:
    for by in (None, ONLY_TOPIC, ONLY_GROUP, OTHER_GROUP):
        found = await answer(guarded, clock, what, by, TOPIC)
        assert is_refused(found), (by, found)
    found = await answer(guarded, clock, what, FULL, TOPIC)
    assert found.code in ALLOWED, found


@pytest.mark.parametrize("what", ["ack", "batch ack", "change"])
async def test_messages_from_the_retry_topic_of_a_group_need_the_group(
    guarded: Wire, clock: VirtualClock, what: str
) -> None:
    for by in (None, ONLY_TOPIC, OTHER_GROUP):
        found = await answer(guarded, clock, what, by, RETRY)
        assert is_refused(found), (by, found)
    for by in (FULL, ONLY_GROUP):
        found = await answer(guarded, clock, what, by, RETRY)
        assert found.code in ALLOWED, (by, found)


@pytest.mark.parametrize("what", ["pop", "ack", "change", "notification", "peek", "polling info", "assignment"])
async def test_the_own_retry_topic_of_a_group_needs_the_group(guarded: Wire, clock: VirtualClock, what: str) -> None:
    for by in (None, ONLY_TOPIC, OTHER_GROUP):
        found = await answer(guarded, clock, what, by, f"%RETRY%{GROUP}")
        assert is_refused(found), (by, found)
    found = await answer(guarded, clock, what, ONLY_GROUP, f"%RETRY%{GROUP}")
    assert found.code in ALLOWED, found
