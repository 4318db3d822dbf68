"""Clusters in which something is wrong: brokers that are away, clocks, retention, nameservers that disagree."""

from __future__ import annotations

import asyncio
import datetime
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from tests.broker.conftest import small_config
from tests.cli.conftest import CommandLine, Result
from tests.helpers.waiting import until
from tests.namesrv.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.client.admin.broker_health import BrokerState, check_clock, check_retention, check_store
from cometmq.client.admin.finding import ADVICE, OK, PROBLEM
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.testing import VirtualClock


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[tuple[NameServer, VirtualClock]]:
    clock = VirtualClock()
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    server = NameServer(config, clock=clock)
    await server.start()
    yield server, clock
    await server.stop()


async def run(namesrv: str, *words: str) -> Result:
    return await asyncio.to_thread(CommandLine(namesrv), *words)


async def test_a_broker_that_was_there_a_while_ago_is_away(namesrv: tuple[NameServer, VirtualClock]) -> None:
    server, clock = namesrv
    wire = Wire(*await asyncio.open_connection("127.0.0.1", server.port))
    await wire.register(name="broker-a", broker_id=1)
    await wire.close()
    await until(lambda: not server.routes.cluster_info().broker_addr_table)
    clock.advance(12 * 60)
    status = await run(server.address, "cluster", "status", "-o", "json")
    assert status.code == 1
    (row,) = status.json()
    assert (row["broker"], row["state"]) == ("broker-a, slave 1", "away for 12 min: its connection closed")
    doctor = await run(server.address, "doctor", "--cluster", "-o", "json")
    assert doctor.code == 1
    assert {row["check"]: row["found"] for row in doctor.json()}["broker-a, slave 1 answers"] == row["state"]


async def test_nameservers_that_are_away_or_disagree_are_found(
    namesrv: tuple[NameServer, VirtualClock], tmp_path: Path
) -> None:
    server, _ = namesrv
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "other.json"))
    other = NameServer(config)
    await other.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", server.port))
    await wire.register(name="broker-a", address="127.0.0.1:1")
    both = f"{server.address};{other.address};127.0.0.1:1"
    checked = await run(both, "doctor", "--cluster", "--timeout", "2", "-o", "json")
    found = {(row["check"], row["state"]): row["found"] for row in checked.json()}
    assert found["nameservers agree", PROBLEM] == f"{other.address} does not know 127.0.0.1:1"
    assert ("nameserver 127.0.0.1:1", PROBLEM) in found
    assert found[f"nameserver {server.address}", OK] == "1 broker"
    await wire.close()
    await other.stop()


@pytest.mark.parametrize(
    ("table", "state", "words"),
    [
        ({"currentTimestamp": "100500"}, OK, "as here"),
        ({"currentTimestamp": "220000"}, ADVICE, "119 s ahead of this machine's clock"),
        ({"currentTimestamp": "90000"}, ADVICE, "10 s behind this machine's clock"),
        ({"bootTimestamp": "10000", "runtime": "[ 0 days, 0 hours, 1 minutes, 30 seconds ]"}, OK, "as here"),
        ({"bootTimestamp": "10000", "runtime": "[ 1 days, 0 hours, 1 minutes, 30 seconds ]"}, ADVICE, "24 h ahead"),
        ({}, ADVICE, "unknown"),
    ],
)
def test_clocks_are_compared(table: dict[str, str], state: str, words: str) -> None:
    finding = check_clock("b", BrokerState(table, asked_ms=100_000, answered_ms=101_000))
    assert finding.state == state
    assert finding.found.startswith(words)


@pytest.mark.parametrize(
    ("config", "state"),
    [
        ({"fileReservedTime": "72", "messageDelayLevel": "1s 5s 2h"}, OK),
        ({"fileReservedTime": "2", "messageDelayLevel": "1s 5s 2h"}, PROBLEM),
        ({"fileReservedTime": "72", "messageDelayLevel": "1s 30d"}, PROBLEM),
        ({"fileReservedTime": "24", "timerWheelEnable": "true", "timerMaxDelaySec": "259200"}, PROBLEM),
        ({"fileReservedTime": "72", "timerWheelEnable": "true", "timerMaxDelaySec": "2592000"}, OK),
        ({}, ADVICE),
    ],
)
def test_retention_is_compared_with_the_longest_delay_of_an_apache_broker(config: dict[str, str], state: str) -> None:
    assert check_retention("b", BrokerState({}, 0, 0), config).state == state
    if config:
        assert check_retention("b", BrokerState({"cometmqVersion": "1"}, 0, 0), config).state == OK


