"""Answers to POP beside those of a real Apache 5.5.0, recorded by ``exchange.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pop.exchange import exchange

from cometmq.testing import VirtualClock

_RECORDED = Path(__file__).with_name("exchange-5.5.0.jsonl")
_OWN_WORDS = {"pop of a bad SQL expression", "ack by a handle of one part", "ack by a handle without numbers"}
_OWN_WORDS |= {"ack without a handle", "change of an offset that is not there"}
"""Apache's words are a Java exception, or without the reason."""


def _comparable(line: dict[str, Any]) -> dict[str, Any]:
    line = json.loads(json.dumps(line))
    if line["step"] in _OWN_WORDS or line["code"] in (17, 210):
        line["remark"] = ""
    if line["step"] == "pop that is too late" or line["step"] == "ordered change to now":
        line["fields"] = {}
    return line


async def test_every_answer_is_that_of_apache(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)

    def now_ms() -> int:
        clock.advance(0.005)
        return clock.now_ms()

    found = [_comparable(line) for line in await exchange(wire, now_ms)]
    expected = [_comparable(json.loads(line)) for line in _RECORDED.read_text().splitlines()]
    assert found == expected
