"""New certificates and new accounts at the gRPC port, under load: no call fails."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import grpc
import pytest
from tests.helpers.waiting import answered, until
from tests.proxy.client import Client
from tests.proxy.test_access import ACL_1, ALICE, signed

import cometmq.auth.access_control
from cometmq.auth.yaml_file import dump_yaml, read_yaml
from cometmq.client.admin import Admin
from cometmq.client.instance import ClientInstance
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.tls.own_authority import Authority
from cometmq.testing import Cluster

ROUNDS = 3
BOB = {**ACL_1[0], "accessKey": "bob-account", "secretKey": "secret-of-bob"}


def put(path: Path, content: bytes) -> None:
    """Replace a file as those who rotate do."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.chmod(0o600)
    os.replace(fresh, path)


class Load:
    """Sends over a channel that stays, and over a new one for each message."""

    def __init__(self, address: str, trusted: bytes) -> None:
        self._address = address
        self._credentials = grpc.ssl_channel_credentials(trusted)
        self.sent = 0
        self._stops = False

    async def send(self, headers: dict[str, str]) -> int:
        async with grpc.aio.secure_channel(self._address, self._credentials) as channel:
            return await self._send(channel, headers)

    async def _send(self, channel: grpc.aio.Channel, headers: dict[str, str]) -> int:
        client = Client(channel)
        client.metadata = (*client.metadata, *headers.items())
        code: int = (await client.send("Ours", b"x" * 2_000)).status.code
        return code

    async def run(self, *, stays: bool) -> None:
        async with grpc.aio.secure_channel(self._address, self._credentials) as channel:
            while not self._stops:
                assert (await self._send(channel, ALICE) if stays else await self.send(ALICE)) == Code.OK
                self.sent += 1

    def stop(self) -> None:
        self._stops = True


async def until_sent(load: Load, more: int) -> None:
    enough = load.sent + more
    await until(lambda: load.sent >= enough)


async def test_certificates_and_accounts_change_under_load_and_no_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.auth.access_control, "ACL_LOOK_SECONDS", 0.05)
    async with Cluster(data=tmp_path, grpc=True, tls=True, accounts=ACL_1) as cluster:
        async with Admin(instance=ClientInstance(cluster.namesrv_address, security=cluster.security)) as admin:
            await admin.create_topic("Ours")
        directory = tmp_path / "security"
        authority = Authority.new("new authority", 1)
        trusted = (directory / "ca.pem").read_bytes() + authority.issued.certificate
        host, port = cluster.grpc_address.rsplit(":", 1)
        load = Load(cluster.grpc_address, trusted)
        running = [asyncio.create_task(load.run(stays=number % 2 == 0)) for number in range(4)]
        shown = {await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))}
        assert await load.send(signed("bob-account", "secret-of-bob")) == Code.UNAUTHORIZED
        for number in range(ROUNDS):
            issued = authority.issue("new server", ("127.0.0.1", "localhost"), 1)
            put(directory / "server.pem", issued.certificate + issued.key)
            accounts = read_yaml(directory / "plain_acl.yml")
            accounts["accounts"] = [one for one in accounts["accounts"] if one["accessKey"] != "bob-account"]
            if number != ROUNDS - 1:
                accounts["accounts"].append(BOB | {"secretKey": f"secret-{number}-of-bob"})
            put(directory / "plain_acl.yml", dump_yaml(accounts))
            await until_sent(load, 20)
            shown.add(await asyncio.to_thread(ssl.get_server_certificate, (host, int(port))))
            expected = Code.UNAUTHORIZED if number == ROUNDS - 1 else Code.OK
            headers = signed("bob-account", f"secret-{number}-of-bob")

            async def is_as_expected(headers: dict[str, str] = headers, expected: Code = expected) -> bool:
                return await load.send(headers) == expected

            await answered(is_as_expected)
        load.stop()
        await asyncio.gather(*running)
        assert len(shown) == ROUNDS + 1
