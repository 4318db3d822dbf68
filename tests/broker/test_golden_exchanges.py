"""Requests once put to a real Apache broker 4.9.7, put to ours: code, words and fields must agree."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from tests.broker.wire import Connect

from cometmq.broker.controller import Broker
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command

CODES = {10, 11, 12, 14, 15, 29, 30, 31, 32, 33, 34, 35, 36, 38, 41, 42, 45, 310, 320, 9999}

DIFFERENT = {
    "probe:pull-sql",
    "probe:pull-sql-bad",
    "probe:pull-bad-expression-type",
    "probe:hidden-pull-on-fast-port",
}
"""Recorded with enablePropertyFilter, and on another port."""

NAMED_FIELD = {"probe:send-v2-missing-fields", "probe:send-missing-topic", "probe:send-batch-empty"}
"""A required field is missing: same code, but our words name the field."""

JAVA_ERROR = re.compile(r"^(java|com|org)\.[\w.]+(Exception|Error)")
"""Words of Java's exceptions: ours say what is wrong instead, with the same code."""

NO_FIELDS: dict[str, str] = {}


def exchanges(
    frames: list[dict[str, Any]], scenarios: str
) -> list[tuple[str, RemotingCommand, RemotingCommand | None]]:
    """Scenario, request and answer of each exchange of clients with the broker, in the order seen."""
    answers = {frame["request_seq"]: frame for frame in frames if frame["direction"] == "response"}
    found = []
    for frame in frames:
        asked = frame["direction"] in ("request", "oneway") and frame["from"] != "broker" and frame["peer"] == "broker"
        if asked and re.match(scenarios, frame["scenario"]) and frame["code"] in CODES and "frame_hex" in frame:
            answer = answers.get(frame["seq"])
            if answer is not None or frame["direction"] == "oneway":
                found.append(
                    (
                        frame["scenario"],
                        decode_command(bytes.fromhex(frame["frame_hex"])),
                        None if answer is None else _answer(answer),
                    )
                )
    return found


def _answer(frame: dict[str, Any]) -> RemotingCommand:
    header = frame["header"]
    return RemotingCommand(
        code=header["code"], remark=header.get("remark"), ext_fields=header.get("extFields") or NO_FIELDS
    )


def _words(remark: str | None) -> str | None:
    return None if remark is None else re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", remark).strip()


def _agrees(answer: RemotingCommand, expected: RemotingCommand) -> bool:
    if answer.code != expected.code:
        return False
    if expected.remark is not None and JAVA_ERROR.match(expected.remark):
        return bool(answer.remark)
    return _words(answer.remark) == _words(expected.remark) and set(answer.ext_fields) == set(expected.ext_fields)


async def test_probes(
    broker: Broker, connect: Connect, golden_frames: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "randrange", lambda _: 1)  # as it was recorded
    broker.topics.put(TopicConfig(topic_name="WireProbed", read_queue_nums=2, write_queue_nums=2))
    wrong = []
    compared = 0
    wire = await connect()
    for number, (scenario, request, expected) in enumerate(exchanges(golden_frames, "probe:")):
        request.opaque = 1000 + number
        if expected is None:
            request.flag |= FLAG_ONEWAY
            wire.post(request)
            continue
        answer = await wire.ask(request)
        assert answer.serialize_type == request.serialize_type
        if scenario in NAMED_FIELD:
            assert answer.code == expected.code
            assert "missing required field" in str(answer.remark)
        elif scenario not in DIFFERENT:
            compared += 1
            if not _agrees(answer, expected):
                wrong.append(f"{scenario}: {answer}\n   expected {expected}")
    assert not wrong, "\n".join(wrong)
    assert compared >= 55


@pytest.mark.parametrize(
    "scenario",
    [
        "send-sync",
        "send-async",
        "send-batch",
        "send-bad-queue",
        "send-too-big",
        "send-properties-too-big",
        "send-oneway",
        "send-delay",
    ],
)
async def test_clients(broker: Broker, connect: Connect, golden_frames: list[dict[str, Any]], scenario: str) -> None:
    for name, queues in (("WireMade", 3), ("WirePushed", 2)):
        broker.topics.put(TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues))
    wire = await connect()
    compared = 0
    for number, (_, request, expected) in enumerate(exchanges(golden_frames, f"{scenario}(/.*)?$")):
        request.opaque = 1000 + number
        if expected is None:
            request.flag |= FLAG_ONEWAY
            wire.post(request)
        else:
            answer = await wire.ask(request)
            assert _agrees(answer, expected), f"{answer}\n   expected {expected}"
            compared += 1
    assert compared
