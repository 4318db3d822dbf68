"""The compiled core takes exactly the plain sends that quotas leave, as Python does: same stores, same denials."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.broker.turn.side_by_side import SideBySide
from tests.broker.turn.test_plain_sends import fields

from cometmq.auth.quota.model import Limits, Subject
from cometmq.core import CORE
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")


def send(opaque: int, group: str, size: int, *, oneway: bool = False) -> bytes:
    return RemotingCommand(
        RequestCode.SEND_MESSAGE_V2,
        opaque,
        FLAG_ONEWAY if oneway else 0,
        "JAVA",
        ext_fields=fields(producerGroup=group, queueId=str(opaque % 4)),
        body=b"x" * size,
    ).encode()


def send_batch(opaque: int, group: str, messages: int) -> bytes:
    body = encode_batch(BatchPiece(0, b"%d" % number, "") for number in range(messages))
    ext = fields(producerGroup=group, queueId=str(opaque % 4), batch="true")
    return RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, opaque, 0, "JAVA", ext_fields=ext, body=body).encode()


QUOTAS: tuple[dict[str, Limits], ...] = (
    {},
    {"address:*": Limits(messages_in=40)},
    {"address:*": Limits(bytes_in=20_000)},
    {"address:127.0.0.1": Limits(messages_in=60, bytes_in=30_000, connections=2), "group:a": Limits(messages_in=10)},
    {"group:*": Limits(messages_in=25, bytes_in=9_000)},
    {"group:b": Limits(messages_in=0)},
    {"account:nobody": Limits(messages_in=0)},
)


@pytest.mark.parametrize("seed", range(3))
async def test_the_core_stores_and_denies_what_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    pair = SideBySide(tmp_path, connections=3)
    await pair.start(monkeypatch)
    opaque = 0
    for round_ in range(30):
        if round_ % 4 == 0:
            quotas = {Subject.parse(text): limits for text, limits in chance.choice(QUOTAS).items()}
            for side in pair.sides:
                side.broker.limiter.table.use(quotas)
        for _ in range(chance.randrange(1, 5)):
            data = b""
            for _ in range(chance.randrange(1, 50)):
                opaque += 1
                group = chance.choice("aaaab")
                if chance.random() < 0.1:
                    data += send_batch(opaque, group, chance.choice((1, 3, 40)))
                else:
                    data += send(opaque, group, chance.choice((1, 10, 500)), oneway=chance.random() < 0.1)
            pair.receive(chance.randrange(3), data)
        pair.end_round(round_)
        seconds = chance.choice((0.01, 0.3, 1.5))
        for side in pair.sides:
            side.clock.advance(seconds)
        pair.compare(round_)
    denials = [
        [(info.subject, info.denials, info.use) for info in side.broker.limiter.listed(each=True)]
        for side in pair.sides
    ]
    assert denials[0] == denials[1]
    await pair.stop()


async def test_within_its_quota_a_connection_is_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = SideBySide(tmp_path, connections=1)
    await pair.start(monkeypatch)
    limits = Limits(messages_in=1_000_000, bytes_in=1_000_000_000, connections=9)
    for side in pair.sides:
        side.broker.limiter.table.use({Subject.parse(text): limits for text in ("address:*", "group:*")})
    pair.receive(0, b"".join(send(at, "a", 10) for at in range(4)))  # Python opens the queues
    pair.end_round()

    def refuse(*_: object) -> None:
        raise AssertionError("Python handles what the core should take")

    with monkeypatch.context() as patched:
        patched.setattr(pair.compiled.broker.turn, "put", refuse)
        pair.receive(0, b"".join(send(at, "a", 10) for at in range(4, 34)))
        pair.end_round()
    await pair.stop()
