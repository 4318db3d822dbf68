"""A broker that checks accounts of ACL 1.0, over the wire: attackers' requests, and those of honest clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import Wire, pull_header, records, send_header

from cometmq.broker.controller import Broker
from cometmq.message.names import TRANS_HALF_TOPIC
from cometmq.remoting.admin_headers import (
    CreateAccessConfigRequestHeader,
    CreateTopicRequestHeader,
    DeleteAccessConfigRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand
from cometmq.remoting.frame import JSON, ROCKETMQ, encode_frame
from cometmq.remoting.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetMaxOffsetRequestHeader,
    Header,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.remoting.signing import Credentials

OPERATORS = Credentials("operators", "secret-of-operators")
BILLING = Credentials("billing-account", "secret-of-billing")
READER = Credentials("reader-account", "secret-of-reader")
SECRETS = ("secret-of-operators", "secret-of-billing", "secret-of-reader")
ACCOUNTS = """
accounts:
- accessKey: operators
  secretKey: secret-of-operators
  admin: true
- accessKey: billing-account
  secretKey: secret-of-billing
  topicPerms: [Orders=PUB|SUB, ReadOnly=SUB]
  groupPerms: [billing=SUB]
- accessKey: reader-account
  secretKey: secret-of-reader
  topicPerms: [ReadOnly=SUB]
  groupPerms: [readers=SUB]
