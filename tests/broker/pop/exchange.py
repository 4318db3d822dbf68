"""One exchange of POP, the same against any broker: what is asked, and the answers without times and addresses.

``python -m tests.broker.pop.exchange HOST:PORT`` prints the answers of a real broker, whose recording stands beside.
The steps that wait for time are left out: they are in the tests on the virtual clock and in ``tests/interop``.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.broker.pop.popping import Popper, pop_command
from tests.broker.wire import Wire, records
from tests.helpers.waiting import real_time

from cometmq.message.pop_info import ReceiptHandle
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand

Line = dict[str, Any]
_TIME = re.compile(r"\b1[67]\d{11}\b")
_NOT_SET = "not set any response code"
_ADDRESS = re.compile(r"/127\.0\.0\.1:\d+")


def shown(name: str, answer: RemotingCommand) -> Line:
    """An answer without what differs from run to run."""
    fields = {key: _TIME.sub("TIME", value) for key, value in sorted(answer.ext_fields.items())}
    if fields.get("reviveQid") != "999":
        fields.pop("reviveQid", None)  # any of the queues of Apache's revive topic
    if answer.code not in (0, 19, 210) or fields.get("popTime") == "0":
        fields = {key: value for key, value in fields.items() if value not in ("0", "false")}  # errors have zeros there
    remark = answer.remark if answer.remark != _NOT_SET else None
    remark = None if remark is None else _ADDRESS.sub("/ADDRESS", remark.split("\n")[0])
    line: Line = {"step": name, "code": answer.code, "remark": remark, "fields": fields}
    if answer.body and answer.body[:1] == b"{":
        line["body"] = json.loads(answer.body)
    elif answer.body:
        line["messages"] = [
            (r.topic, r.queue_id, r.queue_offset, r.body.decode(), r.reconsume_times) for r in records(answer)
        ]
    return line


async def exchange(wire: Wire, now_ms: Callable[[], int]) -> list[Line]:
    """Ask everything; the broker has neither topics nor groups of these names."""
    lines: list[Line] = []

    async def ask(name: str, code: int, fields: dict[str, Any], body: bytes = b"") -> RemotingCommand:
        ext = {key: str(value) for key, value in fields.items()}
        answer = await wire.ask(wire.command(code, None, body, ext=ext))
        lines.append(shown(name, answer))
        return answer

    async def pop(name: str, **fields: Any) -> RemotingCommand:
        fields = {"topic": "Gold", "consumer_group": "golden"} | fields
        answer = await wire.ask(pop_command(wire, now_ms(), **fields))
        lines.append(shown(name, answer))
        return answer

    for topic in ("Gold", "GoldOrder"):
        await ask(
            "",
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": 2,
                "writeQueueNums": 2,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": "false",
            },
        )
    lines.clear()
    popper = Popper(wire, None, "golden", "Gold")
    await pop("pop of an unknown topic", topic="Nowhere")
    await pop("pop that is too late", born_time=now_ms() - 2_000)
    await pop("pop of 33 messages", max_msg_nums=33)
    await pop("pop of a queue that is not there", queue_id=2)
    await pop("pop of a bad SQL expression", exp_type="SQL92", exp="a >> 1")
    await pop("pop with a bad expression of tags", exp="||")
    await pop("pop of an empty topic", queue_id=0)
    for n in range(3):
        await wire.send("Gold", b"m%d" % n, queue_id=0, properties=f"TAGS\x01T{n}")
    peeked = {"consumerGroup": "golden", "topic": "Gold", "queueId": 0, "maxMsgNums": 2}
    await ask("peek", 200052, peeked)
    waiting = {"consumerGroup": "golden", "topic": "Gold", "queueId": 0, "pollTime": 0, "bornTime": now_ms()}
    await ask("notification with messages", 200054, waiting)
    await ask("notification of an unknown topic", 200054, waiting | {"topic": "Nowhere"})
    first = await pop("pop of two of one queue", queue_id=0, max_msg_nums=2)
    popped = int(first.ext_fields["popTime"])
    await pop("pop of the rest by a tag", queue_id=0, exp="T2")
    await pop("pop when all is handed out", queue_id=0)
    await ask("notification without messages", 200054, waiting)
    await ask(
        "peek without messages", 200052, {"consumerGroup": "golden", "topic": "Gold", "queueId": 0, "maxMsgNums": 2}
    )
    await ask("polling info", 200055, {"consumerGroup": "golden", "topic": "Gold", "queueId": 0})
    handle = ReceiptHandle(0, popped, 60_000, 0, "0", "broker-a", 0, 0)
    ack = {"consumerGroup": "golden", "topic": "Gold", "queueId": 0, "extraInfo": handle.encode(), "offset": 0}
    await ask("ack", 200051, ack)
    await ask("ack again", 200051, ack)
    await ask("ack of an offset that is not there", 200051, ack | {"offset": 99})
    await ask("ack of the offset behind the last", 200051, ack | {"offset": 3})
    await ask("ack of a negative offset", 200051, ack | {"offset": -1})
    await ask("ack of an unknown topic", 200051, ack | {"topic": "Nowhere"})
    await ask("ack of a queue that is not there", 200051, ack | {"queueId": 2})
    await ask("ack by a handle of one part", 200051, ack | {"extraInfo": "0"})
    await ask("ack by a handle without numbers", 200051, ack | {"extraInfo": "a b c d e f g h"})
    await ask("ack without a handle", 200051, ack | {"extraInfo": ""})
    change = ack | {"offset": 1, "invisibleTime": 30_000}
    await ask("change", 200053, change)
    await ask("change by the old handle", 200053, change)
    await ask("change of an offset that is not there", 200053, change | {"offset": 99})
    await ask("change of an unknown topic", 200053, change | {"topic": "Nowhere"})
    await ask("change of a queue that is not there", 200053, change | {"queueId": 2})
    await ask("batch ack without a body", 200151, {})
    await ask("batch ack of nothing", 200151, {}, b'{"brokerName":"broker-a","acks":[]}')
    one = {"c": "golden", "t": "Gold", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": popped, "it": 60_000, "b": "AQ=="}
    await ask("batch ack", 200151, {}, json.dumps({"brokerName": "broker-a", "acks": [one]}).encode())
    wrong = {"brokerName": "broker-a", "acks": [one | {"t": "Nowhere"}]}
    await ask("batch ack of an unknown topic", 200151, {}, json.dumps(wrong).encode())
    del popper

    for n in range(3):
        await wire.send("GoldOrder", b"o%d" % n, queue_id=1)
    order = {"topic": "GoldOrder", "order": True, "max_msg_nums": 2}
    first = await pop("ordered pop", **order, attempt_id="a1")
    popped = int(first.ext_fields["popTime"])
    await pop("ordered pop of a locked queue", **order, attempt_id="a2")
    await real_time(0.01)
    again = await pop("ordered pop of the same attempt", **order, attempt_id="a1")
    popped = int(again.ext_fields["popTime"])
    handle = ReceiptHandle(0, popped, 60_000, 999, "0", "broker-a", 1, 0)
    ack = {"consumerGroup": "golden", "topic": "GoldOrder", "queueId": 1, "extraInfo": handle.encode(), "offset": 0}
    await ask("ordered ack", 200051, ack)
    await pop("ordered pop after one of two acks", **order, attempt_id="a3")
    old = handle._replace(pop_time=popped - 1_000)
    await ask("ordered ack of another pop time", 200051, ack | {"extraInfo": old.encode(), "offset": 1})
    await pop("ordered pop after an ack that does not count", **order, attempt_id="a4")
    change = ack | {"offset": 1, "invisibleTime": 0}
    await ask("ordered change to now", 200053, change)
    await real_time(0.05)
    again = await pop("ordered pop once more", **order, attempt_id="a5")
    handle = handle._replace(pop_time=int(again.ext_fields.get("popTime", 0)))
    for offset in (1, 2):
        await ask(f"ordered ack of {offset}", 200051, ack | {"extraInfo": handle.encode(), "offset": offset})
    offset_of = {"consumerGroup": "golden", "topic": "GoldOrder", "queueId": 1}
    await ask("offset of the group after all acks", 14, offset_of)
    await ask("offset of the group of plain pops", 14, {"consumerGroup": "golden", "topic": "Gold", "queueId": 0})

    mode = {"topic": "Gold", "consumerGroup": "golden", "mode": "POP", "popShareQueueNum": 0}
    await ask("mode of a retry topic", 401, {}, json.dumps(mode | {"topic": "%RETRY%golden"}).encode())
    await ask("mode", 401, {}, json.dumps(mode).encode())
    return lines


async def main(address: str) -> None:
    host, _, port = address.partition(":")
    wire = Wire(*await asyncio.open_connection(host, int(port)))
    for line in await exchange(wire, lambda: time.time_ns() // 1_000_000):
        print(json.dumps(line))
    await wire.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
