"""Life times that real clients set: a client of RocketMQ 4 over remoting and one of 5 over gRPC get what lives."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers.waiting import run_to_end
from tests.interop.clients import Client, Series
from tests.interop.five import programs
from tests.interop.five.tables import Endpoint, make_group, make_topic, send_a_probe, wait_until_ready

from cometmq.remoting.client import RemotingClient
from cometmq.testing import ProcessCluster, free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

GetClient = Callable[[str], Client]
HOUR_MS = "3600000"
PATIENCE_S = 150


async def test_clients_of_both_protocols_get_what_lives(clients: GetClient, tmp_path: Path) -> None:
    java = clients("java4")
    port = free_port("127.0.0.1")
    with ProcessCluster(broker_keys={"grpcServerPort": str(port)}) as cluster:
        endpoint = Endpoint(f"127.0.0.1:{port}", f"127.0.0.1:{cluster._ports[0]}", cluster.namesrv_address)
        await send_a_probe(endpoint)
        async with RemotingClient() as client:
            await make_topic(client, endpoint.broker, "Lived", "NORMAL,+expired.messages=dead-letter", 1)
            await make_group(client, endpoint.broker, "G5")
        await wait_until_ready(endpoint, ["Lived"])
        for body, ttl in (("a", "1"), ("b", HOUR_MS), ("c", "1"), ("d", "")):
            properties = {"COMETMQ_TTL_MS": ttl} if ttl else {}
            java.produce(endpoint.namesrv, Series("Lived", 2, body=body, properties=properties))
        sent = ["e", "1", "f", HOUR_MS, "g", "0"]
        command = [*programs.python("lives.py"), endpoint.address, "Lived", "G5", "6", *sent]
        program = run_to_end(command, PATIENCE_S, env={**os.environ, "HOME": str(tmp_path)})
        (line,) = [one for one in program.stdout.splitlines() if one.startswith('{"scenario"')] or [program.stderr]
        assert json.loads(line)["got"] == ["b-0", "b-1", "d-0", "d-1", "f", "g"]
        messages = java.consume(endpoint.namesrv, "Lived", "G4", 6, linger_ms=1_000)
        lived = [Series("Lived", 2, body=body).expected_at(number).body_sha256 for body in "bd" for number in (0, 1)]
        assert set(lived) < {message["bodySha256"] for message in messages}
        assert len(messages) == 6
        for group in ("G4", "G5"):
            dead = f"%DLQ%{group}"
            letters = java.read_topic(endpoint.namesrv, dead, 5)
            assert len(letters) == 5
            assert {letter["properties"]["COMETMQ_DEAD_REASON"] for letter in letters} == {"expired"}
