"""``cometmq quota`` against two brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.broker.conftest import small_config
from tests.cli.conftest import CommandLine, Result

from cometmq.broker.controller import Broker
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[list[Broker]]:
    nameserver = NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv")))
    await nameserver.start()
    found = [
        Broker(small_config(tmp_path / name, broker_name=name, namesrv_addr=nameserver.address)) for name in ("a", "b")
    ]
    for broker in found:
        await broker.start()
    yield found
    for broker in found:
        await broker.stop()
    await nameserver.stop()


@pytest.fixture
def run(brokers: list[Broker]) -> Run:
    command = CommandLine(brokers[0].config.namesrv_addr)

    async def in_thread(*arguments: str) -> Result:
        return await asyncio.to_thread(command, *arguments)

    return in_thread


async def test_a_quota_from_its_first_to_its_last_day(run: Run, brokers: list[Broker]) -> None:
    done = await run("quota", "set", "address:127.0.0.1/32", "--messages-in", "2k", "--bytes-in", "5M")
    assert (done.code, done.out) == (0, ""), done.err
    done = await run(
        "quota", "set", "address:127.0.0.1", "--bytes-in", "none", "--messages-out", "500", "--topic-count", "3"
    )
    assert done.code == 0, done.err
    for broker in brokers:
        (quota,) = broker.limiter.table.quotas.values()
        assert quota.limits.given() == {"messagesIn": 2_000, "messagesOut": 500, "topics": 3}
    assert (await run("produce", "T", "--body", "hello")).code == 0
    listed = await run("quota", "list", "-o", "json")
    rows = json.loads(listed.out)
    assert {row["broker"] for row in rows} == {broker.address for broker in brokers}
    assert {row["subject"] for row in rows} == {"address:127.0.0.1"}
    assert sum(row["use"].get("topics", 0) for row in rows) >= 1
    table = await run("quota", "list")
    assert "address:127.0.0.1" in table.out
    assert "of 2,000" in table.out
    assert "Bytes/s in" not in table.out, "no column for what nobody limits"
    shown = await run("quota", "show", "address:127.0.0.1", "--server", brokers[0].address)
    assert "of 500" in shown.out
    each = await run("quota", "list", "--each", "-o", "jsonl")
    assert each.code == 0
    assert (await run("quota", "delete", "address:127.0.0.1")).code == 2, "a script confirms"
    assert (await run("quota", "delete", "address:127.0.0.1", "--yes")).code == 0
    assert not any(broker.limiter.is_active for broker in brokers)
    gone = await run("quota", "show", "address:127.0.0.1")
    assert gone.code == 1
    assert "address:127.0.0.1 has no quota" in gone.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("host:a", "--topic-count", "1"), "is not a valid quota subject"),
        (("address:10.0.0.0/99", "--topic-count", "1"), "neither an address nor a network"),
        (("group:g", "--topic-count", "many"), "is not a number"),
        (("group:g", "--topic-count", "-5"), "is not a number"),
        (("group:g",), "give a limit"),
    ],
)
def test_wrong_use_is_told_before_anything_is_asked(arguments: tuple[str, ...], words: str) -> None:
    result = CommandLine("127.0.0.1:1")("quota", "set", *arguments)
    assert result.code == 2
    assert words in result.err
