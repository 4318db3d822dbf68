"""The worst that each request code can be asked for within one frame, or within what one connection sends at once.

Each entry makes frames; its number makes names that no server has seen, where the first time costs most. Every code is
also sent :func:`unfit`, which no handler can use.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from cometmq.broker.limits import MAX_LOCK_REQUEST_QUEUES, MAX_TOPIC_QUEUES
from cometmq.limits import MAX_HEADER_BYTES, MAX_NAMESRV_TOPICS
from cometmq.remoting.codes import CURRENT_VERSION
from cometmq.remoting.command import RemotingCommand

FRAME_BYTES: Final = 15 * 1024 * 1024
"""Of a body, so that its frame is within the limit."""
AT_ONCE: Final = 12
"""Requests that one connection sends together."""
QUOTAS: Final = 60
"""Changes of quotas that one connection sends together: each costs by the number of all, not of those made so."""
WIDE: Final = "Wide"
GROUP: Final = "walkers"

Frames = list[bytes]
Bodies = tuple[bytes, ...]
Worst = Callable[[int], Frames]

SEND: Final = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
SEND_LONG: Final = {
    "producerGroup": "p",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "properties": "",
    "reconsumeTimes": "0",
}
PULL: Final = {
    "consumerGroup": GROUP,
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "1024",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subVersion": "0",
    "subscription": "*",
}
POP: Final = {
    "consumerGroup": GROUP,
    "topic": "T",
    "queueId": "-1",
    "maxMsgNums": "32",
    "invisibleTime": "60000",
    "pollTime": "0",
    "bornTime": "9000000000000000000",
    "initMode": "0",
}
ACK: Final = {"topic": "T", "queueId": "0", "extraInfo": "0 1 60000 0 0 broker-a 0 0", "offset": "0"}
MODE: Final = b'{"topic":"Wide","consumerGroup":"walkers","clientId":"c","mode":"POP"}'
BROKER: Final = {
    "brokerName": "big",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "c",
    "haServerAddr": "127.0.0.1:2",
    "brokerId": "0",
    "compressed": "false",
}
EVERYTHING: Final = {
    "topic": WIDE, "group": GROUP, "consumerGroup": GROUP, "groupName": GROUP, "producerGroup": GROUP,
    "timestamp": "0", "isForce": "true", "compareGroup": GROUP, "srcGroup": GROUP, "destGroup": "others",
    "isOrder": "false", "offset": "0", "maxNum": "1000000", "beginTime": "0", "position": "0", "count": "1000000",
    "endTime": str(2**62), "beginTimestamp": "0", "endTimestamp": str(2**62), "queueId": "0", "index": "0",
    "key": "k", "statsName": "TOPIC_PUT_NUMS", "statsKey": WIDE, "clientID": "c", "clientId": "c",
    "commitOffset": "0", "delayLevel": "3", "originTopic": "T", "msgId": "7F0000010000277F0000000000000000",
    "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8", "producer": "walker", "batch": "1",
    "file": "config/topics.json", "length": "1000000000",
    "brokerName": "big", "cluster": "c", "namespace": "walk", "defaultTopic": "TBW102", "order": "false",
    "readQueueNums": str(MAX_TOPIC_QUEUES), "writeQueueNums": str(MAX_TOPIC_QUEUES), "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}  # fmt: skip
"""A field of each name that any header has, as large as it makes sense."""


def frame(code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", opaque: int = 1) -> bytes:
    """One request."""
    command = RemotingCommand(code=code, opaque=opaque, ext_fields=dict(fields or {}), body=body)
    command.version = CURRENT_VERSION
    return command.encode()


def filled(unit: bytes, head: bytes = b"", end: bytes = b"", size: int = FRAME_BYTES) -> bytes:
    """A body of one thing over and over."""
    return head + unit * ((size - len(head) - len(end)) // len(unit)) + end


def many(code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", count: int = AT_ONCE) -> Frames:
    """One request many times at once."""
    return [frame(code, fields, body, opaque) for opaque in range(count)]


def everything(code: int, count: int = AT_ONCE, **changes: str) -> Worst:
    """Many requests with every field there is."""
    return lambda _: many(code, EVERYTHING | changes, count=count)


def no_bodies() -> Bodies:
    return ()


def bodies(code: int, more: Callable[[], Bodies] = no_bodies, fields: Mapping[str, str] | None = None) -> Worst:
    """Bodies that are long to decode, and more of the code's own."""
    return lambda _: [frame(code, fields, body) for body in (*hard_bodies(), *more())]


