"""Registrations of many topics are read beside the loop, within limits, and in the order of their connection."""

from __future__ import annotations

import gc
import struct
import time
import zlib
from collections.abc import Callable

import pytest
from tests.namesrv.registering import MASTER, SLAVE, register, registration
from tests.namesrv.wire import Connect, topic

from cometmq.limits import MAX_ADDRESS_CHARS, MAX_FILTER_SERVERS, MAX_NAMESRV_TOPICS
from cometmq.namesrv.limits import REGISTRATION_BESIDE_BYTES
from cometmq.namesrv.routes import RegistrationError, RouteTable
from cometmq.namesrv.server import NameServer
from cometmq.remoting.admin_headers import RegisterBrokerRequestHeader, UnRegisterBrokerRequestHeader
from cometmq.remoting.bodies import BodyError, TopicConfig
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.remoting.headers import GetRouteInfoRequestHeader, to_ext
from cometmq.remoting.register_body import _PIECE_BYTES, _first_rows, decode_registration

MANY = {f"topic-{number}": TopicConfig(topic_name=f"topic-{number}") for number in range(2_000)}


def chunk(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def compressed(topics: int, written: int, filters: bytes = b"[]") -> bytes:
    """A compressed registration that says it has so many topics, and has as many as are written."""
    lines = b"".join(chunk(b"%x 1 1 6 SINGLE_TAG" % number) for number in range(written))
    version = chunk(b'{"counter":1,"timestamp":1}')
    return zlib.compress(version + struct.pack(">i", topics) + lines + chunk(filters), 1)


def plain(topics: int) -> bytes:
    table = b",".join(b'"t%x":{"topicName":"t%x"}' % (number, number) for number in range(topics))
    return b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + table + b"}}}"


FILTERS = b"[" + b",".join([b'"a:1"'] * (MAX_FILTER_SERVERS + 1)) + b"]"


@pytest.mark.parametrize(
    ("make", "is_compressed"),
    [
        (lambda: compressed(2_500_000, 1_000_000), True),
        (lambda: compressed(MAX_NAMESRV_TOPICS + 1, 1), True),
        (lambda: compressed(1, 1, FILTERS), True),
        (lambda: compressed(1, 1, b'["' + b"a" * (MAX_ADDRESS_CHARS + 1) + b'"]'), True),
        (lambda: compressed(1, 1, b'["a",' + b'"a",' * 3_000_000 + b'"a"]'), True),
        (lambda: plain(MAX_NAMESRV_TOPICS + 1), False),
        (lambda: plain(500_000), False),
        (lambda: b'{"filterServerList":' + FILTERS + b"}", False),
        (lambda: b'{"filterServerList":[' + b'"a",' * 3_000_000 + b'"a"]}', False),
        (lambda: b"{" + b"0:0," * 3_000_000 + b"0:0}", False),
    ],
)
def test_what_is_too_much_is_refused_before_it_is_made(make: Callable[[], bytes], is_compressed: bool) -> None:
    body = make()
    began = time.thread_time()
    with pytest.raises(BodyError, match=r"at most|malformed"):
        decode_registration(body, compressed=is_compressed)
    assert time.thread_time() - began < 1.5


@pytest.mark.parametrize("attributes", ["", '"attributes":{"+a":"},\\"b"},'])
def test_the_topics_of_a_large_registration_are_decoded_in_pieces(attributes: str) -> None:
    """At once, 100,000 topics kept the event loop's thread waiting for 50 ms."""
    row = '"t%d":{%s"order":false,"perm":6,"readQueueNums":%d,"topicName":"t%d","writeQueueNums":4}'
    rows = ",".join(row % (number, attributes, number % 7 + 1, number) for number in range(20_000))
    after = '"topicQueueMappingInfoMap":{"t1":{"currIdMap":{"0":0},"epoch":5}}'
    text = '{"filterServerList":["a:1"],"topicConfigSerializeWrapper":{"dataVersion":{"counter":7,"timestamp":1},'
    body = (text + '"topicConfigTable":{' + rows + "}," + after + "}}").encode()
    first, rest = _first_rows(body)
    assert len(rest) < 4 * _PIECE_BYTES
    found = decode_registration(body)
    assert found.data_version.counter == 7
    assert found.filter_servers == ["a:1"]
    assert list(found.topics) == [f"t{number}" for number in range(20_000)]
    assert all(topic.read_queue_nums == number % 7 + 1 for number, topic in enumerate(found.topics.values()))
    assert found.topics.keys() >= first.keys()


@pytest.mark.parametrize(
    ("begin", "row", "end"),
    [
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{', b'"t":1', b"}}}"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable": {', b'"t":1', b"}}}"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":{', b'"t":1', b'},"b":{}}}}'),
        (b'{"other":{"topicConfigTable":{', b'"a":{"b":[]}', b"}}}"),
        (b'{"filterServerList":[],"other":[', b"[]", b"]}"),
    ],
    ids=["values", "a blank", "a row", "another object", "arrays"],
)
def test_what_cannot_be_decoded_in_pieces_is_small(begin: bytes, row: bytes, end: bytes) -> None:
    """At once, a million values kept the thread of the event loop waiting for a second."""
    body = begin + b",".join([row] * 500_000) + end
    began = time.thread_time()
    with pytest.raises(BodyError, match="values that are not rows of topics"):
        decode_registration(body)
    assert time.thread_time() - began < 0.2


def test_a_registration_of_many_topics_takes_only_short_steps() -> None:
    table = RouteTable()
    topics = {f"topic-{number}": TopicConfig(topic_name=f"topic-{number}") for number in range(150_000)}
    steps = table.register(registration(MASTER, topics))
    took: list[float] = []
    gc.disable()  # whose work here grows with the objects of the other tests
    try:
        ended = False
        while not ended:
            began = time.thread_time()
            ended = next(steps, True) is True
            took.append(time.thread_time() - began)
    finally:
        gc.enable()
    assert len(table.topics()) == 150_000
    assert max(took) < 0.02


def test_a_broker_of_5x_with_static_topics_is_understood() -> None:
    body = (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"attributes":{"+a":"b"},"topicName":"T"}},'
        b'"topicQueueMappingInfoMap":{"T":{"currIdMap":{0:0,1:2},"epoch":5}}}}'
    )
    assert decode_registration(body).topics == {"T": TopicConfig(topic_name="T")}


