"""Requests of every code to a broker, in an order in which each finds what it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.interop.walk.peer import Case
from tests.interop.walk.requests import (
    CLIENT,
    FAR_FUTURE,
    GROUP,
    HALF,
    PRODUCERS,
    TOPIC,
    pull,
    queue,
    send,
    send_v2,
    topic,
)

from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.remoting.frame import JSON, ROCKETMQ

HEARTBEAT = json.dumps(
    {
        "clientID": CLIENT,
        "consumerDataSet": [
            {
                "groupName": GROUP,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [
                    {
                        "topic": TOPIC,
                        "subString": "*",
                        "tagsSet": [],
                        "codeSet": [],
                        "subVersion": 1,
                        "expressionType": "TAG",
                        "classFilterMode": False,
                    }
                ],
            }
        ],
        "producerDataSet": [{"groupName": PRODUCERS}],
    }
).encode()
GROUP_CONFIG = json.dumps(
    {
        "groupName": GROUP,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    }
).encode()
QUEUES = [{"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}]
LOCK = json.dumps({"consumerGroup": GROUP, "clientId": CLIENT, "mqSet": QUEUES}).encode()
BATCH = encode_batch([BatchPiece(0, b"one", ""), BatchPiece(0, b"two", "")])


def broker_cases() -> Iterator[Case]:
    """For a broker that has nothing yet."""
    group, offsets = {"consumerGroup": GROUP}, {"consumerGroup": GROUP, **queue(TOPIC)}
    yield Case("topic", 17, topic(TOPIC))
    yield Case("topic read only", 17, topic("WalkNoWrite", perm=4))
    yield Case("topic write only", 17, topic("WalkNoRead", perm=2))
    yield Case("topic bad name", 17, topic("a b"))
    yield Case("topic empty name", 17, topic(""))
    yield Case("topic long name", 17, topic("x" * 200))
    yield Case("topic system", 17, topic("DefaultCluster"))
    yield Case("topic no fields", 17)
    yield Case("group", 200, body=GROUP_CONFIG)
    yield Case("group no body", 200)
    yield Case("topics before the first heartbeat", 21)
    yield Case("heartbeat", 34, body=HEARTBEAT)
    yield Case("topics after the first heartbeat", 21)
    yield Case("heartbeat again", 34, body=HEARTBEAT)
    yield Case("heartbeat no body", 34)
    for code, fields in ((10, send), (310, send_v2)):
        yield Case(f"send {code}", code, fields(TOPIC), b"body")
        yield Case(f"send queue 1 {code}", code, fields(TOPIC, 1), b"body")
        yield Case(f"send bad queue {code}", code, fields(TOPIC, 9), b"body")
        yield Case(f"send random queue {code}", code, fields("WalkOne", -1, defaultTopicQueueNums="1"), b"body")
        yield Case(f"send nothing {code}", code, fields(TOPIC), b"")
        yield Case(f"send bad name {code}", code, fields("a b"), b"body")
        yield Case(f"send to a system topic {code}", code, fields("SCHEDULE_TOPIC_XXXX"), b"body")
        yield Case(f"send to the half topic {code}", code, fields("RMQ_SYS_TRANS_HALF_TOPIC"), b"body")
        yield Case(f"send to cluster topic {code}", code, fields("DefaultCluster"), b"body")
        yield Case(f"send not allowed {code}", code, fields("WalkNoWrite"), b"body")
        yield Case(f"send made {code}", code, fields(f"WalkMade{code}"), b"body")
        yield Case(f"send made of nothing {code}", code, fields(f"WalkOdd{code}", defaultTopic="NoSuch"), b"body")
        yield Case(f"send retry {code}", code, fields(f"%RETRY%{GROUP}"), b"body")
        yield Case(f"send retry unknown {code}", code, fields("%RETRY%WalkUnknown"), b"body")
        yield Case(f"send delayed {code}", code, fields(TOPIC, properties="DELAY\x0118\x02"), b"body")
        yield Case(
            f"send too large properties {code}", code, fields(TOPIC, properties="k\x01" + "x" * 33000 + "\x02"), b"body"
        )
        yield Case(f"send no fields {code}", code, {}, b"body")
        yield Case(
            f"send half {code}",
            code,
            fields(TOPIC, sysFlag="4", properties="".join(f"{a}\x01{b}\x02" for a, b in HALF.items())),
            b"body",
        )
        yield Case(f"send binary {code}", code, fields(TOPIC), b"body", ROCKETMQ)
    yield Case("batch", 320, send_v2(TOPIC, batch="true", properties=""), BATCH)
    yield Case("batch retry", 320, send_v2(f"%RETRY%{GROUP}", batch="true", properties=""), BATCH)
    yield Case("batch empty", 320, send_v2(TOPIC, batch="true", properties=""), b"")
    yield Case(
        "reply to nobody", 325, send_v2(TOPIC, properties="MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01nobody\x02"), b"body"
    )
    yield Case("reply without address", 325, send_v2(TOPIC, properties=""), b"body")
    yield Case(
        "reply 324",
        324,
        {
            **send(TOPIC, properties="REPLY_TO_CLIENT\x01nobody\x02"),
            "bornHost": "127.0.0.1:1",
            "storeHost": "127.0.0.1:1",
            "storeTimestamp": "1",
        },
        b"body",
    )
    for name, form in (("", JSON), (" binary", ROCKETMQ)):
        yield Case(f"pull{name}", 11, pull(TOPIC), serialize_type=form)
        yield Case(f"pull nothing{name}", 11, pull(TOPIC, 1, 99), serialize_type=form)
        yield Case(
            f"by key{name}",
            12,
            {"topic": TOPIC, "key": "k", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": FAR_FUTURE},
            serialize_type=form,
        )
        yield Case(
            f"by absent key{name}",
            12,
            {"topic": TOPIC, "key": "absent", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": FAR_FUTURE},
            serialize_type=form,
        )
        yield Case(f"view{name}", 33, {"offset": "0"}, serialize_type=form)
        yield Case(f"view nothing{name}", 33, {"offset": "99999999"}, serialize_type=form)
        yield Case(f"view in between{name}", 33, {"offset": "17"}, serialize_type=form)
    yield Case("pull next", 11, pull(TOPIC, 1, 2))
    yield Case("pull below", 11, pull(TOPIC, 0, -5))
    yield Case("pull bad queue", 11, pull(TOPIC, 9))
    yield Case("pull unknown topic", 11, pull("WalkUnknown"))
    yield Case("pull not allowed", 11, pull("WalkNoRead"))
    yield Case("pull unknown group", 11, pull(TOPIC, consumerGroup="WalkOther", sysFlag="0"))
    yield Case("pull tag", 11, pull(TOPIC, subscription="t"))
    yield Case("pull other tag", 11, pull(TOPIC, subscription="u"))
    yield Case("pull bad tag expression", 11, pull(TOPIC, subscription="||"))
    yield Case("pull without subscription", 11, pull(TOPIC, sysFlag="0"))
    yield Case("pull sql", 11, pull(TOPIC, subscription="a > 1", expressionType="SQL92"))
    yield Case("pull bad sql", 11, pull(TOPIC, subscription="a >", expressionType="SQL92"))
    yield Case("pull unknown expression", 11, pull(TOPIC, subscription="a", expressionType="XPATH"))
    yield Case("pull empty type", 11, pull(TOPIC, expressionType=""))
    yield Case("pull no fields", 11)
    for name, queue_id in (("SCHEDULE_TOPIC_XXXX", 17), ("SCHEDULE_TOPIC_XXXX", 0), ("RMQ_SYS_TRANS_HALF_TOPIC", 0)):
        for offset in (0, 1, 2, 99):
            yield Case(f"pull {name} {queue_id} {offset}", 11, pull(name, queue_id, offset))
    yield Case("pull no level", 11, pull("SCHEDULE_TOPIC_XXXX", 18))
    yield Case("pull 361", 361, pull(TOPIC))
    yield Case("offset", 14, offsets)
    yield Case("commit", 15, {**offsets, "commitOffset": "2"})
    yield Case("offset kept", 14, offsets)
    yield Case("offset unknown topic", 14, {"consumerGroup": GROUP, **queue("WalkUnknown")})
    yield Case("offset unknown group", 14, {"consumerGroup": "WalkOther2", **queue(TOPIC)})
    yield Case(
        "offset unknown group not zero",
        14,
        {"consumerGroup": "WalkOther2", **queue(TOPIC), "setZeroIfNotFound": "false"},
    )
    yield Case("commit unknown topic", 15, {"consumerGroup": GROUP, **queue("WalkUnknown"), "commitOffset": "1"})
    yield Case("commit far", 15, {**offsets, "queueId": "1", "commitOffset": "99"})
    for code in (30, 31, 32):
        yield Case(f"{code}", code, queue(TOPIC))
        yield Case(f"{code} unknown topic", code, queue("WalkUnknown"))
        yield Case(f"{code} bad queue", code, queue(TOPIC, 9))
    yield Case("29", 29, {**queue(TOPIC), "timestamp": "0"})
    yield Case("29 later", 29, {**queue(TOPIC), "timestamp": FAR_FUTURE})
    yield Case("29 unknown topic", 29, {**queue("WalkUnknown"), "timestamp": "0"})
    yield Case(
        "send back",
        36,
        {
            "offset": "0",
            "group": GROUP,
            "delayLevel": "3",
            "originMsgId": "x",
            "originTopic": TOPIC,
            "unitMode": "false",
            "maxReconsumeTimes": "16",
        },
    )
    for level in ("-2147483648", "0", "18", "19", "2147483647"):
        failed = {"offset": "0", "group": GROUP, "delayLevel": level, "originMsgId": "x", "originTopic": TOPIC}
        yield Case(f"send back {level}", 36, failed)
    for queue_id in (2, 17):
        yield Case(f"handed back to {queue_id}", 30, queue("SCHEDULE_TOPIC_XXXX", queue_id))
    yield Case("handed back dead", 30, queue(f"%DLQ%{GROUP}"))
    yield Case("send back unknown", 36, {"offset": "99999999", "group": GROUP, "delayLevel": "3"})
    yield Case("send back unknown group", 36, {"offset": "0", "group": "WalkOther3", "delayLevel": "3"})
    yield Case(
        "send back dead",
        36,
        {"offset": "0", "group": GROUP, "delayLevel": "-1", "originMsgId": "x", "originTopic": TOPIC},
    )
    end = {
        "producerGroup": PRODUCERS,
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "msgId": "x",
        "transactionId": "y",
    }
    yield Case("end of no transaction", 37, {**end, "commitOrRollback": "8"})
    yield Case("end of nothing", 37, {**end, "commitLogOffset": "99999999", "commitOrRollback": "8"})
    yield Case("end rolled back", 37, {**end, "commitOrRollback": "12"})
    yield Case("members", 38, group)
    yield Case("members unknown", 38, {"consumerGroup": "WalkUnknown"})
    yield Case("lock", 41, body=LOCK)
    yield Case("unlock", 42, body=LOCK)
    yield Case("lock no body", 41)
    yield Case(
        "client config",
        46,
        body=json.dumps(
            {
                "clientId": CLIENT,
                "group": GROUP,
                "subscriptionData": json.loads(HEARTBEAT)["consumerDataSet"][0]["subscriptionDataSet"][0],
            }
        ).encode(),
    )
    sql = {"topic": TOPIC, "subString": "a > 1", "subVersion": 1, "expressionType": "SQL92"}
    yield Case(
        "client config sql", 46, body=json.dumps({"clientId": CLIENT, "group": GROUP, "subscriptionData": sql}).encode()
    )
    for name, code in (("topics", 21), ("configuration", 26), ("runtime", 28), ("groups", 201)):
        yield Case(name, code)
    for code in (43, 45, 305):
        yield Case(f"{code}", code)
    yield Case("topic stats", 202, {"topic": TOPIC})
    yield Case("topic stats unknown", 202, {"topic": "WalkUnknown"})
    yield Case("consumers", 203, group)
    yield Case("consumers unknown", 203, {"consumerGroup": "WalkUnknown"})
    yield Case("producers", 204, {"producerGroup": PRODUCERS})
    yield Case("producers unknown", 204, {"producerGroup": "WalkUnknown"})
    yield Case("progress", 208, group)
    yield Case("progress of a topic", 208, {**group, "topic": TOPIC})
    yield Case("progress unknown topic", 208, {**group, "topic": "WalkUnknown"})
    yield Case("progress unknown", 208, {"consumerGroup": "WalkUnknown"})
    yield Case("who consumes", 300, {"topic": TOPIC})
    yield Case("who consumes unknown", 300, {"topic": "WalkUnknown"})
    yield Case("topics of a group", 343, {"group": GROUP})
    yield Case("subscription", 345, {"group": GROUP, "topic": TOPIC})
    yield Case("time span", 303, {"topic": TOPIC, "group": GROUP})
    yield Case("time span unknown", 303, {"topic": "WalkUnknown", "group": GROUP})
    yield Case("running info of nobody", 307, {**group, "clientId": "nobody"})
    yield Case("running info of an unknown group", 307, {"consumerGroup": "WalkUnknown", "clientId": "nobody"})
    yield Case(
        "consume directly by nobody", 309, {**group, "clientId": "nobody", "msgId": "7F00000100002A9F0000000000000000"}
    )
    yield Case("correction", 308, {"topic": TOPIC, "compareGroup": GROUP})
    yield Case("clone", 314, {"srcGroup": GROUP, "destGroup": "WalkClone", "topic": TOPIC, "offline": "true"})
    yield Case(
        "clone unknown", 314, {"srcGroup": "WalkUnknown", "destGroup": "WalkClone", "topic": TOPIC, "offline": "true"}
    )
    for kind, key in (("TOPIC_PUT", TOPIC), ("GROUP_GET", f"{TOPIC}@{GROUP}"), ("BROKER_PUT", "DefaultCluster")):
        for unit in ("NUMS", "SIZE"):
            yield Case(f"stats {kind}_{unit}", 315, {"statsName": f"{kind}_{unit}", "statsKey": key})
    for stats in ("SNDBCK_PUT_NUMS", "GROUP_GET_FROM_DISK_NUMS", "GROUP_GET_FROM_DISK_SIZE", "QUEUE_PUT_NUMS"):
        yield Case(f"stats {stats}", 315, {"statsName": stats, "statsKey": f"{TOPIC}@{GROUP}"})
    for stats in ("BROKER_GET_NUMS", "BROKER_GET_FROM_DISK_NUMS", "BROKER_ACK_NUMS", "NO_SUCH"):
        yield Case(f"stats {stats}", 315, {"statsName": stats, "statsKey": "DefaultCluster"})
    for stats in ("GROUP_GET_LATENCY", "GROUP_GET_FALL_SIZE", "GROUP_GET_FALL_TIME"):
        yield Case(f"stats {stats}", 315, {"statsName": stats, "statsKey": f"0@{TOPIC}@{GROUP}"})
    for stats in ("TIMER_ENQUEUE_NUMS", "TIMER_DEQUEUE_NUMS"):
        yield Case(f"stats {stats}", 315, {"statsName": stats, "statsKey": "DefaultCluster"})
    yield Case("317", 317, {"isOrder": "false"})
    yield Case("queue", 321, {**queue(TOPIC), "index": "0", "count": "3", **group})
    yield Case("queue beyond", 321, {**queue(TOPIC), "index": "99", "count": "3"})
    yield Case("queue unknown", 321, {**queue("WalkUnknown"), "index": "0", "count": "3"})
    yield Case("check again", 323, {"msgId": "7F00000100002A9F0000000000000000"})
    yield Case("all producers", 328)
    yield Case("topic config", 351, {"topic": TOPIC})
    yield Case("group config", 352, {"group": GROUP})
    yield Case(
        "reset offsets of nobody", 222, {"topic": TOPIC, "group": "WalkUnknown", "timestamp": "0", "isForce": "true"}
    )
    yield Case("reset offsets", 222, {"topic": TOPIC, "group": GROUP, "timestamp": "-1", "isForce": "true"})
    yield Case(
        "reset offsets unknown topic",
        222,
        {"topic": "WalkUnknown", "group": GROUP, "timestamp": "0", "isForce": "true"},
    )
    yield Case("status of nobody", 223, {"topic": TOPIC, "group": "WalkUnknown"})
    yield Case("update", 25, body=b"fileReservedTime=71\n")
    yield Case("update without effect", 25, body=b"sendMessageThreadPoolNums=7\n")
    yield Case("update unknown", 25, body=b"noSuchKey=4\n")
    yield Case("update nothing", 25)
    for code in (50, 51, 53):  # 52 and 54 are never answered by Apache's without ACL
        yield Case(f"acl {code}", code)
    for code in (306, 316, 329):
        yield Case(f"{code}", code)
    for code in (
        60,
        61,
        370,
        907,
        401,
        400,
        402,
        513,
        901,
        200050,
        200051,
        200052,
        13,
        18,
        22,
        23,
        27,
        39,
        40,
        47,
        100,
        103,
        105,
        106,
        205,
        209,
        210,
        211,
        212,
        213,
        214,
        216,
        217,
        220,
        221,
        225,
        301,
        302,
        311,
        312,
        313,
        318,
        319,
        322,
        326,
        327,
        353,
        2004,
        9999,
    ):
        yield Case(f"code {code}", code)
    yield Case("delete group", 207, {"groupName": GROUP, "removeOffset": "true"})
    yield Case("delete unknown group", 207, {"groupName": "WalkUnknown"})
    yield Case("delete topic", 215, {"topic": TOPIC})
    yield Case("delete unknown topic", 215, {"topic": "WalkUnknown"})
    yield Case("delete system topic", 215, {"topic": "TBW102"})
    yield Case("leave", 35, {"clientID": CLIENT, "producerGroup": PRODUCERS, "consumerGroup": GROUP})
    yield Case("leave again", 35, {"clientID": CLIENT})