@pytest.mark.parametrize(("days", "state"), [(90, OK), (20, ADVICE)])
async def test_certificates_that_end_soon_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, state: str
) -> None:
    authority, now = trustme.CA(), datetime.datetime.now(datetime.UTC)
    issued = authority.issue_cert("127.0.0.1", not_before=now, not_after=now + datetime.timedelta(days=days, hours=1))
    (tmp_path / "server.pem").write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(tmp_path / "kv.json"),
        tls_server_cert_path=str(tmp_path / "server.pem"),
    )
    server = NameServer(config)
    await server.start()
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "true")
    monkeypatch.setenv("ROCKETMQ_TLS_TRUST_CERT_PATH", str(tmp_path / "ca.pem"))
    rows = (await run(server.address, "doctor", "--cluster", "-o", "json")).json()
    await server.stop()
    [row] = [row for row in rows if row["check"].startswith("certificate of nameserver")]
    assert (row["state"], row["found"]) == (state, f"expires in {days} days")


@pytest.mark.parametrize("missing", [0, 12])
@pytest.mark.parametrize("behind_ms", [0, 59_000, 7_200_000])
def test_a_store_ahead_of_the_clock_and_entries_without_a_message_are_found(behind_ms: int, missing: int) -> None:
    table = {"clockBehindStoreMs": str(behind_ms), "missingQueueEntries": str(missing)}
    found = {finding.check: finding for finding in check_store("b", BrokerState(table, 0, 0))}
    assert ("store times of b" in found) is (behind_ms > 60_000)
    assert ("queues of b" in found) is (missing > 0)
    if behind_ms > 60_000:
        assert "120 min" in found["store times of b"].found or "2 h" in found["store times of b"].found
    if missing:
        assert (found["queues of b"].state, "rebuild" in found["queues of b"].todo) == (PROBLEM, True)


async def test_a_broker_tells_that_its_store_is_ahead_of_its_clock_and_has_entries_without_a_message(
    namesrv: tuple[NameServer, VirtualClock], tmp_path: Path
) -> None:
    server, _ = namesrv
    right = round(time.time() * 1000)
    first = Broker(small_config(tmp_path, namesrv_addr=server.address), clock=VirtualClock(right + 10**11))
    await first.start()
    for body in ("a", "b", "c"):
        assert (await run(server.address, "produce", "orders", "--sharding-key", "k", "--body", body)).code == 0
    await first.stop()
    [units] = [path for path in (tmp_path / "store" / "consumequeue" / "orders").rglob("*") if path.is_file()]
    with open(units, "r+b") as file:
        place, size, _ = struct.unpack(">qiq", file.read(40)[20:])
        file.seek(20)
        file.write(bytes(20))
    with open(tmp_path / "store" / "commitlog" / f"{0:020}", "r+b") as log:
        log.seek(place)
        log.write(b"\xff" * size)
    here = await run(server.address, "doctor", "--data", str(tmp_path), "-o", "json")
    assert here.code == 1
    [stopped] = [row for row in here.json() if row["check"] == f"queues of {tmp_path / 'store'}"]
    assert f"1 of 1 queue, the first at offset 1 of orders/{units.parent.name}" in stopped["found"]
    broker = Broker(small_config(tmp_path, namesrv_addr=server.address), clock=VirtualClock(right))
    await broker.start()
    running = await run(server.address, "doctor", "--data", str(tmp_path), "-o", "json")
    assert not [row for row in running.json() if row["check"].startswith("queues of ")], "the store is in use"
    await run(server.address, "consume", "orders", "--from-beginning", "--max", "2")
    rows = (await run(server.address, "doctor", "--cluster", "-o", "json")).json()
    await broker.stop()
    found = {row["check"]: row for row in rows}
    assert "1157 days ahead" in found["store times of broker-a"]["found"]
    assert found["queues of broker-a"]["found"].endswith(": 1")
    here = await run(server.address, "doctor", "--data", str(tmp_path), "-o", "json")
    assert (
        "1157 days ahead" in {row["check"]: row for row in here.json()}[f"store times of {tmp_path / 'store'}"]["found"]
    )


async def test_an_address_of_another_broker_is_found(namesrv: tuple[NameServer, VirtualClock], tmp_path: Path) -> None:
    server, _ = namesrv
    broker = Broker(small_config(tmp_path, namesrv_addr=server.address))
    await broker.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", server.port))
    await wire.register(name="broker-b", address=f"localhost:{broker.server.port}")
    await wire.register(name="broker-c", address="nowhere.invalid:10911")
    rows = (await run(server.address, "doctor", "--cluster", "-o", "json")).json()
    await wire.close()
    await broker.stop()
    found = {row["check"]: row for row in rows if row["state"] == PROBLEM}
    assert "address of broker-a" not in {row["check"] for row in rows}
    assert "broker broker-a with id 0 responds" in found["address of broker-b"]["found"]
    assert "--advertise" in found["address of broker-b"]["todo"]
    assert "--advertise" in found["broker-c answers"]["todo"]
