"""Each read that goes by hash, offset, id or prefix, by an account that may read one other topic only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.access.test_access import ask
from tests.broker.access.test_users import create_user, put_acl
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pop.popping import pop_command
from tests.broker.wire import Wire, pull_header, send_header

from cometmq.broker.controller import Broker
from cometmq.message.ids import offset_msg_id
from cometmq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from cometmq.remoting.admin_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    CreateTopicRequestHeader,
    GetOpenTransactionsRequestHeader,
    GetWaitingMessagesRequestHeader,
    QueryConsumeQueueRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.remoting.pop_headers import NotificationRequestHeader, PeekMessageRequestHeader
from cometmq.remoting.signing import Credentials
from cometmq.testing import VirtualClock

OWN, THEIRS, GROUP = "AaTopic", "BBTopic", "readers"
"""The topics have one Java hash, as the keys Aa and BB have."""
OPERATORS = Credentials("operators", "secret-of-operators")
READER = Credentials("reader-account", "secret-of-reader")
SECRET = b"salaries of all"
CLOSED = (
    THEIRS,
    "%RETRY%others",
    "%DLQ%others",
    f"%RETRY%others_{THEIRS}",
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "RMQ_SYS_TRACE_TOPIC",
)


@pytest.fixture(params=["ACL 1.0", "ACL 2.0"])
async def broker(request: pytest.FixtureRequest, start_broker: StartBroker, tmp_path: Path) -> Broker:
    if request.param == "ACL 2.0":
        init = {"username": OPERATORS.access_key, "password": OPERATORS.secret_key}
        return await start_broker(
            authentication_enabled=True, authorization_enabled=True, init_authentication_user=json.dumps(init)
        )
    rows = [
        {"accessKey": OPERATORS.access_key, "secretKey": OPERATORS.secret_key, "admin": True},
        {
            "accessKey": READER.access_key,
            "secretKey": READER.secret_key,
            "topicPerms": [f"{OWN}=SUB"],
            "groupPerms": [f"{GROUP}=SUB"],
        },
    ]
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(json.dumps({"accounts": rows}))
    path.chmod(0o600)
    return await start_broker(acl_enable=True, acl_path=str(path.parent))


@pytest.fixture
async def wire(request: pytest.FixtureRequest, broker: Broker, connect_to: ConnectTo) -> Wire:
    """A broker with a secret in each kind of place."""
    wire = await connect_to(broker)
    if "ACL 2.0" in request.node.name:
        assert (await create_user(wire, OPERATORS, READER.access_key, READER.secret_key)).code == 0
        may = [(f"Topic:{OWN}", "Sub", "Allow"), (f"Topic:{OWN}", "Get", "Allow"), (f"Group:{GROUP}", "Sub", "Allow")]
        assert (await put_acl(wire, OPERATORS, READER.access_key, *may)).code == 0
    for name in (OWN, THEIRS):
        topic = CreateTopicRequestHeader(name, "TBW102", 1, 1, 6, "SINGLE_TAG", order=False)
        assert (await ask(wire, OPERATORS, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    offsets = []
    for more, sys_flag in (
        ("", 0),
        ("\x02DELAY\x0118", 0),
        ("\x02TIMER_DELAY_SEC\x013600", 0),
        ("\x02TRAN_MSG\x01true\x02PGROUP\x01producers", TRANSACTION_PREPARED),
    ):
        header = send_header(THEIRS, properties=f"KEYS\x01Aa\x02UNIQ_KEY\x01BB{more}", sys_flag=sys_flag)
        sent = await ask(wire, OPERATORS, RequestCode.SEND_MESSAGE_V2, header, SECRET)
        assert sent.code == 0, sent.remark
        offsets.append(int(sent.ext_fields["msgId"][16:], 16))
    dead = ConsumerSendMsgBackRequestHeader(offset=offsets[0], group="others", delay_level=-1)
    assert (await ask(wire, OPERATORS, RequestCode.CONSUMER_SEND_MSG_BACK, dead)).code == 0
    own = await ask(wire, OPERATORS, RequestCode.SEND_MESSAGE_V2, send_header(OWN, properties="KEYS\x01own"), b"mine")
    assert own.code == 0
    return wire


def secrets(broker: Broker) -> dict[int, str]:
    """The log offset of each record with the secret, and its topic."""
    found = {}
    for topic, queues in broker.store.queues().items():
        for queue in queues.values():
            for offset in range(queue.min_offset(), queue.max_offset()):
                unit = queue.unit(offset)
                record = broker.store.record_at(unit[0]) if unit else None
                if unit and record is not None and SECRET in record:
                    found[unit[0]] = topic
    return found


def by_offset(wire: Wire, offset: int) -> Iterator[RemotingCommand]:
    """Requests that name a message by its place in the log."""
    command = wire.command
    named = offset_msg_id(bytes((127, 0, 0, 1, 0, 0, 0, 1)), offset)
    yield command(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset))
    for level in (-1, 0, 1):
        back = ConsumerSendMsgBackRequestHeader(offset=offset, group=GROUP, delay_level=level, origin_topic=OWN)
        yield command(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    direct = ConsumeMessageDirectlyResultRequestHeader(GROUP, "c", named)
    yield command(RequestCode.CONSUME_MESSAGE_DIRECTLY, direct)
    yield command(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader(named))
    for place in range(3):
        end = EndTransactionRequestHeader("producers", place, offset, TRANSACTION_COMMIT, "id")
        yield command(RequestCode.END_TRANSACTION, end)


def by_topic(wire: Wire, now_ms: int, topic: str) -> Iterator[RemotingCommand]:
    """Requests that read a topic."""
    command = wire.command
    for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        yield command(code, pull_header(topic, consumer_group=GROUP))
    for key in ("Aa", "BB"):
        yield command(RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader(topic, key, 32, 0, 2**62))
        unique = QueryMessageRequestHeader(topic, key, 32, 0, 2**62, unique_key_query=True)
        yield command(RequestCode.QUERY_MESSAGE, unique)
    yield pop_command(wire, now_ms, topic, consumer_group=GROUP)
    yield command(RequestCode.PEEK_MESSAGE, PeekMessageRequestHeader(GROUP, topic, -1, 32))
    yield command(RequestCode.NOTIFICATION, NotificationRequestHeader(GROUP, topic, -1, 0, now_ms))
    yield command(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueueRequestHeader(topic, 0, 0, 10))
    yield command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetRequestHeader(topic, 0, 0))
    yield command(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic, 0))
    yield command(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic, 0))
    yield command(RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoretimeRequestHeader(topic, 0))


def beside_ones_own(wire: Wire) -> Iterator[RemotingCommand]:
    """Requests for the own topic that aim at what is beside it: hashes, queues and offsets that it lacks."""
    for key in ("Aa", "BB"):
        yield wire.command(RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader(OWN, key, 32, 0, 2**62))
    for queue_id, offset in ((0, -1), (0, 2**40), (1, 0), (-1, 0), (2**31 - 1, 0), (0, -(2**63))):
        header = pull_header(OWN, consumer_group=GROUP, queue_id=queue_id, queue_offset=offset)
        yield wire.command(RequestCode.PULL_MESSAGE, header)
        listed = QueryConsumeQueueRequestHeader(OWN, queue_id, offset, 2**31 - 1)
        yield wire.command(RequestCode.QUERY_CONSUME_QUEUE, listed)
    yield wire.command(RequestCode.GET_WAITING_MESSAGES, GetWaitingMessagesRequestHeader(topic=OWN))
    yield wire.command(RequestCode.GET_OPEN_TRANSACTIONS, GetOpenTransactionsRequestHeader(group=GROUP))


async def answer(wire: Wire, command: RemotingCommand) -> RemotingCommand:
    READER.sign(command)
    found = await wire.ask(command)
    assert SECRET not in found.encode(), command
    return found


async def test_no_read_gives_a_byte_of_another_topic(wire: Wire, broker: Broker, clock: VirtualClock) -> None:
    places = secrets(broker)
    assert set(places.values()) == {THEIRS, "%DLQ%others", SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC}
    end = broker.store.max_physical_offset
    for place in places:
        for command in by_offset(wire, place):
            found = await answer(wire, command)
            assert found.code, (places[place], command, found)
    for topic in CLOSED:
        for command in by_topic(wire, clock.now_ms(), topic):
            found = await answer(wire, command)
            assert found.code, (topic, command, found)
    for command in beside_ones_own(wire):
        await answer(wire, command)
    assert broker.store.max_physical_offset == end, "nothing was copied to where the account may read"
    mine = await answer(wire, wire.command(RequestCode.PULL_MESSAGE, pull_header(OWN, consumer_group=GROUP)))
    assert b"mine" in mine.body
