"""The KV configuration cannot be made to grow without end, and is written beside the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.namesrv.wire import Connect

import cometmq.namesrv.kv
from cometmq.namesrv.kv import KvConfig, KvError
from cometmq.namesrv.server import NameServer
from cometmq.remoting.command import RemotingCommand


def test_all_texts_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.namesrv.kv, "MAX_KV_CHARS", 100)
    kv = KvConfig(tmp_path / "kv.json")
    kv.put("n", "a", "v" * 90)
    with pytest.raises(KvError, match="maximum of 100 characters"):
        kv.put("n", "b", "v" * 20)
    kv.put("n", "a", "v" * 10)
    kv.put("n", "b", "v" * 70)
    kv.save(kv.staged)
    again = KvConfig(tmp_path / "kv.json")
    with pytest.raises(KvError, match="maximum of 100 characters"):
        again.put("m", "c", "v" * 20)
    again.delete("n", "b")
    again.put("m", "c", "v" * 20)
    assert again.get("m", "c") is None, "it is not on disk"
    again.saved(again.staged)
    assert again.get("m", "c") == "v" * 20


def test_namespaces_left_empty_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.namesrv.kv, "MAX_KV_ENTRIES", 3)
    kv = KvConfig(tmp_path / "kv.json")
    for number in range(3):
        kv.put(f"n{number}", "k", "v")
        kv.delete(f"n{number}", "k")
    with pytest.raises(KvError, match="maximum of 3 KV entries"):
        kv.put("n3", "k", "v")


class Held:
    """A disk that takes one write at a time, when the test says so, or refuses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes: list[bytes] = []
        self.go = threading.Semaphore(0)
        self.failing = False
        monkeypatch.setattr("cometmq.namesrv.kv.ConfigFile.save", lambda _file, content: self.save(content))

    def save(self, content: bytes) -> None:
        self.go.acquire(timeout=30)
        if self.failing:
            raise OSError("no space left")
        self.writes.append(content)


def put(number: int, value: str = "v") -> RemotingCommand:
    return RemotingCommand(code=100, ext_fields={"namespace": "n", "key": f"k{number}", "value": value})


GET = RemotingCommand(code=101, ext_fields={"namespace": "n", "key": "k0"})


async def test_others_are_answered_while_the_file_is_written_and_changes_of_a_moment_are_one_write(
    server: NameServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Held(monkeypatch)
    wires = [await connect() for _ in range(6)]
    puts = [asyncio.ensure_future(wires[0].ask(put(0)))]
    while server.kv.is_written:
        await asyncio.sleep(0)
    puts += [asyncio.ensure_future(wire.ask(put(number))) for number, wire in enumerate(wires[1:5], 1)]
    assert (await wires[5].ask(GET)).code == 22, "what is not on disk is not seen"
    assert not any(done.done() for done in puts)
    disk.go.release(2)
    assert [answer.code for answer in await asyncio.gather(*puts)] == [0] * 5
    assert len(disk.writes) == 2
    assert (await wires[5].ask(GET)).code == 0


async def test_a_write_that_fails_gives_up_what_was_staged_upon_it(
    server: NameServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Held(monkeypatch)
    disk.failing = True
    first, second = await connect(), await connect()
    puts = [asyncio.ensure_future(first.ask(put(0)))]
    while server.kv.is_written:
        await asyncio.sleep(0)
    puts.append(asyncio.ensure_future(second.ask(put(1))))
    while len(server.kv.staged["n"]) < 2:
        await asyncio.sleep(0)
    disk.go.release()
    assert [answer.code for answer in await asyncio.gather(*puts)] == [1, 1]
    assert (await first.ask(GET)).code == 22
    disk.failing = False
    disk.go.release()
    assert (await first.ask(put(2))).code == 0
    assert disk.writes == [b'{"configTable":{"n":{"k2":"v"}}}']
