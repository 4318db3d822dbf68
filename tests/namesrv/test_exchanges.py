"""Answers of Apache's nameserver 4.9.7, compared with ours: code, remark, fields and body are the same.

``exchanges.jsonl`` holds real requests with the real answers. The state that made an answer possible is
read off the answer and set up first, each time in an empty nameserver.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.namesrv.wire import Connect, Wire, topic

from cometmq import fastjson
from cometmq.namesrv.server import NameServer
from cometmq.options import no_effect
from cometmq.remoting.command import LANGUAGE_NAMES, RemotingCommand

EXCHANGES = [
    json.loads(line) for line in (Path(__file__).parent / "exchanges.jsonl").read_text(encoding="utf-8").splitlines()
]
KV_CODES = (101, 102, 219)
LIST_CODES = (206, 224)
NO_EFFECT = {"clusterTest=true\n": no_effect(["clusterTest"])}
"""Bodies of code 318 that change nothing here: the answer says so where Apache's has no remark."""


def _name(exchange: dict[str, Any]) -> str:
    return f"{exchange['scenario']}-{exchange['request']['header']['code']}-{exchange['answer']['header']['code']}"


def _request(exchange: dict[str, Any]) -> RemotingCommand:
    sent = exchange["request"]
    header = sent["header"]
    language = header.get("language")
    return RemotingCommand(
        code=header["code"],
        opaque=7,
        language=LANGUAGE_NAMES[language] if isinstance(language, int) else language,
        version=header["version"],
        ext_fields=header.get("extFields") or {},
        body=(sent.get("body_text") or "").encode(),
        serialize_type=1 if sent["serialize"] == "ROCKETMQ" else 0,
    )


async def _make_true(server: NameServer, wire: Wire, exchange: dict[str, Any]) -> None:
    """Bring the nameserver into a state of which the real answer is true."""
    request, answer = exchange["request"]["header"], exchange["answer"]
    code, fields = request["code"], request.get("extFields") or {}
    body = fastjson.loads(answer["body_text"]) if answer.get("body_text", "").startswith("{") else {}
    if code == 105 and body:
        queues = {queue["brokerName"]: queue for queue in body["queueDatas"]}
        for broker in body["brokerDatas"]:
            queue = queues[broker["brokerName"]]
            for broker_id, address in broker["brokerAddrs"].items():
                await wire.register(
                    name=broker["brokerName"],
                    cluster=broker["cluster"],
                    address=address,
                    broker_id=int(broker_id),
                    topics=topic(fields["topic"], queue["readQueueNums"], queue["perm"]),
                )
            if "0" not in map(str, broker["brokerAddrs"]):  # the master has left since
                await wire.register(
                    name=broker["brokerName"],
                    cluster=broker["cluster"],
                    address="127.0.0.1:1",
                    topics=topic(fields["topic"], queue["readQueueNums"], queue["perm"]),
                )
                header = {"brokerName": broker["brokerName"], "brokerAddr": "127.0.0.1:1", "brokerId": "0"}
                await wire.ask(RemotingCommand(code=104, ext_fields={**header, "clusterName": broker["cluster"]}))
    elif code in (106, 304):
        await wire.register(address="127.0.0.1:20911")
    elif code in LIST_CODES:
        names = {name: config for topic_name in body["topicList"] for name, config in topic(topic_name).items()}
        await wire.register(topics=names)
    elif code in (205, 327) and fields["brokerName"] == "broker-a":
        count = int(next(iter(answer["header"]["extFields"].values())))
        await wire.register(topics={f"T{n}": topic(f"T{n}")[f"T{n}"] for n in range(count)})
    elif code == 322 and body:
        await wire.register(
            name=fields["brokerName"],
            cluster=fields["clusterName"],
            address=fields["brokerAddr"],
            body=json.dumps({"topicConfigSerializeWrapper": {"dataVersion": body}}).encode(),
        )
    elif code == 219 and body:
        for key, value in body["table"].items():
            server.kv.put(fields["namespace"], key, value)
    elif code in KV_CODES and answer["header"]["code"] == 0:
        server.kv.put(fields["namespace"], fields["key"], (answer["header"].get("extFields") or {}).get("value", "v"))
    server.kv.saved(server.kv.staged)


def _comparable(text: str) -> Any:
    """JSON bodies as values, lists of names as sets."""
    value = fastjson.loads(text)
    if isinstance(value, dict) and "topicList" in value:
        value["topicList"] = set(value["topicList"])
    return value


@pytest.mark.parametrize("exchange", EXCHANGES, ids=_name)
async def test_answers_as_apache_does(server: NameServer, connect: Connect, exchange: dict[str, Any]) -> None:
    wire = await connect()
    await _make_true(server, wire, exchange)
    answer = await wire.ask(_request(exchange))
    expected = exchange["answer"]
    assert answer.code == expected["header"]["code"]
    ours_alone = NO_EFFECT.get(exchange["request"].get("body_text"))
    assert answer.remark == (ours_alone or expected["header"].get("remark"))
    assert answer.ext_fields == (expected["header"].get("extFields") or {})
    assert answer.serialize_type == (1 if expected["serialize"] == "ROCKETMQ" else 0)
    text = expected.get("body_text", "")
    if exchange["request"]["header"]["code"] == 319:
        ours = {line.partition("=")[0] for line in answer.body.decode().splitlines()}
        assert {"listenPort", "kvConfigPath", "configStorePath", "orderMessageEnable"} <= ours
    elif text:
        assert _comparable(answer.body.decode()) == _comparable(text)
    else:
        assert answer.body == b""


@pytest.mark.parametrize(("version", "standard"), [(409, True), (401, True), (400, False), (317, False), (121, False)])
async def test_routes_are_strict_json_only_for_clients_that_expect_it(
    connect: Connect, version: int, standard: bool
) -> None:
    wire = await connect()
    await wire.register(topics=topic("T"))
    answer = await wire.ask(RemotingCommand(code=105, version=version, ext_fields={"topic": "T"}))
    key = b'{"0":"' if standard else b'{0:"'
    expected = (
        b'{"brokerDatas":[{"brokerAddrs":' + key + b'127.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    assert answer.body == expected


async def test_an_unknown_code_is_answered(connect: Connect) -> None:
    wire = await connect()
    answer = await wire.ask(RemotingCommand(code=9999, opaque=5))
    assert (answer.code, answer.remark, answer.opaque) == (3, " request type 9999 not supported", 5)
