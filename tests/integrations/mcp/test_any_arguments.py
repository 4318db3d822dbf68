"""Arguments of any kind: every tool answers with a bounded text, and never with a fault of its own."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.integrations.mcp.conftest import Agent

from cometmq.client import Admin, Message
from cometmq.integrations.mcp.calls import TOOLS
from cometmq.integrations.mcp.options import MAX_RESULT_CHARS
from cometmq.testing import Cluster
from cometmq.visible import json_text

VALUES: list[Any] = [
    "orders", "workers", "broker-0", "DefaultCluster", "", " ", "*", "a || b", "%RETRY%workers", "\x00", "\ud800", "«»",
    "x" * 5000, "../x", "7F" * 16, "7F" * 28, "01" * 17, "0", "1", "-1", "NaN", "1e400", "true",
    0, 1, -1, 2**53, 2**63, 2**70, 1.5, float("inf"), True, False, None, [], ["orders"], {}, {"page": 1}, {"page": "x"},
    {"pageSize": 100, "page": 10**6}, {"startTime": 5, "endTime": 1}, {"a": {"b": {"c": []}}}, "RW", "FIFO", "Producer",
    '{"a": "b"}', "{", 1_764_000_000_000,
]  # fmt: skip


async def test_every_tool_survives_any_arguments(writer: Agent, admin: Admin, cluster: Cluster) -> None:
    await admin.create_group("workers")
    result = await cluster.send(Message("orders", b"x", keys=["k"], tags="a"))
    chosen = random.Random(7)
    values = [*VALUES, result.msg_id, result.offset_msg_id]
    for tool in TOOLS:
        names = [*tool.schema()["properties"], "unknown", "a b", ""]
        required = {"topicName": "orders", "groupName": "workers", "brokerName": "broker-0", "queueId": 0, "offset": 0}
        required |= {"msgId": result.msg_id, "body": "x"}
        for _ in range(25):
            arguments = {name: value for name, value in required.items() if name in names and chosen.random() < 0.8}
            for name in chosen.sample(names, chosen.randint(0, min(4, len(names)))):
                arguments[name] = chosen.choice(values)
            outcome = await writer.calls.run(tool.name, arguments)
            text = json_text(outcome)
            assert len(text) <= MAX_RESULT_CHARS
            assert "this is a bug" not in text, (tool.name, arguments, text)
            assert outcome.failed == ("error" in outcome)
            json.dumps(outcome, allow_nan=False).encode()
    assert "orders" in await admin.topics()
    assert "workers" in await admin.groups()
