"""Quotas of a broker over the wire: denials with the wait, changes at run time, attackers, and what stays bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.access.test_access import ask
from tests.broker.access.test_users import ALICE, INIT, ROOT, create_user, put_acl
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.heartbeats import heartbeat
from tests.broker.wire import Connect, Wire, records, send_header

import cometmq.auth.quota.meters as meters_module
from cometmq.auth.model import AuthError
from cometmq.auth.quota.limiter import Limiter
from cometmq.auth.quota.meter import Bucket
from cometmq.auth.quota.model import Limits, QuotaInfo, Subject
from cometmq.auth.quota.over_quota import OverQuotaError
from cometmq.auth.quota.owners import TopicOwners
from cometmq.auth.quota.table import QuotaTable
from cometmq.broker.controller import Broker
from cometmq.message.batch import encode_piece
from cometmq.remoting.admin_headers import (
    CreateTopicRequestHeader,
    DeleteQuotaRequestHeader,
    DeleteTopicRequestHeader,
    GetQuotasRequestHeader,
    PutQuotaRequestHeader,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand
from cometmq.remoting.headers import (
    GetConsumerListByGroupRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.testing import VirtualClock

HERE = "address:127.0.0.1"


async def put(wire: Wire, subject: str, **limits: int) -> RemotingCommand:
    return await wire.call(RequestCode.PUT_QUOTA, PutQuotaRequestHeader(subject, **limits))


async def quota_of(wire: Wire, subject: str) -> dict[str, Any]:
    answer = await wire.call(RequestCode.GET_QUOTAS, GetQuotasRequestHeader(subject))
    assert answer.code == 0, answer.remark
    found: list[dict[str, Any]] = json.loads(answer.body)
    return found[0]


async def later(clock: VirtualClock, answer: Awaitable[RemotingCommand], seconds: float = 1.0) -> RemotingCommand:
    """An answer that a denial holds back for at most so long."""
    return await clock.run_until(answer, seconds)


async def test_a_producer_over_its_quota_waits_its_turn_and_is_told_when_that_takes_long(
    connect: Connect, clock: VirtualClock
) -> None:
    wire = await connect()
    assert (await put(wire, HERE, messages_in=4)).code == 0
    for _ in range(4):
        assert (await wire.send("T")).code == 0
    before = clock.monotonic()
    commands = [wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"%d" % at) for at in range(5)]
    for command in commands:
        wire.post(command)
    for at, command in enumerate(commands[:4]):
        assert (await later(clock, wire.answer(command.opaque))).code == 0
        assert clock.monotonic() - before == pytest.approx(0.25 * (at + 1)), "it waits its turn"
    denied = await later(clock, wire.answer(commands[4].opaque))
    assert denied.code == ResponseCode.SYSTEM_BUSY
    assert denied.remark == "[QUOTA]address:127.0.0.1 is at its limit of 4 sent messages per second: wait 1,250 ms"
    assert clock.monotonic() - before == pytest.approx(1), "clients that ask again at once cost little"
    assert (await later(clock, wire.send("T"))).code == 0
    found = await quota_of(wire, HERE)
    assert (found["denials"], found["delayed"], found["quota"]) == (1, 5, HERE)
    assert found["limits"] == {"messagesIn": 4}
    assert [record.body for record in records(await wire.pull("T"))][4:8] == [b"0", b"1", b"2", b"3"]


async def test_bytes_are_owed_so_a_large_message_passes_and_those_after_it_wait(
    connect: Connect, clock: VirtualClock
) -> None:
    wire = await connect()
    await put(wire, HERE, bytes_in=1_000)
    assert (await wire.send("T", b"x" * 5_000)).code == 0
    for _ in range(3):
        denied = await later(clock, wire.send("T"))
        assert denied.code == ResponseCode.SYSTEM_BUSY
        assert "1,000 sent bytes per second: wait" in (denied.remark or "")
    clock.advance(1)
    assert (await later(clock, wire.send("T"))).code == 0


async def test_consumers_get_their_rate_and_held_pulls_count(connect: Connect, clock: VirtualClock) -> None:
    wire = await connect()
    for _ in range(40):
        await wire.send("T")
    await put(wire, "group:consumers", messages_out=10)
    assert len(records(await wire.pull("T", max_msg_nums=10))) == 10
    before = clock.monotonic()
    waited = await later(clock, wire.pull("T", queue_offset=10, max_msg_nums=20))
    assert len(records(waited)) == 20
    assert clock.monotonic() - before == pytest.approx(0.1)
    denied = await later(clock, wire.pull("T", queue_offset=30))
    assert denied.code == ResponseCode.SYSTEM_BUSY
    assert "group:consumers is at its limit of 10 received messages per second: wait" in (denied.remark or "")
    other = await wire.pull("T", consumer_group="others")
    assert len(records(other)) == 32, "another group is not limited"
    clock.advance(3)  # Java's consumers wait so long after a denial
    assert len(records(await wire.pull("T", queue_offset=30, max_msg_nums=10))) == 10
    clock.advance(1)
    held = asyncio.ensure_future(wire.pull("T", queue_offset=40, wait_ms=15_000))
    sender = await connect()
    await sender.send("T")
    assert len(records(await held)) == 1
    assert (await quota_of(sender, "group:consumers"))["use"]["messagesOut"] > 0


async def test_messages_found_by_id_or_key_count(connect: Connect, clock: VirtualClock) -> None:
    wire = await connect()
    sent = await wire.send("T")
    await put(wire, HERE, messages_out=1)
    offset = int((sent.ext_fields or {})["msgId"][16:], 16)
    view, query = ViewMessageRequestHeader(offset), QueryMessageRequestHeader("T", "k1", 32, 0, 2**62)
    assert (await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, view)).code == 0
    commands = [wire.command(RequestCode.QUERY_MESSAGE, query), wire.command(RequestCode.VIEW_MESSAGE_BY_ID, view)]
    for command in commands:
        wire.post(command)
    answers = [await later(clock, wire.answer(command.opaque)) for command in commands]
    assert [answer.code for answer in answers] == [0, ResponseCode.SYSTEM_BUSY], "after a wait there was room for one"


async def test_a_batch_counts_each_of_its_messages(connect: Connect, clock: VirtualClock) -> None:
    wire = await connect()
    await put(wire, HERE, messages_in=10)
    body = b"".join(b"".join(encode_piece(0, b"one", b"")) for _ in range(30))
    command = wire.command(RequestCode.SEND_BATCH_MESSAGE, send_header("T", batch=True), body)
    assert (await wire.ask(command)).code == 0
    denied = await later(clock, wire.send("T"), 3)
    assert "wait 2,100 ms" in (denied.remark or "")


async def test_connections_are_counted_as_they_are_used_and_closed(connect: Connect, clock: VirtualClock) -> None:
    first, second = await connect(), await connect()
    await put(first, HERE, connections=1)
    assert (await first.send("T")).code == 0
    denied = await later(clock, second.send("T"))
    assert (denied.code, denied.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "[QUOTA]address:127.0.0.1 is at its limit of 1 connections: close a connection, or wait until one is closed",
    )
    assert (await quota_of(second, HERE))["use"] == {"connections": 1}, "administration needs no connection of a quota"
    await first.close()
    while (await quota_of(second, HERE))["use"]["connections"]:
        await asyncio.sleep(0)
    assert (await second.send("T")).code == 0


async def test_a_member_that_may_not_pull_does_not_enter_its_group(connect: Connect, clock: VirtualClock) -> None:
    first, second = await connect(), await connect()
    await put(first, "group:*", connections=1)
    one, two = (heartbeat(client, "T", group="consumers") for client in ("one", "two"))
    assert (await first.call(RequestCode.HEART_BEAT, body=one)).code == 0
    denied = await later(clock, second.call(RequestCode.HEART_BEAT, body=two))
    assert denied.code == ResponseCode.SYSTEM_BUSY
    assert (await later(clock, second.pull("T"))).code == ResponseCode.SYSTEM_BUSY
    members = await first.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader("consumers"))
    assert json.loads(members.body) == {"consumerIdList": ["one"]}


async def test_topics_are_counted_while_they_exist_and_across_a_restart(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    await put(wire, HERE, topics=2)
    assert (await wire.send("One")).code == 0

    def make(name: str) -> Awaitable[RemotingCommand]:
        header = CreateTopicRequestHeader(name, "TBW102", 4, 4, 6, "SINGLE_TAG", order=False)
        return wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    assert (await make("Two")).code == 0
    assert (await make("Two")).code == 0, "what exists may be changed"
    several = json.dumps({"topicConfigList": [{"topicName": "Two"}, {"topicName": "Three"}]}).encode()
    many = await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=several)
    for denied in (await make("Three"), await wire.send("Three"), many):
        assert denied.code == ResponseCode.SYSTEM_BUSY
        assert denied.remark == (
            "[QUOTA]address:127.0.0.1 is at its limit of 2 topics: delete a topic that is not needed"
        )
    assert (await wire.send("One")).code == 0
    await broker.stop()
    again = await start_broker()
    wire = await connect_to(again)
    assert (await wire.send("Three")).code == ResponseCode.SYSTEM_BUSY
    again.clock.advance(2)  # type: ignore[attr-defined]
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("One"))).code == 0
    assert (await wire.send("Three")).code == 0


async def test_quotas_of_accounts_follow_the_account_over_connections(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker(**INIT)
    wire, second = await connect_to(broker), await connect_to(broker)
    await create_user(wire, ROOT, "alice", "secret-of-alice")
    await put_acl(wire, ROOT, "alice", ("Topic:*", "All", "Allow"))
    header = PutQuotaRequestHeader("account:alice", messages_in=2)
    denied = await ask(wire, ALICE, RequestCode.PUT_QUOTA, header)
    assert denied.code == ResponseCode.NO_PERMISSION, "nobody changes their own quota"
    assert (await ask(wire, ROOT, RequestCode.PUT_QUOTA, header)).code == 0
    send = RequestCode.SEND_MESSAGE_V2
    assert (await ask(wire, ROOT, send, send_header("T"))).code == 0
    assert (await ask(wire, ALICE, send, send_header("T"))).code == 0
    assert (await ask(second, ALICE, send, send_header("T"))).code == 0
    commands = [second.command(send, send_header("T")) for _ in range(3)]
    for command in commands:
        ALICE.sign(command)
        second.post(command)
    for command in commands[:2]:
        assert (await later(clock, second.answer(command.opaque))).code == 0
    denied = await later(clock, second.answer(commands[2].opaque))
    assert "account:alice is at its limit of 2" in (denied.remark or "")
    assert (await ask(second, ROOT, send, send_header("T"))).code == 0, "the same connection, another account"


async def test_a_quota_of_0_allows_nothing_and_huge_numbers_are_refused_or_harmless(
    connect: Connect, clock: VirtualClock
) -> None:
    wire = await connect()
    await put(wire, HERE, messages_in=0)
    denied = await later(clock, wire.send("T"))
    assert denied.remark == "[QUOTA]address:127.0.0.1 is at its limit of 0 sent messages per second: it allows none"
    assert (await put(wire, HERE, messages_in=10**15, bytes_in=10**15, connections=10**15, topics=10**15)).code == 0
    assert (await wire.send("T")).code == 0
    for wrong in (10**15 + 1, -2, 2**63 - 1):
        refused = await put(wire, HERE, messages_in=wrong)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "a limit must be a number from 0" in (refused.remark or "")
    for subject in (
        "",
        "nobody",
        "account:",
        "address:300.1.1.1",
        "address:10.0.0.0/99",
        "host:a",
        "group:" + "g" * 600,
    ):
        assert (await put(wire, subject, topics=1)).code == ResponseCode.INVALID_PARAMETER
    assert (await put(wire, "group:g")).code == ResponseCode.INVALID_PARAMETER, "a quota without a limit"
    assert (await wire.send("T")).code == 0


async def test_oneway_sends_over_the_quota_are_dropped_and_counted(connect: Connect, clock: VirtualClock) -> None:
    wire = await connect()
    await put(wire, HERE, messages_in=1)
    for _ in range(4):
        wire.post(wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"oneway", flag=FLAG_ONEWAY))
    assert (await quota_of(wire, HERE))["denials"] == 2
    clock.advance(1)
    while len(records(await wire.pull("T"))) < 2:
        await asyncio.sleep(0)


async def test_a_quota_changes_under_load_and_no_request_of_others_fails(
    broker: Broker, connect: Connect, clock: VirtualClock
) -> None:
    admin, wires = await connect(), [await connect() for _ in range(4)]
    done = False

    async def load(number: int) -> list[int]:
        codes: list[int] = []
        while not done:
            codes.append((await wires[number].send("T", producer_group=f"group-{number}")).code)
        return codes

    running = [asyncio.ensure_future(load(number)) for number in range(4)]
    for round_ in range(60):
        await put(admin, "group:group-0", messages_in=1_000_000 + round_)
        if round_ % 3 == 0:
            await put(admin, f"address:10.0.{round_}.0/24", messages_in=0)
        if round_ % 20 == 19:
            for quota in list(broker.limiter.table.quotas):
                header = DeleteQuotaRequestHeader(str(quota))
                assert (await admin.call(RequestCode.DELETE_QUOTA, header)).code == 0
            assert not broker.limiter.is_active
    done = True
    for codes in await asyncio.gather(*running):
        assert len(codes) > 10
        assert set(codes) == {0}


async def test_requests_that_wait_are_bounded_and_handled_when_the_broker_stops(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.auth.quota.delayed.MAX_DELAYED_REQUESTS", 3)
    wire = await connect()
    await put(wire, HERE, messages_in=5)
    commands = [wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"hello") for _ in range(10)]
    for command in commands:
        wire.post(command)
    codes = [(await wire.answer(command.opaque)).code for command in commands[:5] + commands[8:]]
    assert codes == [0] * 5 + [ResponseCode.SYSTEM_BUSY] * 2, "no room: answered at once"
    broker.limiter.stop()
    assert [(await wire.answer(command.opaque)).code for command in commands[5:8]] == [0, 0, 0]


async def test_quotas_are_kept_also_by_a_damaged_file_and_without_its_bak_the_start_ends(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    await put(wire, "group:*", messages_in=1)
    await put(wire, "group:*", connections=5)
    await put(wire, "group:*", connections=-1)
    await broker.stop()
    again = await start_broker()
    wire = await connect_to(again)
    assert (await wire.send("T")).code == 0
    before = clock.monotonic()
    assert (await later(clock, wire.send("T"))).code == 0
    assert clock.monotonic() - before == pytest.approx(1)
    assert (await quota_of(wire, "group:*"))["limits"] == {"messagesIn": 1}
    await again.stop()
    path = tmp_path / "store" / "config" / "quotas.json"
    assert path.stat().st_mode & 0o777 == 0o600
    backup = path.with_name("quotas.json.bak")
    assert (backup.read_text(), backup.stat().st_mode) == (path.read_text(), path.stat().st_mode)
    for damaged in ("{", '{"quotas":{"account:a":{"messagesIn":-1}}}', '{"quotas":{"what":{"topics":1}}}', "[]"):
        path.write_text(damaged)
        one_damaged = await start_broker()
        assert (await quota_of(await connect_to(one_damaged), "group:*"))["limits"] == {"messagesIn": 1}
        await one_damaged.stop()
    for damaged in ("{", '{"quotas":{"account:a":{"messagesIn":-1}}}', '{"quotas":{"what":{"topics":1}}}', "[]"):
        backup.write_text(damaged)
        with pytest.raises(AuthError):
            await start_broker()
    backup.unlink()
    with pytest.raises(AuthError):
        await start_broker()


async def test_a_change_that_cannot_be_written_is_not_in_force(
    connect: Connect, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = await connect()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("cometmq.auth.quota.table.replace_file", full)
        refused = await put(wire, HERE, messages_in=0)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "no space left" in (refused.remark or "")
    assert not broker.limiter.is_active
    assert (await wire.send("T")).code == 0


async def test_the_most_specific_quota_counts_and_each_address_by_itself(tmp_path: Path, clock: VirtualClock) -> None:
    table = QuotaTable(tmp_path / "quotas.json")
    texts = ("address:*", "address:10.0.0.0/8", "address:10.1.0.0/16", "address:10.1.2.3", "address:2001:db8::/32")
    table.use({Subject.parse(text): Limits(topics=at) for at, text in enumerate(texts)})
    for address, at in (
        ("192.0.2.1", 0),
        ("10.9.9.9", 1),
        ("10.1.9.9", 2),
        ("10.1.2.3", 3),
        ("2001:db8::7", 4),
        ("fe80::1%eth0", 0),
    ):
        quota = table.match(Subject.parse("address:*").kind, address)
        assert quota is not None
        assert str(quota.subject) == texts[at]


class Peer:
    """A connection, as the limiter sees one."""

    def __init__(self, ip: str) -> None:
        self.peer_ip = ip
        self.account = None
        self.on_close: list[Any] = []


def limiter_of(tmp_path: Path, clock: VirtualClock, **quotas: Limits) -> Limiter:
    table = QuotaTable(tmp_path / "quotas.json")
    limiter = Limiter(table, TopicOwners(tmp_path / "t.json", lambda _: True, clock=clock), lambda _: True, clock=clock)
    table.use({Subject.parse(f"{kind}:*"): limits for kind, limits in quotas.items()})
    return limiter


async def test_a_thousand_addresses_and_groups_are_bounded_and_expire(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters_module, "MAX_METERS", 1_500)
    limiter = limiter_of(tmp_path, clock, address=Limits(messages_out=10), group=Limits(messages_out=10))
    peers: list[Any] = [Peer(f"10.0.{at // 250}.{at % 250}") for at in range(1_000)]
    for at, peer in enumerate(peers):
        limiter._pull(peer, f"group-{at}")
    one: Any = Peer("10.9.9.9")
    for at in range(5_000):
        limiter._pull(one, f"other-{at}")
    assert len(limiter._meters.known) == 1_500
    assert len(limiter._meters.of_connection[one].groups) <= 1_000
    for peer in (*peers, one):
        for callback in peer.on_close:
            callback(peer)
    assert limiter._meters._metered_groups == 0
    assert all(meter.connections == 0 for meter in limiter._meters.known.values())
    clock.advance(601)
    limiter.expire()
    assert not limiter._meters.known
    assert [info.subjects for info in limiter.listed(each=False)] == [0, 0]


async def test_a_clock_that_moves_backwards_neither_fills_nor_empties_a_bucket(tmp_path: Path) -> None:
    bucket = Bucket(10, 1.0, now=1_000.0)
    bucket.take(10, 1_000.0)
    for now in (500.0, 0.0, 500.05):
        bucket.fill(now)
    assert bucket.level == 10.0, "500 s are more than enough"
    bucket.take(10, 500.05)
    bucket.fill(0.0)
    assert bucket.level == 0
    bucket.fill(0.5)
    assert bucket.level == pytest.approx(5)
    assert bucket.use(0.5) == pytest.approx(0), "counts of a time that never was are dropped"


async def test_the_list_of_all_subjects_has_the_most_denied_first(tmp_path: Path, clock: VirtualClock) -> None:
    limiter = limiter_of(tmp_path, clock, address=Limits(messages_out=0, connections=3))
    for at in range(3):
        peer: Any = Peer(f"10.0.0.{at}")
        for _ in range(at):
            with pytest.raises(OverQuotaError) as denied:
                limiter._pull(peer, None)
            denied.value.meter.deny()
    found = limiter.listed(each=True)
    assert [(info.subject, info.denials) for info in found] == [("address:10.0.0.2", 2), ("address:10.0.0.1", 1)]
    (of_all,) = limiter.listed(each=False)
    assert of_all == QuotaInfo("address:*", Limits(messages_out=0, connections=3), "address:*", {}, 3, 0, 2)