def test_pairs_of_topic_and_broker_are_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.namesrv.routes.MAX_NAMESRV_QUEUE_DATA", 3)
    table = RouteTable()
    register(table, MASTER, {**topic("A"), **topic("B")})
    register(table, SLAVE, {**topic("A"), **topic("B"), **topic("C")})
    with pytest.raises(RegistrationError, match="maximum of 3 topic-broker pairs"):
        register(table, MASTER, {**topic("C"), **topic("D")})
    register(table, MASTER, {**topic("A"), **topic("B"), **topic("C")})
    table.delete_topic("A")
    register(table, MASTER, topic("D"))
    table.unregister(MASTER)
    table.unregister(SLAVE)
    register(table, MASTER, {**topic("E"), **topic("F"), **topic("G")})
    assert sorted(table.topics()) == ["E", "F", "G"]


async def test_an_address_for_slaves_has_a_length(connect: Connect) -> None:
    wire = await connect()
    for given in ({"ha": "h" * 1_000}, {"address": "h" * 1_000 + ":1"}):
        refused = await wire.register(topics=topic("T"), **given)  # type: ignore[arg-type]
        assert refused.code == 1
        assert refused.remark is not None
        assert "characters" in refused.remark


async def test_what_follows_a_large_registration_comes_after_it(server: NameServer, connect: Connect) -> None:
    wire = await connect()
    body = plain(5_000)
    assert len(body) > REGISTRATION_BESIDE_BYTES
    header = RegisterBrokerRequestHeader(
        broker_name="b", broker_addr="127.0.0.1:1", cluster_name="c", ha_server_addr="127.0.0.1:2", broker_id=0
    )
    leave = UnRegisterBrokerRequestHeader(broker_name="b", broker_addr="127.0.0.1:1", cluster_name="c", broker_id=0)
    asked = [
        RemotingCommand(code=103, opaque=1, ext_fields=to_ext(header), body=body),
        RemotingCommand(code=105, opaque=2, ext_fields=to_ext(GetRouteInfoRequestHeader(topic="t1"))),
        RemotingCommand(code=104, opaque=3, ext_fields=to_ext(leave)),
        RemotingCommand(code=105, opaque=4, ext_fields=to_ext(GetRouteInfoRequestHeader(topic="t1"))),
    ]
    reader, writer = wire._reader, wire._writer
    writer.write(b"".join(command.encode() for command in asked))
    decoder = FrameDecoder()
    codes: dict[int, int] = {}
    while len(codes) < len(asked):
        for frame in decoder.feed(await reader.read(65_536)):
            answer = decode_command(frame)
            codes[answer.opaque] = answer.code
    assert codes == {1: 0, 2: 0, 3: 0, 4: 17}
    assert server.routes.topics() == []


async def test_a_broker_that_goes_while_its_registration_is_read_is_not_entered(
    server: NameServer, connect: Connect
) -> None:
    gone, other = await connect(), await connect()
    header = RegisterBrokerRequestHeader(
        broker_name="b", broker_addr="127.0.0.1:1", cluster_name="c", ha_server_addr="127.0.0.1:2", broker_id=0
    )
    gone._writer.write(RemotingCommand(code=103, ext_fields=to_ext(header), body=plain(90_000)).encode())
    await gone._writer.drain()
    gone._writer.transport.abort()
    assert (await other.register(name="later", address="127.0.0.1:3", topics=MANY)).code == 0
    assert set(server.routes.topics()) == set(MANY)
