"""Requests of every code to a nameserver, in an order in which each finds what it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.interop.walk.peer import Case

from cometmq.remoting.frame import JSON, ROCKETMQ

BROKER = {"brokerName": "walk-broker", "brokerAddr": "127.0.0.1:1", "clusterName": "WalkCluster", "brokerId": "0"}
DATA_VERSION = {"timestamp": 1700000000000, "counter": 7}


def registration(*names: str) -> bytes:
    """The body of REGISTER_BROKER (103)."""
    table = {
        name: {
            "topicName": name,
            "readQueueNums": 2,
            "writeQueueNums": 2,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
        for name in names
    }
    wrapper = {"dataVersion": DATA_VERSION, "topicConfigTable": table}
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


def namesrv_cases() -> Iterator[Case]:
    """For a nameserver that knows one broker of its own system, ``broker-a``."""
    kv = {"namespace": "WalkSpace", "key": "k"}
    yield Case("put", 100, {**kv, "value": "v"})
    yield Case("put no fields", 100)
    yield Case("get", 101, kv)
    yield Case("get unknown", 101, {"namespace": "WalkSpace", "key": "no"})
    yield Case("get unknown space", 101, {"namespace": "No", "key": "no"})
    yield Case("space", 219, kv)
    yield Case("space unknown", 219, {"namespace": "No"})
    yield Case("delete", 102, kv)
    yield Case("delete unknown", 102, {"namespace": "No", "key": "no"})
    yield Case("register", 103, {**BROKER, "haServerAddr": "127.0.0.1:2"}, registration("Walked", "Walked2"))
    yield Case("register again", 103, {**BROKER, "haServerAddr": "127.0.0.1:2"}, registration("Walked", "Walked2"))
    yield Case(
        "register slave",
        103,
        {**BROKER, "brokerId": "1", "brokerAddr": "127.0.0.1:3", "haServerAddr": "127.0.0.1:4"},
        registration("Walked"),
    )
    yield Case("register no fields", 103)
    yield Case("version known", 322, BROKER, json.dumps(DATA_VERSION).encode())
    yield Case("version other", 322, BROKER, json.dumps({**DATA_VERSION, "counter": 8}).encode())
    yield Case(
        "version of an unknown broker", 322, {**BROKER, "brokerAddr": "127.0.0.1:9"}, json.dumps(DATA_VERSION).encode()
    )
    for name, form in (("", JSON), (" binary", ROCKETMQ)):
        yield Case(f"route{name}", 105, {"topic": "Walked"}, serialize_type=form)
        yield Case(f"route unknown{name}", 105, {"topic": "WalkUnknown"}, serialize_type=form)
    yield Case("route standard", 105, {"topic": "Walked", "acceptStandardJsonOnly": "true"})
    yield Case("route old client", 105, {"topic": "Walked"}, version=300)
    yield Case("route no fields", 105)
    yield Case("clusters", 106)
    yield Case("configuration", 319)
    for code in (206, 304, 311, 312, 313):
        yield Case(f"{code}", code)
    yield Case("topics of a cluster", 224, {"cluster": "WalkCluster"})
    yield Case("topics of an unknown cluster", 224, {"cluster": "No"})
    yield Case("wipe", 205, {"brokerName": "walk-broker"})
    yield Case("wipe unknown", 205, {"brokerName": "No"})
    yield Case("route wiped", 105, {"topic": "Walked"})
    yield Case("add", 327, {"brokerName": "walk-broker"})
    yield Case("add unknown", 327, {"brokerName": "No"})
    yield Case("delete topic", 216, {"topic": "Walked2"})
    yield Case("delete topic of a cluster", 216, {"topic": "Walked", "clusterName": "WalkCluster"})
    yield Case("delete unknown topic", 216, {"topic": "WalkUnknown"})
    yield Case("update", 318, body=b"orderMessageEnable=true\n")
    yield Case("update without effect", 318, body=b"clusterTest=true\n")
    yield Case("update unknown", 318, body=b"noSuchKey=1\n")
    yield Case("update a path", 318, body=b"kvConfigPath=/elsewhere\n")
    yield Case("update nothing", 318)
    yield Case("leave slave", 104, {**BROKER, "brokerId": "1", "brokerAddr": "127.0.0.1:3"})
    yield Case("leave", 104, BROKER)
    yield Case("leave again", 104, BROKER)
