"""The metrics of real members: each member's own view, before and after a handover."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

from tests.broker.member.sets import MemberSet, member_set, until
from tests.helpers.pace import Patience

from cometmq.testing.ports import free_port


async def scraped(port: int) -> dict[str, float]:
    """The samples of one member about failover, without the common labels."""
    url = f"http://127.0.0.1:{port}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
    found = re.findall(r'^cometmq_failover_(\w+)\{(?:[^}]*?(state="[^"]+"))?[^}]*\} (\S+)$', text, re.MULTILINE)
    return {f"{name}{label}": float(value) for name, label, value in found}


async def test_each_member_shows_its_view_also_after_a_handover(tmp_path: Path) -> None:
    ports = {name: free_port() for name in "abc"}

    def keys(name: str) -> dict[str, str]:
        return {"metricsExporterType": "PROM", "metricsPromExporterPort": str(ports[name])}

    async with member_set(tmp_path, 1) as members:
        await members.stop("a")  # in epoch 1; it stands for epoch 2
        for name in "abc":
            await members.start(name, bootstraps=False, clock=None, **keys(name))
        await until(lambda: members.master is not None and members.in_sync == set("abc"))
        await check(members, ports, epoch=2, elections={"a": 1, "b": 0, "c": 0})
        assert members.master is not None
        before = members.master.machine.me.name
        after = "b" if before == "a" else "a"
        await members.master.hand_over(after, "test")
        await until(lambda: members.master is not None and members.in_sync == set("abc"))
        await check(members, ports, epoch=3, elections={"a": 2, "b": 1, "c": 1})
        members.engines[after].is_cut = True
        await until(lambda: members.members[after].machine.view.trouble)
        assert (await scraped(ports[after]))["engine_reachable"] == 0
        for name in set("abc") - {after}:
            members.engines[name].is_cut = True
        members.store.document, members.store._document_version = None, 0  # the engine lost its disk
        for name in "abc":
            members.engines[name].is_cut = False
        await until(lambda: all(one.machine.next_step for one in members.members.values()))
        for name in "abc":  # the master becomes a slave first
            while 'statestate="halted"' not in (found := await scraped(ports[name])):
                await asyncio.sleep(0.05)
            assert found['statestate="halted"'] == 1, name
            assert found["is_master"] == 0


async def check(members: MemberSet, ports: dict[str, int], *, epoch: int, elections: dict[str, int]) -> None:
    """Compare each member's samples with its state."""
    await until(lambda: all(one.machine.confirmed == one.machine.log.end for one in members.members.values()))
    for name, member in members.members.items():
        await until(lambda: (monitor := member.broker.monitor) is not None and not monitor.not_ready)  # noqa: B023
        is_master = member is members.master
        wanted = {
            "epoch": epoch,
            "is_master": is_master,
            f'statestate="{"master" if is_master else "follower"}"': 1,
            'statestate="halted"': 0,
            "members": 3,
            "in_sync_members": 3,
            "refuses_messages": 0,
            "unconfirmed_bytes": 0,
            "engine_reachable": 1,
            "elections_total": elections[name],
        }
        patience = Patience(20)  # for what the member reads from the engine
        while not wanted.items() <= (found := await scraped(ports[name])).items() and not patience.is_over:
            await asyncio.sleep(0.05)
        assert {key: found.get(key) for key in wanted} == wanted, name
        assert found["confirmed_offset"] == member.machine.log.end
        assert found["last_change_timestamp_seconds"] > 1_600_000_000
