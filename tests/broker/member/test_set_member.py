"""Members of a set with real stores and sockets: elections, handovers, and what clients notice of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.broker.member.sets import MemberSet, bodies, lease_ms, member_set, until
from tests.broker.replication.following import connect

from cometmq.broker.failover.states import LEADING
from cometmq.broker.member.set_member import SetMember
from cometmq.client.producer.producer import Producer
from cometmq.client.send_result import SendStatus
from cometmq.message.message import Message
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import UpdateConsumerOffsetRequestHeader


async def test_a_set_is_founded_and_all_members_get_in_sync(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members:
        assert members.master is not None


class Load:
    """Sends numbered messages one after the other, and remembers which were acknowledged."""

    def __init__(self, members: MemberSet, *, senders: int = 4) -> None:
        self.acknowledged: list[bytes] = []
        self.failures: list[Exception] = []
        self._producer = Producer("load", instance=members.instance())
        self._senders = senders
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    async def __aenter__(self) -> Self:
        await self._producer.start()
        self._tasks = [asyncio.create_task(self._send(sender)) for sender in range(self._senders)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        await self._producer.close()

    async def _send(self, sender: int) -> None:
        number = 0
        while not self._is_over:
            body = b"%d-%d" % (sender, number)
            number += 1
            try:
                result = await self._producer.send(Message("T", body))
            except Exception as error:
                self.failures.append(error)
            else:
                if result.status is SendStatus.SEND_OK:
                    self.acknowledged.append(body)

    async def goes_on(self, count: int = 50) -> None:
        """Wait until so many more messages are acknowledged."""
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted)


def lost(load: Load, member: SetMember) -> set[bytes]:
    return set(load.acknowledged) - bodies(member).keys()


async def test_a_master_that_is_killed_is_replaced_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members:
        async with Load(members) as load:
            await load.goes_on()
            old = next(name for name, member in members.members.items() if member.is_serving)
            await members.kill(old)
            await load.goes_on()
            assert members.master is not None
            assert old not in members.in_sync
            await members.start(old)
            await until(lambda: members.in_sync == {"a", "b", "c"})
            await load.goes_on()
        assert not lost(load, members.master)
        end = members.master.broker.store.max_physical_offset
        await until(lambda: all(member.broker.store.readable_end == end for member in members.members.values()))
        for member in members.members.values():
            assert bodies(member) == bodies(members.master)


async def test_a_handover_fails_no_send_and_loses_nothing(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members, Load(members) as load:
        for _ in range(3):
            await load.goes_on()
            master = members.master
            assert master is not None
            await master.hand_over("", "a test asks for it")
            await load.goes_on()
            assert members.master not in (None, master)
            await until(lambda: members.in_sync == {"a", "b", "c"})
        assert not load.failures
        assert members.master is not None
        assert not lost(load, members.master)


async def test_a_master_that_is_cut_off_acknowledges_nothing_and_cuts_what_only_it_has(tmp_path: Path) -> None:
    async with member_set(tmp_path, slaveTimeout="500") as members:
        old = members.master
        assert old is not None
        name = old.machine.me.name
        async with Load(members, senders=1) as load:
            await load.goes_on()
            members.engines[name].is_cut = True
            old.broker.ha.cut_off()
            wire = await connect(old.broker)
            answers = [(await wire.send("T", b"only here %d" % number)).code for number in range(3)]
            assert ResponseCode.SUCCESS not in answers
            assert ResponseCode.FLUSH_SLAVE_TIMEOUT in answers
            await until(lambda: members.master not in (None, old))
            await load.goes_on()  # the old master refuses messages once nothing is confirmed for the time of a lease
            assert old.machine.state in LEADING
            offset = UpdateConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
            while (answer := await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset)).code == ResponseCode.SUCCESS:
                await asyncio.sleep(0.1)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert f"have confirmed nothing for {lease_ms() / 1000:g} s" in (answer.remark or "")
            members.engines[name].is_cut = False
            await until(lambda: members.in_sync == {"a", "b", "c"})
            await wire.close()
        assert members.master is not None
        assert not lost(load, members.master)
        end = members.master.broker.store.max_physical_offset
        await until(lambda: old.broker.store.readable_end == end)
        assert bodies(old) == bodies(members.master)
        assert not any(body.startswith(b"only here") for body in bodies(old))
        (parted,) = (tmp_path / name / "parted").iterdir()
        assert b"only here" in parted.read_bytes()


async def test_health_checks_are_answered_also_while_the_role_changes(tmp_path: Path) -> None:
    async with member_set(tmp_path, 2, metricsExporterType="PROM", metricsPromExporterPort="0") as members:
        answers: Counter[tuple[str, int]] = Counter()
        port = {name: urlsplit(member.monitoring.url).port for name, member in members.members.items()}

        async def status(name: str, path: str) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", port[name])
            writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
            head = await reader.readline()
            writer.close()
            return int(head.split()[1])

        is_over = False

        async def check() -> None:
            while not is_over:
                for name in members.members:
                    answers["/healthz", await status(name, "/healthz")] += 1
                    answers["/readyz", await status(name, "/readyz")] += 1
                await asyncio.sleep(0)

        for name in ("a", "b"):
            assert await status(name, "/readyz") == 200
        checking = asyncio.create_task(check())
        master = members.master
        assert master is not None
        await master.hand_over("", "a test asks for it")
        await until(lambda: members.master not in (None, master) and members.in_sync == {"a", "b"})
        assert not checking.done(), "a connection was refused"
        is_over = True
        await checking
        assert {code for path, code in answers if path == "/healthz"} == {200}
        assert answers["/readyz", 503]
