"""Data that is not in the log goes over to the next master of a set: offsets, topics, groups, users."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from tests.broker.member.sets import MemberSet, member_set, until
from tests.broker.wire import Wire
from tests.helpers.pace import is_in_time

from cometmq.broker.controller import Broker
from cometmq.broker.failover.document import Member
from cometmq.broker.member.set_member import SetMember
from cometmq.client.producer.producer import Producer
from cometmq.client.send_result import SendStatus
from cometmq.message.message import Message
from cometmq.remoting.admin_headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from cometmq.remoting.bodies import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode, ResponseCode

GROUP = "group"


def master(members: MemberSet) -> SetMember:
    found = members.master
    assert found is not None
    return found


async def fill(members: MemberSet, count: int) -> None:
    async with Producer("load", instance=members.instance()) as producer:
        for number in range(count):
            result = await producer.send(Message("T", b"%d" % number))
            assert result.status is SendStatus.SEND_OK


def committed(broker: Broker) -> list[int]:
    """The offsets of the group in the queues of T."""
    return [broker.offsets.query(GROUP, "T", queue_id) for queue_id in range(4)]


async def commit_all(members: MemberSet) -> list[int]:
    """Commit all messages of T, and return the offsets."""
    broker = master(members).broker
    for queue_id in range(4):
        broker.offsets.commit(GROUP, "T", queue_id, broker.store.extent("T", queue_id)[1])
    return committed(broker)


async def test_after_a_handover_no_offset_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master asks its successor to copy the tables once more, and waits for it: here as long as that takes."""
    monkeypatch.setattr("cometmq.broker.replication.ha_service.LAST_COPY_SECONDS", 60.0)
    async with member_set(tmp_path) as members:
        await fill(members, 40)
        for _ in range(3):
            first = master(members)
            await fill(members, 8)
            offsets = await commit_all(members)  # just before
            await first.hand_over("", "a test")
            await until(lambda first=first: members.master not in (None, first))  # type: ignore[misc]
            assert committed(master(members).broker) == offsets
            await until(lambda: members.in_sync == set("abc"))


async def test_the_member_that_has_copied_the_tables_becomes_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it copies them, another one gets further."""
    async with member_set(tmp_path) as members:
        await fill(members, 4)
        first = master(members)
        in_sync = first.machine.in_sync
        assert in_sync is not None
        copy_tables, asked = first.broker.ha.copy_tables, []

        async def copied(member: Member) -> bool:
            has_copied = await copy_tables(member)
            asked.append(member.name)
            in_sync._progress[member].end -= 1
            return has_copied

        monkeypatch.setattr(first.broker.ha, "copy_tables", copied)
        await first.hand_over("", "a test")
        await until(lambda: members.master not in (None, first))
        assert [master(members).machine.me.name] == asked


async def test_a_member_that_does_not_copy_the_tables_does_not_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs, and is still in sync: the other one becomes the master."""
    async with member_set(tmp_path) as members:
        await fill(members, 4)
        first = master(members)
        copy_tables, asked = first.broker.ha.copy_tables, []

        async def copied(member: Member) -> bool:
            asked.append(member.name)
            return len(asked) > 1 and await copy_tables(member)

        monkeypatch.setattr(first.broker.ha, "copy_tables", copied)
        await first.hand_over("", "a test")
        await until(lambda: members.master not in (None, first))
        assert len(asked) == 2
        assert master(members).machine.me.name == asked[1]


