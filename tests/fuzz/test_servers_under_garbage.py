"""Requests of real clients, mutated at random (fixed seed, fixed budget), against a whole cluster.

Whatever arrives, the processes go on serving, answers stay frames, and nothing outside of the data
directory is touched. The seed of a failure is in its message.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cometmq.remoting.admin_headers import GetTopicsByClusterRequestHeader
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.remoting.headers import GetRouteInfoRequestHeader, to_ext
from cometmq.testing import Cluster

FRAMES = 3000
NASTY = [
    "", " ", "../x", "x/../../../../y", "a" * 128, "a" * 5000, "-1", "9223372036854775807", "9223372036854775808",
    "1e9", "NaN", "null", "true", "%RETRY%../x", "%RETRY%%RETRY%g", "%DLQ%", "\x00", "\x01\x02", "主题", "\ud800", "{",
    '"',
]  # fmt: skip
SHUTS_DOWN_SERVICE = {RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.UPDATE_BROKER_CONFIG}


def mutated(rng: random.Random, frame: bytes) -> bytes:
    """One frame with a few fields, or a few bytes, changed."""
    if rng.random() < 0.7:
        command = decode_command(frame)
        fields = dict(command.ext_fields)
        for _ in range(rng.randint(1, 3)):
            choice = rng.random()
            if fields and choice < 0.6:
                value = rng.choice(NASTY)
                fields[rng.choice(list(fields))] = value.encode("utf-8", "replace").decode()
            elif fields and choice < 0.8:
                fields.pop(rng.choice(list(fields)))
            elif choice < 0.9:
                command.body = rng.randbytes(rng.randint(0, 300))
            else:
                command.body = command.body[: rng.randint(0, max(1, len(command.body)))]
        command.ext_fields = fields
        return command.encode()
    data = bytearray(frame)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(data))
        if rng.random() < 0.7:
            data[at] = rng.randrange(256)
        else:
            del data[at : at + rng.randint(1, 4)]
        if not data:
            return b"\0"
    return bytes(data)


async def throw(address: str, frames: list[bytes]) -> None:
    """Send frames on one connection after the other, as many on each as it takes, and check what comes back."""
    host, port = address.rsplit(":", 1)
    waiting = list(frames)
    while waiting:
        reader, writer = await asyncio.open_connection(host, int(port))
        batch, waiting = waiting[:20], waiting[20:]
        decoder = FrameDecoder()
        with suppress(ConnectionError):
            for frame in batch:
                writer.write(frame)
            await writer.drain()
            writer.write_eof()
            while data := await asyncio.wait_for(reader.read(1 << 16), 60):
                for answer in decoder.feed(data):
                    decode_command(answer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def names_below(path: Path) -> set[str]:
    return {str(entry.relative_to(path)) for entry in path.rglob("*")}


async def test_mutated_requests_of_real_clients_never_end_a_server(
    golden_frames: list[dict[str, Any]], tmp_path: Path
) -> None:
    requests = [
        bytes.fromhex(line["frame_hex"])
        for line in golden_frames
        if line["direction"] != "response" and "frame_hex" in line and line["code"] not in SHUTS_DOWN_SERVICE
    ]
    seed = 20_260
    rng = random.Random(seed)
    data = tmp_path / "inside" / "deep" / "data"
    data.mkdir(parents=True)
    async with Cluster(data=data) as cluster:
        broker = cluster.brokers[0].address
        known = to_ext(GetRouteInfoRequestHeader(topic="TBW102"))
        for target in (broker, cluster.namesrv_address):
            await throw(target, [mutated(rng, rng.choice(requests)) for _ in range(FRAMES // 2)])
        async with asyncio.timeout(60):
            route = await ask(cluster.namesrv_address, RequestCode.GET_ROUTEINFO_BY_TOPIC, known)
            topics = await ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG, {})
            cluster_topics = to_ext(GetTopicsByClusterRequestHeader(cluster="DefaultCluster"))
            await ask(cluster.namesrv_address, RequestCode.GET_TOPICS_BY_CLUSTER, cluster_topics)
        assert route.code in (0, 17), f"seed {seed}"
        assert topics.code == 0, f"seed {seed}: {topics.remark}"
        await cluster.restart_broker(0)
        again = await ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG, {})
        assert again.code == 0, f"seed {seed}"
    outside = {name for name in names_below(tmp_path) if not name.startswith("inside/deep/data")}
    assert outside == {"inside", "inside/deep"}, f"seed {seed}"
    for name in names_below(data):
        assert len(Path(name).name) <= 127, f"seed {seed}"


async def ask(address: str, code: int, ext: dict[str, str]) -> RemotingCommand:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(RemotingCommand(code=code, opaque=5, ext_fields=ext).encode())
    decoder = FrameDecoder()
    try:
        while True:
            data = await reader.read(1 << 16)
            assert data, "the server closed the connection"
            if frames := decoder.feed(data):
                return decode_command(frames[0])
    finally:
        writer.close()


@pytest.mark.parametrize("name", ["../x", "x/../../../../y", "", "a" * 128, "%RETRY%../../x"])
async def test_no_name_from_outside_becomes_a_path(name: str, tmp_path: Path) -> None:
    data = tmp_path / "inside" / "data"
    data.mkdir(parents=True)
    async with Cluster(data=data) as cluster:
        broker = cluster.brokers[0].address
        send = {"a": "g", "b": name, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
        topic = {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        heartbeat = b'{"clientID":"c","consumerDataSet":[{"groupName":"%s"}],"producerDataSet":[]}' % name.encode()
        pull = {
            "consumerGroup": name, "topic": "TBW102", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        group = b'{"groupName":"%s"}' % name.encode()
        for command in (
            RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields=send, body=b"x"),
            RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=topic),
            RemotingCommand(code=RequestCode.HEART_BEAT, body=heartbeat),
            RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=pull),
            RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group),
        ):
            command.opaque = 9
            await throw(broker, [command.encode()])
        assert (await ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG, {})).code == 0
    assert {entry for entry in names_below(tmp_path) if not entry.startswith("inside/data")} == {"inside"}
    assert not [entry for entry in names_below(data) if entry.endswith(("/x", "/y")) or "a" * 128 in entry]