@cache
def hard_bodies() -> Bodies:
    """Bodies that are long to decode for their size."""
    return (
        filled(b"0:0,", b"{", b"0:0}"),
        filled(b"1,", b'{"x":[', b"1]}"),
        filled(b"[],", b'{"x":[', b"1]}"),
        filled(b"["),
        filled(b'\\"', b'{"'),
        filled(b"a\\\n"),
    )


@cache
def odd_fields() -> bytes:
    """Header fields that are numbers, as many as fit."""
    return json.dumps({f"{number:x}": 1 for number in range(MAX_HEADER_BYTES // 12)}, separators=(",", ":")).encode()


def unfit(code: int) -> list[Frames]:
    """Input that no handler can use, each on its own connection, which may be closed."""
    odd = b'{"code":%d,"extFields":%s}' % (code, odd_fields())
    deep = b'{"code":%d,"extFields":{"topic":%s}}' % (code, b"[" * 400_000 + b"]" * 400_000)
    pairs = b"".join(struct.pack(">h3si", 3, b"%03x" % (number & 4095), 0) for number in range(100_000))
    # The binary form has two bytes for the code: those of POP cannot be written in it.
    binary = struct.pack(">hbhiiii", code & 0x7FFF, 0, 400, 7, 0, 0, len(pairs)) + pairs
    headers = [struct.pack(">ii", 4 + len(header), len(header)) + header for header in (odd, deep)]
    if code < 2**15:
        headers.append(struct.pack(">ii", 4 + len(binary), 1 << 24 | len(binary)) + binary)
    return [*([header] for header in headers), [frame(code, EVERYTHING, filled(b"0:0,", b"{", b"0:0}", 1 << 20))]]


# --- brokers ----------------------------------------------------------------------------------------
def batch(count: int, properties: bytes) -> bytes:
    """The body of a batch of small messages."""
    size = 4 * 5 + 1 + 2 + len(properties)
    return (struct.pack(">iiiii1sh", size, 0, 0, 0, 1, b"x", len(properties)) + properties) * count


def sends(code: int, fields: dict[str, str], properties: str, topic: str) -> Worst:
    """Properties of separators, of keys, of more than fits, and large bodies."""

    def frames(_: int) -> Frames:
        texts = ("\x02" * 32_000, "a\x01\x02" * 10_000, "a\x01b\x02" * 60_000, "KEYS\x01" + "k " * 16_000)
        small = [frame(code, fields | {properties: text, topic: "T"}, b"x") for text in texts for _ in range(4)]
        return [*small, *many(code, fields, bytes(4 << 20), 4), frame(code, fields, bytes(FRAME_BYTES))]

    return frames


def batches(_: int) -> Frames:
    packed = zlib.compress(batch(180_000, b""))
    tiny, rich = batch(10_000, b""), batch(10_000, b"KEYS\x01" + b"k " * 100)
    keys = (b" ".join(b"%d-%d" % (number, key) for key in range(40)) for number in range(10_000))
    unlike = b"".join(batch(1, b"KEYS\x01" + some) for some in keys)
    empty, tidy = batch(120, b"\x02" * 32_000), batch(120, b"a\x01b\x02" * 8_000)
    return [
        *many(320, SEND, tiny, 3),
        *(frame(320, SEND, body) for body in (rich, unlike, empty, tidy)),
        frame(320, SEND, batch(190_000, b"")),
        frame(320, SEND | {"f": "1"}, packed),
    ]


def sql(number: int, terms: int = 1_800) -> str:
    return "a in (" + ",".join(f"'{number}-{term}'" for term in range(terms)) + ")"


def pulls(code: int) -> Worst:
    def frames(salt: int) -> Frames:
        tags = ("||".join(f"t{number}" for number in range(2_500)), "|" * 16_000, "a||" * 200_000)
        asked = [PULL | {"subscription": text} for text in tags]
        asked += [PULL | {"expressionType": "SQL92", "subscription": sql(salt * 100 + number)} for number in range(8)]
        asked += [PULL | {"subscription": "(" * 16_000, "expressionType": "SQL92"}, *[PULL] * 50]
        return [frame(code, fields, opaque=opaque) for opaque, fields in enumerate(asked)]

    return frames


def heartbeats(salt: int) -> Frames:
    def names(count: int, length: int) -> list[str]:
        return [f"{salt}-{number}-".ljust(length, "n") for number in range(count)]

    def heartbeat(**data: Any) -> bytes:
        return frame(34, None, json.dumps({"clientID": "c", **data}).encode())

    def subscribed(group: str, subscriptions: list[dict[str, Any]]) -> dict[str, Any]:
        return {"groupName": group, "subscriptionDataSet": subscriptions}

    topics = [{"topic": name} for name in names(1_000, 120)]
    filters = [{"topic": f"t{n}", "expressionType": "SQL92", "subString": sql(salt * 100 + n)} for n in range(3)]
    tags = [{"topic": f"t{n}", "tagsSet": ["t"] * 2_000, "codeSet": [1] * 100} for n in range(10)]
    return [
        *bodies(34)(0),
        heartbeat(producerDataSet=[{"groupName": name} for name in names(1_000, 100)]),
        heartbeat(consumerDataSet=[subscribed(f"s{salt}", topics)] * 5),
        heartbeat(consumerDataSet=[subscribed(f"m{salt}", [{"topic": ""}] * 60_000)]),
        heartbeat(consumerDataSet=[{"groupName": ""}] * 50_000),
        heartbeat(consumerDataSet=[subscribed(f"f{salt}", filters)]),
        heartbeat(consumerDataSet=[subscribed(f"t{salt}-{n}", tags) for n in range(10)]),
        heartbeat(consumerDataSet=[{"groupName": name} for name in names(100, 100)]),
    ]


def locks(code: int) -> Worst:
    def body(count: int) -> bytes:
        queues = [{"topic": WIDE, "brokerName": "broker-0", "queueId": number} for number in range(count)]
        return json.dumps({"consumerGroup": GROUP, "clientId": "c", "mqSet": queues}).encode()

    return lambda _: [
        *many(code, None, body(MAX_LOCK_REQUEST_QUEUES)),
        frame(code, None, body(50_000)),
        *bodies(code)(0),
    ]


def offsets(salt: int) -> Frames:
    return [
        frame(15, {"consumerGroup": f"o{salt}", "topic": "T", "queueId": str(number), "commitOffset": "0"})
        for number in range(5_000)
    ]


def check_client(salt: int) -> Frames:
    data = [{"topic": "t", "expressionType": "SQL92", "subString": text} for text in (sql(salt), "(" * 16_000)]
    asked = [json.dumps({"clientId": "c", "group": GROUP, "subscriptionData": one}).encode() for one in data]
    return [frame(46, None, body) for body in (*asked, *hard_bodies())]


def configurations() -> Bodies:
    return (
        filled(b"k"),
        filled(b"a\n"),
        b"k" * 60_000,
        b"messageDelayLevel=" + b"1s " * 20_000,
        b"traceOn=true\n" * 4_000,
    )


GROUP_GROWN: Final = json.dumps({"groupName": "grown", "attributes": {"x": "y" * 60_000}}).encode()


def progress_questions() -> Bodies:
    """All topics and more groups than are answered: groups that exist, and names that do not."""
    names = ["G", *(f"{number:x}" for number in range(30_000))]
    return (json.dumps({"groups": names, "withTopics": True}).encode(), json.dumps({"groups": ["G"] * 30_000}).encode())


def acks() -> Bodies:
    """The most acks, the most messages, and more of both than are taken."""
    one = {"c": GROUP, "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "/w=="}
    many_bits = one | {"b": base64.b64encode(b"\xff" * (11 * 1024 * 1024)).decode()}
    return tuple(
        json.dumps({"brokerName": "b", "acks": found}).encode()
        for found in ([one] * 4_096, [one | {"b": "////////"}] * 300, [one] * 150_000, [many_bits])
    )


def listed(field: str, name: str, number: int) -> Frames:
    """The most topics or groups of one request, and more than are taken, all of them new."""
    code = 18 if field == "topicConfigList" else 225
    return [
        frame(code, None, json.dumps({field: [{name: f"new-{number}-{at}"} for at in range(count)]}).encode())
        for count in (1_000, 10_000)
    ]


OF_BROKERS: Final[dict[int, Worst]] = {
    10: sends(10, SEND_LONG, "properties", "topic"),
    11: pulls(11),
    12: everything(12, topic="T", maxNum="100000"),
    14: everything(14),
    15: offsets,
    17: everything(17),
    18: lambda number: [*bodies(18)(number), *listed("topicConfigList", "topicName", number)],
    25: bodies(25, configurations),
    33: everything(33),
    34: heartbeats,
    36: lambda _: many(36, EVERYTHING | {"group": GROUP}, count=300),
    37: everything(37),
    41: locks(41),
    42: locks(42),
    46: check_client,
    200: bodies(200, lambda: (GROUP_GROWN,)),
    225: lambda number: [*bodies(225)(number), *listed("groupConfigList", "groupName", number)],
    307: everything(307),
    309: everything(309),
    310: sends(310, SEND, "i", "b"),
    320: batches,
    321: everything(321, topic="T"),
    324: sends(324, SEND_LONG, "properties", "topic"),
    325: sends(325, SEND, "i", "b"),
    361: pulls(361),
    **{
        code: everything(code)
        for code in (
            *(
                21,
                26,
                28,
                29,
                30,
                31,
                32,
                35,
                38,
                43,
                45,
                60,
                61,
                201,
                202,
                203,
                204,
                208,
                222,
                223,
                300,
                303,
                305,
                306,
            ),
            *(306, 402, 314, 315, 316, 323, 328, 329, 343, 351, 352, 907, 20001, 30037, 30038, 30039, 30040),
            *(513, 30048, 30049, 200070, 200072, *range(200074, 200080)),
        )
    },
    **{code: everything(code, 2) for code in (202, 208, 222, 303, 317)},
    308: everything(308, filterGroups="," * 500_000),
    200050: lambda _: many(200050, POP | {"topic": WIDE}),
    200051: lambda _: many(200051, EVERYTHING | ACK),
    200053: lambda _: many(200053, EVERYTHING | ACK | {"invisibleTime": "1"}),
    200151: bodies(200151, acks),
    30041: bodies(30041, progress_questions),
    200052: lambda _: many(200052, EVERYTHING | POP | {"topic": WIDE}),
    200054: lambda _: many(200054, EVERYTHING | POP | {"topic": WIDE}),
    200071: bodies(200071),
    200055: lambda _: many(200055, EVERYTHING | POP | {"topic": WIDE}),
    400: bodies(400, lambda: (MODE,)),
    401: bodies(401, lambda: (MODE,)),
    370: everything(370, recallHandle="x" * 500_000),
    # Beside nearly as many as a broker may have, of accounts that nobody has: the other inputs are not to meet a quota.
    30050: lambda salt: [frame(30050, {"subject": f"account:{salt}-{n}", "messagesIn": "1"}) for n in range(QUOTAS)],
    30051: everything(30051, subject="", each="true"),
    30052: lambda salt: [frame(30052, {"subject": f"account:{salt}-{n}"}) for n in range(QUOTAS)],
    207: everything(207, groupName="others", removeOffset="true"),
    215: everything(215, topic="Gone"),
}
"""By code; a broker that answers a code which is not here fails the walk."""


# --- nameservers ------------------------------------------------------------------------------------
def chunk(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def packed_registration(said: int, topics: int) -> bytes:
    """A compressed registration that says how many topics it has, and the topics."""
    lines = b"".join(chunk(b"%x 1 1 6 SINGLE_TAG" % number) for number in range(topics))
    return zlib.compress(chunk(b'{"counter":1,"timestamp":1}') + struct.pack(">i", said) + lines + chunk(b"[]"), 1)


def plain_registration(topics: int) -> bytes:
    table = b",".join(b'"t%x":{"topicName":"t%x"}' % (number, number) for number in range(topics))
    return b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%s}}}' % table


MOST_TOPICS: Final = MAX_NAMESRV_TOPICS - 25_000
"""With room for the topics that the walk through the broker has made; all of them fit into a plain frame."""


def registrations(salt: int) -> Frames:
    # The same address each time: it is entered, and taken out when its connection closes.
    one = BROKER | {"brokerName": f"r{salt}", "brokerAddr": "127.0.0.1:9"}
    packed = one | {"compressed": "true"}
    return [
        frame(103, one, plain_registration(MOST_TOPICS)),
        frame(103, packed, packed_registration(MOST_TOPICS, MOST_TOPICS)),
        frame(103, packed, packed_registration(2_500_000, 1_000_000)),
        frame(103, packed, zlib.compress(bytes(200 << 20), 9)),
        frame(103, one, plain_registration(500_000)),
        frame(103, one, filled(b'"a",', b'{"filterServerList":[', b'"a"]}')),
        frame(103, one | {"haServerAddr": "h" * 900_000}),
        *(frame(103, one, body) for body in hard_bodies()),
    ]


def kv(salt: int) -> Frames:
    named = {"namespace": "walk", "value": "v" * 60_000}
    return [frame(100, named | {"key": f"{salt}-{number}"}, opaque=number) for number in range(60)]


OF_NAMESERVERS: Final[dict[int, Worst]] = {
    100: kv,
    103: registrations,
    104: everything(104, brokerName="none", brokerAddr="127.0.0.1:8", clusterName="c", brokerId="0"),
    105: everything(105, topic="Shared"),
    216: everything(216, topic="none"),
    318: bodies(318, configurations),
    322: bodies(322, fields=BROKER | {"dataVersion": "x"}),
    **{code: everything(code) for code in (101, 102, 106, 205, 206, 219, 224, 304, 311, 312, 313, 319, 327)},
}
"""By code; a nameserver that answers a code which is not here fails the walk."""