async def test_after_a_kill_offsets_are_at_most_a_second_old_and_never_ahead(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members:
        await fill(members, 40)
        old = await commit_all(members)
        began = time.monotonic()
        others = [one for one in members.members.values() if not one.is_serving]
        await until(lambda: all(committed(one.broker) == old for one in others))
        assert is_in_time(time.monotonic() - began, 1.2)
        await fill(members, 20)
        offsets = await commit_all(members)
        await members.kill(master(members).machine.me.name)
        await until(lambda: members.master is not None)
        found = committed(master(members).broker)
        assert all(low <= one <= high for low, one, high in zip(old, found, offsets, strict=True)), (
            old,
            found,
            offsets,
        )


async def test_topics_and_groups_go_over_with_their_settings_and_stay_deleted(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members:
        await fill(members, 4)
        broker = master(members).broker
        broker.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_max_times=7))
        broker.groups.put(SubscriptionGroupConfig(group_name="gone"))
        others = [one for one in members.members.values() if not one.is_serving]
        await until(lambda: all(one.broker.groups.get("gone") for one in others))
        broker.groups.delete("gone")
        await until(lambda: not any(one.broker.groups.get("gone") for one in others))
        await members.kill(master(members).machine.me.name)
        await until(lambda: members.master is not None)
        groups = master(members).broker.groups
        found = groups.get(GROUP)
        assert found is not None
        assert found.retry_max_times == 7
        assert groups.get("gone") is None
        topic = master(members).broker.topics.get("T")
        assert topic is not None
        assert topic.write_queue_nums == 4


@pytest.mark.parametrize("ends", ["kill", "handover"])
async def test_the_old_master_that_returns_takes_the_tables_of_the_new_one(tmp_path: Path, ends: str) -> None:
    """Its own offsets are newer than what went over: they must not come back with it."""
    async with member_set(tmp_path) as members:
        await fill(members, 40)
        old = master(members)
        name = old.machine.me.name
        await asyncio.sleep(0.7)
        await commit_all(members)
        if ends == "kill":
            await members.kill(name)
        else:
            await old.hand_over("", "a test")
        await until(lambda: members.master not in (None, old))
        next_master = master(members)
        next_master.broker.offsets.set_offset(GROUP, "T", 0, 1)
        if ends == "kill":
            await members.start(name)
        await until(lambda: members.in_sync == set("abc"))
        returned = members.members[name]
        await until(lambda: committed(returned.broker) == committed(next_master.broker), 5)
        assert committed(returned.broker)[0] == 1


async def test_a_user_that_was_deleted_while_a_member_was_down_does_not_come_back_with_it(tmp_path: Path) -> None:
    keys = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": "root", "password": "secret-of-root"}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "broker", "secretKey": "secret-of-broker"}),
    }

    def names(member: SetMember) -> set[str]:
        access = member.broker.access
        assert access is not None
        assert access.users is not None
        return set(access.users.users)

    async with member_set(tmp_path, 3, **keys) as members:
        first = master(members)
        assert first.broker.access is not None
        users = first.broker.access.users
        assert users is not None
        users.create("alice", "secret-of-alice")
        others = [one for one in members.members.values() if one is not first]
        await until(lambda: all("alice" in names(one) for one in others), 5)
        down = others[0].machine.me.name
        await members.kill(down)
        users.delete("alice")
        again = await members.start(down)
        await until(lambda: members.in_sync == set("abc") and "alice" not in names(again))
        await first.hand_over(down, "a test")
        await until(lambda: members.master is again)
        assert names(again) == {"root", "broker"}


async def test_topics_that_were_created_or_deleted_remain_so_after_a_kill_at_once(tmp_path: Path) -> None:
    """The answer comes once the members in sync have copied the change."""
    async with member_set(tmp_path) as members:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", master(members).broker.server.port))
        for name in ("Kept", "Gone"):
            made = CreateTopicRequestHeader(
                topic=name,
                default_topic="TBW102",
                read_queue_nums=3,
                write_queue_nums=3,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                order=False,
            )
            assert (await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made)).code == ResponseCode.SUCCESS
        gone = DeleteTopicRequestHeader(topic="Gone")
        assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, gone)).code == ResponseCode.SUCCESS
        await members.kill(master(members).machine.me.name)
        await until(lambda: members.master is not None)
        topics = master(members).broker.topics
        kept = topics.get("Kept")
        assert kept is not None
        assert kept.write_queue_nums == 3
        assert topics.get("Gone") is None
        await wire.close()