"""
DENIED = "org.apache.rocketmq.acl.common.AclException: "


@pytest.fixture
def acl(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return path


@pytest.fixture
async def guarded(start_broker: StartBroker, acl: Path) -> Broker:
    return await start_broker(acl_enable=True, acl_path=str(acl.parent))


@pytest.fixture
async def wire(guarded: Broker, connect_to: ConnectTo) -> Wire:
    return await connect_to(guarded)


async def ask(
    wire: Wire, by: Credentials | None, code: int, header: Header | None = None, body: bytes = b"", **more: Any
) -> RemotingCommand:
    command = wire.command(code, header, body, **more)
    if by is not None:
        by.sign(command)
    return await wire.ask(command)


async def send(
    wire: Wire, by: Credentials | None, topic: str, body: bytes = b"hello", **fields: Any
) -> RemotingCommand:
    return await ask(wire, by, RequestCode.SEND_MESSAGE_V2, send_header(topic, **fields), body)


async def make_topics(wire: Wire, *names: str) -> None:
    for name in names:
        header = CreateTopicRequestHeader(name, "TBW102", 4, 4, 6, "SINGLE_TAG", order=False)
        assert (await ask(wire, OPERATORS, RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0


async def test_the_right_account_sends_and_pulls_and_others_are_told_the_next_step(wire: Wire) -> None:
    await make_topics(wire, "Orders", "ReadOnly")
    assert (await send(wire, BILLING, "Orders")).code == 0
    pulled = await ask(wire, BILLING, RequestCode.PULL_MESSAGE, pull_header("Orders", consumer_group="billing"))
    assert [record.body for record in records(pulled)] == [b"hello"]
    wrong = Credentials("billing-account", "another-secret")
    stranger = Credentials("stranger", "secret-of-stranger")
    for by, words, step in (
        (None, "No accessKey is configured", "set an access key"),
        (stranger, "No acl config for stranger", "check the key"),
        (wrong, "Check signature failed for accessKey=billing-account", "does not belong to this"),
    ):
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.GET_BROKER_RUNTIME_INFO, 9_999):
            header = send_header("Orders") if code == RequestCode.SEND_MESSAGE_V2 else None
            answer = await ask(wire, by, code, header)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith(DENIED + words)
            assert step in (answer.remark or "")
    assert (await ask(wire, BILLING, 9_999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    denied = await send(wire, BILLING, "ReadOnly")
    assert (denied.remark or "").startswith(DENIED + "No default permission for topic:ReadOnly, check the account")
    denied = await ask(wire, BILLING, RequestCode.PULL_MESSAGE, pull_header("Orders", consumer_group="readers"))
    assert "No default permission for group:readers" in (denied.remark or "")
    denied = await ask(wire, BILLING, RequestCode.GET_BROKER_CONFIG)
    assert "Need admin permission for request code=26, but accessKey=billing-account is not" in (denied.remark or "")


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ], ids=["json", "binary"])
async def test_every_changed_byte_of_a_signed_request_is_noticed(wire: Wire, serialize_type: int) -> None:
    await make_topics(wire, "Orders")

    def command() -> RemotingCommand:
        made = wire.command(RequestCode.SEND_MESSAGE_V2, send_header("Orders"), b"body", serialize_type=serialize_type)
        BILLING.sign(made)
        return made

    assert (await wire.ask(command())).code == 0
    for change in (
        {"b": "Other"},
        {"e": "3"},
        {"AccessKey": "operators"},
        {"Signature": ""},
        {"Signature": "x" * 2**16},
        {"Signature": "ß"},
        {"added": "field"},
        {"SecurityToken": "t"},
    ):
        changed = command()
        changed.ext_fields = changed.ext_fields | change
        answer = await wire.ask(changed)
        assert answer.code == ResponseCode.SYSTEM_ERROR, change
        assert "Check signature failed" in (answer.remark or "")
    for name in ("Signature", "AccessKey", "i"):
        halved = command()
        if name in halved.ext_fields:
            halved.ext_fields = {key: value for key, value in halved.ext_fields.items() if key != name}
            assert "AclException" in ((await wire.ask(halved)).remark or "")
    changed = command()
    changed.body = b"bodY"
    assert "Check signature failed" in ((await wire.ask(changed)).remark or "")


async def test_a_connection_that_was_allowed_needs_a_signature_for_its_next_request_too(wire: Wire) -> None:
    await make_topics(wire, "Orders")
    assert (await send(wire, BILLING, "Orders")).code == 0
    assert "No accessKey" in ((await send(wire, None, "Orders")).remark or "")
    forged = Credentials("billing-account", "another-secret")
    assert "Check signature failed" in ((await send(wire, forged, "Orders")).remark or "")
    assert "No default permission" in ((await send(wire, READER, "Orders")).remark or "")
    assert (await send(wire, BILLING, "Orders")).code == 0


async def test_a_header_with_two_of_a_field_is_read_and_checked_alike(wire: Wire) -> None:
    await make_topics(wire, "Orders", "Closed")
    signed = wire.command(RequestCode.SEND_MESSAGE_V2, send_header("Orders"), b"x")
    BILLING.sign(signed)
    allowed, other = json.dumps(signed.ext_fields), json.dumps(signed.ext_fields | {"b": "Closed"})
    twice = allowed.replace('"b": "Orders"', '"b": "Orders", "b": "Closed"')
    for ext in (f'{other}, "extFields": {allowed}', f'{allowed}, "extFields": {other}', twice):
        text = f'{{"code":310,"extFields": {ext}, "opaque": {signed.opaque}, "flag": 0}}'
        wire.writer.write(encode_frame(JSON, text.encode(), 1) + b"x")
        await wire.answer(signed.opaque)
    offset = await ask(wire, OPERATORS, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader("Closed", 0))
    assert offset.ext_fields["offset"] == "0"


async def test_a_oneway_request_that_is_denied_does_nothing_and_gets_no_answer(wire: Wire) -> None:
    await make_topics(wire, "Orders")
    wire.post(wire.command(RequestCode.SEND_MESSAGE_V2, send_header("Orders", queue_id=0), b"x", flag=FLAG_ONEWAY))
    offset = await ask(wire, BILLING, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader("Orders", 0))
    assert offset.ext_fields["offset"] == "0"
    assert not wire.answers


async def test_a_message_named_by_its_offset_belongs_to_its_topic(wire: Wire) -> None:
    await make_topics(wire, "Orders", "ReadOnly", "Closed")
    closed = await send(wire, OPERATORS, "Closed", b"hidden")
    offset = int(closed.ext_fields["msgId"][16:], 16)
    missing = offset + 3
    seen = [
        await ask(wire, BILLING, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(at))
        for at in (offset, missing)
    ]
    assert {
        (answer.code, (answer.remark or "").replace(str(at), "?"), answer.body)
        for at, answer in zip((offset, missing), seen, strict=True)
    } == {(1, "can not find message by the offset, ?, or this account has no permission for its topic", b"")}
    assert (await ask(wire, OPERATORS, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset))).code == 0
    mine = await send(wire, BILLING, "Orders", b"mine")
    own = int(mine.ext_fields["msgId"][16:], 16)
    assert b"mine" in (await ask(wire, BILLING, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(own))).body
    for at, code in ((offset, 1), (own, 0)):
        back = ConsumerSendMsgBackRequestHeader(offset=at, group="billing", delay_level=1)
        answer = await ask(wire, BILLING, RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == code, answer.remark
    query = QueryMessageRequestHeader("Closed", "k", 32, 0, 2**62)
    assert "topic:Closed" in ((await ask(wire, BILLING, RequestCode.QUERY_MESSAGE, query)).remark or "")


async def test_a_record_inside_a_body_is_no_message(wire: Wire) -> None:
    """A producer cannot make a record of its own topic that spans what follows in the log."""
    await make_topics(wire, "Orders", "Closed")
    first = await send(wire, BILLING, "Orders", b"a template for its bytes")
    own = int(first.ext_fields["msgId"][16:], 16)
    template = (await ask(wire, BILLING, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(own))).body
    sent = await send(wire, BILLING, "Orders", b"." * len(template))
    at = int(sent.ext_fields["msgId"][16:], 16)
    record = (await ask(wire, BILLING, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(at))).body
    inside = record.index(b"." * 20)
    follows = at + len(record)
    forged = bytearray(template)
    forged[28:36] = (follows + inside).to_bytes(8, "big")
    again = await send(wire, BILLING, "Orders", bytes(forged))
    assert int(again.ext_fields["msgId"][16:], 16) == follows
    found = await ask(wire, BILLING, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(follows + inside))
    assert found.code == ResponseCode.SYSTEM_ERROR
    whole = await ask(wire, OPERATORS, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(follows + inside))
    assert whole.body == bytes(forged)


async def test_heartbeats_and_locks_that_name_groups_of_others_are_denied(wire: Wire, guarded: Broker) -> None:
    def heartbeat(group: str, topic: str) -> bytes:
        subscription = SubscriptionData(topic=topic, sub_string="*")
        consumer = ConsumerData(group_name=group, subscription_data_set=[subscription])
        return msgspec.json.encode(HeartbeatData(client_id="c", consumer_data_set=[consumer]))

    beat = RequestCode.HEART_BEAT
    assert (await ask(wire, BILLING, beat, None, heartbeat("billing", "Orders"))).code == 0
    for group, topic, words in (
        ("readers", "Orders", "group:readers"),
        ("billing", "Closed", "topic:Closed"),
        ("billing", "%RETRY%readers", "group:readers"),
    ):
        assert words in ((await ask(wire, BILLING, beat, None, heartbeat(group, topic))).remark or "")
    assert guarded.clients.consumers.get("readers") is None
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        body = json.dumps({"consumerGroup": "readers", "clientId": "c", "mqSet": []}).encode()
        assert "group:readers" in ((await ask(wire, BILLING, code, None, body)).remark or "")
    assert "AclException" not in ((await ask(wire, BILLING, beat, None, b"{")).remark or "")


@pytest.mark.parametrize("topic", ["%RETRY%readers", "%DLQ%readers", TRANS_HALF_TOPIC, "SCHEDULE_TOPIC_XXXX"])
async def test_topics_of_other_groups_and_of_the_broker_are_closed(wire: Wire, topic: str) -> None:
    pull = pull_header(topic, consumer_group="billing")
    for code, header in (
        (RequestCode.PULL_MESSAGE, pull),
        (RequestCode.SEND_MESSAGE_V2, send_header(topic, producer_group="billing")),
        (RequestCode.SEND_BATCH_MESSAGE, send_header(topic, producer_group="billing")),
        (RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic, 0)),
    ):
        remark = (await ask(wire, BILLING, code, header)).remark or ""
        assert "No default permission for group:readers" in remark or "Need admin permission" in remark


async def test_a_topic_that_is_not_there_is_denied_as_one_that_is(wire: Wire) -> None:
    await make_topics(wire, "Closed")
    answers = [
        await ask(wire, READER, code, header)
        for name in ("Closed", "Absent")
        for code, header in (
            (RequestCode.SEND_MESSAGE_V2, send_header(name)),
            (RequestCode.PULL_MESSAGE, pull_header(name, consumer_group="readers")),
            (RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(name, 0)),
        )
    ]
    remarks = [(answer.remark or "").replace("Closed", "?").replace("Absent", "?") for answer in answers]
    assert remarks[:3] == remarks[3:]
    assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_ERROR}


async def test_a_changed_file_is_in_force_for_connections_that_exist(wire: Wire, guarded: Broker, acl: Path) -> None:
    await make_topics(wire, "Orders")
    assert (await send(wire, BILLING, "Orders")).code == 0
    acl.write_text(ACCOUNTS.replace("Orders=PUB|SUB", "Orders=SUB"))
    assert guarded.access is not None
    assert guarded.access.files is not None
    await guarded.access.files.look()
    assert (await send(wire, BILLING, "Orders")).code == 0
    await guarded.access.files.look()
    assert "topic:Orders" in ((await send(wire, BILLING, "Orders")).remark or "")
    acl.write_text(ACCOUNTS)
    for _ in range(2):
        await guarded.access.files.look()
    assert (await send(wire, BILLING, "Orders")).code == 0


async def test_administrators_change_accounts_and_no_answer_has_a_secret(wire: Wire, acl: Path) -> None:
    await make_topics(wire, "Orders")
    fresh = Credentials("fresh-account", "secret-of-fresh")
    header = CreateAccessConfigRequestHeader(
        "fresh-account", "secret-of-fresh", topic_perms="Orders=PUB,Other=SUB", default_group_perm="SUB"
    )
    put = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
    assert "Need admin permission" in ((await ask(wire, BILLING, put, header)).remark or "")
    answer = await ask(wire, OPERATORS, put, header)
    assert answer.code == 0, answer.remark
    assert (await send(wire, fresh, "Orders")).code == 0
    assert acl.stat().st_mode & 0o777 == 0o600
    for wrong in (
        CreateAccessConfigRequestHeader("fresh-account", "short"),
        CreateAccessConfigRequestHeader("fresh-account", "secret-of-fresh", topic_perms="Orders=ALL"),
        CreateAccessConfigRequestHeader("fresh-account", "secret-of-fresh", white_remote_address="10."),
    ):
        answer = await ask(wire, OPERATORS, put, wrong)
        assert answer.code == 209
        assert "secret-of" not in (answer.remark or "")
    shown = await ask(wire, OPERATORS, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    found = {account["accessKey"]: account for account in json.loads(shown.body)["plainAccessConfigs"]}
    assert set(found) == {"operators", "billing-account", "reader-account", "fresh-account"}
    assert found["fresh-account"]["topicPerms"] == ["Orders=PUB", "Other=SUB"]
    assert b"secret" not in shown.body
    version = (await ask(wire, OPERATORS, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)).ext_fields
    assert json.loads(version["version"])["counter"] == 1
    assert json.loads(version["allAclFileVersion"])[str(acl)]["counter"] == 1
    gone = DeleteAccessConfigRequestHeader("fresh-account")
    assert (await ask(wire, OPERATORS, RequestCode.DELETE_ACL_CONFIG, gone)).code == 0
    assert (await ask(wire, OPERATORS, RequestCode.DELETE_ACL_CONFIG, gone)).code == 210
    assert "No acl config" in ((await send(wire, fresh, "Orders")).remark or "")
    for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO):
        told = await ask(wire, OPERATORS, code)
        assert not any(secret.encode() in told.body for secret in SECRETS)


async def test_white_addresses_are_changed_in_files_of_accounts_only(wire: Wire, acl: Path, tmp_path: Path) -> None:
    code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    other = tmp_path / "other.yml"
    other.write_text("")
    for addresses, path in (("10.0.0.1", str(other)), ("10.0.0.1", "../../etc/passwd"), ("nonsense", "")):
        answer = await ask(wire, OPERATORS, code, UpdateGlobalWhiteAddrsConfigRequestHeader(addresses, path))
        assert answer.code == 211
    assert other.read_text() == ""
    white = UpdateGlobalWhiteAddrsConfigRequestHeader("127.0.0.1,10.0.0.*", str(acl))
    assert (await ask(wire, OPERATORS, code, white)).code == 0
    assert (await ask(wire, None, RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0


async def test_denials_are_logged_without_secrets_and_not_for_each_request(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        await send(wire, Credentials("billing-account", "another-secret"), "Orders")
    assert caplog.text.count("denied") == 1
    assert "another-secret" not in caplog.text
    assert "secret-of" not in caplog.text
