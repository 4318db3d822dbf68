"""What the five official clients sent, recorded: the core and Python answer and store the same.

A recording has the bytes of one connection as they arrived: each piece behind its length in four bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.proxy.plain.endpoints import Endpoints

from cometmq.core import CORE
from cometmq.remoting.bodies import TopicConfig

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.bin"))
KINDS = {"N": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION"}
REPEATS = 3


def pieces_of(recording: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(recording):
        end = at + 4 + int.from_bytes(recording[at : at + 4], "big")
        yield recording[at + 4 : end]
        at = end


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
async def test_a_recorded_connection_is_answered_as_by_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    pair = Endpoints(tmp_path)
    await pair.start(monkeypatch)
    run = path.stem.rpartition("-")[0]
    for side in pair.sides:
        for name, kind in KINDS.items():
            topic = TopicConfig(topic_name=name + run, read_queue_nums=2, write_queue_nums=2)
            topic.attributes = {"+message.type": kind}
            side.broker.topics.put(topic)
    for _ in range(REPEATS):
        connection = pair.open()
        for piece in pieces_of(path.read_bytes()):
            pair.send(connection, piece)
            await pair.settle(path.name)
    await pair.end()


def test_there_is_a_recording_of_each_client() -> None:
    clients = {path.stem.partition("-")[0] for path in RECORDINGS}
    assert clients == {"java", "python", "node", "rust"}
    assert {path.stem.rpartition("-")[0] for path in RECORDINGS} >= {"java-5_0_7-plain", "java-5_2_0-tls"}
