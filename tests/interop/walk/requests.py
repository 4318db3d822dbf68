"""Fields of requests that the walk puts to both systems."""

from __future__ import annotations

TOPIC, GROUP, CLIENT, PRODUCERS = "Walk", "WalkGroup", "127.0.0.1@walk", "WalkProducers"
FAR_FUTURE = str(4_000_000_000_000)
HALF = {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
SUBSCRIBES = 1 << 2


def topic(name: str, *, perm: int = 6, queues: int = 2) -> dict[str, str]:
    """The fields of UPDATE_AND_CREATE_TOPIC (17)."""
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def send(name: str, queue_id: int = 0, **more: str) -> dict[str, str]:
    """The fields of SEND_MESSAGE (10)."""
    return {
        "producerGroup": PRODUCERS,
        "topic": name,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(queue_id),
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": f"TAGS\x01t\x02KEYS\x01k\x02UNIQ_KEY\x017F0000010000000000000000000000{queue_id:02d}\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
        **more,
    }


V2 = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "batch": "m",
}


def send_v2(name: str, queue_id: int = 0, **more: str) -> dict[str, str]:
    """The fields of SEND_MESSAGE_V2 (310)."""
    return {V2[key]: value for key, value in send(name, queue_id, **more).items()}


def pull(name: str, queue_id: int = 0, offset: int = 0, **more: str) -> dict[str, str]:
    """The fields of PULL_MESSAGE (11)."""
    return {
        "consumerGroup": GROUP,
        "topic": name,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(SUBSCRIBES),
        "commitOffset": "0",
        "suspendTimeoutMillis": "1000",
        "subscription": "*",
        "subVersion": "0",
        **more,
    }


def queue(name: str, queue_id: int = 0) -> dict[str, str]:
    """Topic and queue."""
    return {"topic": name, "queueId": str(queue_id)}
