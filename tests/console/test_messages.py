"""The pages about messages: search, one message, export, a test message, the live tail."""

from __future__ import annotations

import asyncio
import csv
import http.client
import io
import json
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

import pytest
from tests.helpers.consoles import Surfer
from tests.helpers.waiting import real_time, wait_for

from cometmq.client import ConsumeFromWhere, Producer, ProducerConfig, PushConfig, PushConsumer
from cometmq.console.limits import MAX_STREAMS_OF_ONE, MAX_TAILS
from cometmq.message.hosts import encode_host
from cometmq.message.ids import offset_msg_id
from cometmq.message.message import Message, MessageExt
from cometmq.testing.cluster import Cluster
from cometmq.testing.sync import SyncCluster


def first_message(surfer: Surfer, query: str) -> str:
    """Return the address of the newest message of a search."""
    found = re.search(r'href="(/messages/[^"?]+/\d+/\d+)"', surfer.get(f"/messages?{query}").text)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def orders(cluster: SyncCluster) -> list[str]:
    cluster.create_topic("orders", 2)
    ids = []
    for number in range(60):
        body = json.dumps({"order": number}).encode()
        tag, properties = ("even", "odd")[number % 2], {"size": str(number)}
        sent = cluster.send(Message("orders", body, tags=tag, keys=[f"key-{number}"], properties=properties))
        ids.append(sent.msg_id)
    return ids


def test_the_newest_messages_come_first_and_older_ones_behind_a_link(surfer: Surfer, orders: list[str]) -> None:
    page = surfer.get("/messages?topic=orders")
    shown = [int(number) for number in re.findall(r"&#34;order&#34;: (\d+)", page.text)]
    assert len(shown) == 50
    assert shown[0] >= 50
    older = re.search(r'href="(\?topic=orders&amp;end=\d+)"', page.text)
    assert older
    rest = surfer.get("/messages" + older[1].replace("&amp;", "&"))
    more = {int(number) for number in re.findall(r"&#34;order&#34;: (\d+)", rest.text)}
    assert more | set(shown) == set(range(60))


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("tag=even", 30),
        ("tag=none", 0),
        (f"sql={quote('size > 54')}", 5),
        ("key=key-7", 1),
        ("end=1", 0),
        ("begin=1", 50),
    ],
)
def test_messages_are_found_by_tag_sql_key_and_time(surfer: Surfer, orders: list[str], query: str, count: int) -> None:
    page = surfer.get(f"/messages?topic=orders&{query}")
    assert len(re.findall(r"&#34;order&#34;: \d+", page.text)) == count
    assert ("No message matches." in page.words) == (count == 0)


@pytest.mark.parametrize("path", ["/messages?topic=orders", "/messages?topic=orders&key=k", "/delayed?topic=orders"])
def test_a_time_that_ends_before_it_begins_is_a_fault_of_the_form(surfer: Surfer, orders: list[str], path: str) -> None:
    page = surfer.get(f"{path}&begin=2&end=1")
    assert (page.status, "the end is before the beginning" in page.words) == (400, True)
    assert surfer.get(f"{path}&begin=2&end=2").status == 200


def test_an_expression_that_no_broker_understands_is_explained(surfer: Surfer, orders: list[str]) -> None:
    page = surfer.get(f"/messages?topic=orders&sql={quote('size >')}")
    assert page.status >= 400
    assert "What to do" in page.words
    assert surfer.get("/messages?topic=orders&tag=a&sql=b").status == 400
    assert surfer.get("/messages?topic=nowhere").status == 404


def test_a_message_is_found_by_its_id_and_shows_body_properties_and_consumers(
    surfer: Surfer, cluster: SyncCluster, orders: list[str]
) -> None:
    with cluster.inbox("orders", group="order-readers") as inbox:
        inbox.expect(60)
    answer = surfer.get(f"/messages?topic=orders&id={orders[3]}")
    assert answer.status == 303
    place = answer.headers["location"]
    page = surfer.get(place)
    assert '"order": 3' in page.words
    assert "size 3" in page.words
    assert "key-3" in page.words
    assert "order-readers" in page.words
    assert "after this message" in page.words
    assert "7b 22 6f 72" in surfer.get(f"{place}?as=hex").words
    download = surfer.get(f"{place}/body")
    assert (download.text, download.headers["content-type"]) == ('{"order": 3}', "application/octet-stream")
    assert "attachment" in download.headers["content-disposition"]
    assert surfer.get("/messages?topic=orders&id=unknown").status == 404
    assert surfer.get(f"{place[:-1]}999999").status == 404


def test_an_offset_id_leads_only_to_brokers_of_the_cluster(
    surfer: Surfer, cluster: SyncCluster, orders: list[str]
) -> None:
    sent = cluster.send(Message("orders", b"{}"))
    assert surfer.get(f"/messages?id={sent.offset_msg_id}").status == 303
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        for query in ("", "&topic=orders"):
            forged = offset_msg_id(encode_host(*stranger.getsockname()), 0)
            page = surfer.get(f"/messages?id={forged}{query}")
            assert page.status == 400
            assert "does not name a broker of this cluster" in page.words
        with pytest.raises(BlockingIOError):
            stranger.accept()


def test_a_body_is_decoded_by_an_avro_schema(surfer: Surfer, cluster: SyncCluster) -> None:
    fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed (pip install cometmq[avro])")
    schema = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": "long"}]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"total": 4711})
    cluster.create_topic("avro-orders", 1)
    cluster.send(Message("avro-orders", out.getvalue()))
    place = first_message(surfer, "topic=avro-orders")
    page = surfer.post(place, form="avro", schema=json.dumps(schema))
    assert '"total": 4711' in page.words
    wrong = surfer.post(place, form="avro", schema='{"type": "nonsense"}')
    assert wrong.status == 200
    assert "invalid Avro schema" in wrong.words


def test_a_search_is_a_file_of_json_lines_or_csv(surfer: Surfer, cluster: SyncCluster, orders: list[str]) -> None:
    lines = surfer.get("/messages/export?topic=orders&tag=odd&form=json")
    rows = [json.loads(line) for line in lines.text.splitlines()]
    assert sorted(json.loads(row["body"])["order"] for row in rows) == list(range(1, 60, 2))
    cluster.create_topic("formulas", 1)
    cluster.send(Message("formulas", b'=HYPERLINK("http://evil.example")'))
    table = list(csv.DictReader(io.StringIO(surfer.get("/messages/export?topic=formulas&form=csv").text)))
    assert table[0]["body"].startswith("'="), "a spreadsheet takes it for text"


def test_a_test_message_is_sent_after_a_preview(surfer: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("tests", 1)
    fields = {"topic": "tests", "body": "hello\nthere", "tag": "t", "keys": "a b", "properties": "x=1\ny=2"}
    plan = surfer.post("/messages/send", **fields)
    assert "11" in plan.words
    assert "No message matches" in surfer.get("/messages?topic=tests").words, "the preview sends nothing"
    page = surfer.change("/messages/send", **fields)
    assert "is sent to topic tests" in page.words
    with cluster.inbox("tests") as inbox:
        message = inbox.expect(1)[0]
    assert (message.body, message.tags, list(message.keys)) == (b"hello\nthere", "t", ["a", "b"])
    assert message.properties["y"] == "2"
    assert surfer.audit("message.send", "tests")[0]["outcome"] == "done"
    assert surfer.post("/messages/send", topic="nowhere", body="x").status == 404
    for properties, words in (("x=", "NAME=VALUE, not x="), ("x=1\nx=2", "the property x has two values")):
        refused = surfer.post("/messages/send", **(fields | {"properties": properties}))
        assert refused.status == 400
        assert words in refused.words


def test_a_test_message_may_have_four_megabytes(surfer: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("large", 1)
    body = "x" * (4 * 1024 * 1024)
    page = surfer.change("/messages/send", topic="large", body=body)
    assert "is sent to topic large" in page.words
    with cluster.inbox("large") as inbox:
        assert inbox.expect(1)[0].body == body.encode()


def test_a_test_message_goes_to_a_topic_by_its_name_only(surfer: Surfer, cluster: SyncCluster) -> None:
    """As with ``cometmq produce``: a mistyped name is never taken for a queue's."""
    cluster.create_topic("orders%2Ehigh", 1)
    assert 'name="topic" value="orders%2Ehigh"' in surfer.get("/messages/send?topic=orders.high").text
    refused = surfer.post("/messages/send", topic="orders.high", body="x")
    assert refused.status == 400
    assert "orders.high is not a valid topic name" in refused.words
    assert "the topic of a queue with this name is orders%2Ehigh" in refused.words
    assert "is sent to topic" in surfer.change("/messages/send", topic="orders%2Ehigh", body="x").words


def test_the_trace_of_a_message_is_a_waterfall_from_its_producer_to_each_consumer(
    surfer: Surfer, cluster: SyncCluster
) -> None:
    cluster.create_topic("traced", 1)
    done = asyncio.Event()

    async def listen(messages: Sequence[MessageExt]) -> None:
        await real_time(0.02)  # the length of a bar
        done.set()

    async def trace(running: Cluster) -> None:
        config = PushConfig(enable_msg_trace=True, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer = PushConsumer("tracers", listen, instance=running.client_instance(), config=config)
        await consumer.subscribe("traced")
        producer = Producer(
            "traced-shop", instance=running.client_instance(), config=ProducerConfig(enable_msg_trace=True)
        )
        async with consumer, producer:
            await producer.send(Message("traced", b"x"))
            await done.wait()

    cluster.call(trace(cluster.cluster))
    place = first_message(surfer, "topic=traced")
    wait_for(lambda: "consumed tracers" in surfer.get(place).words, "the trace is stored")
    page = surfer.get(place)
    assert "sent traced-shop" in page.words
    assert re.search(r'<rect class="consumed" x="[\d.]+" width="[\d.]+"', page.text)


# --- the live tail --------------------------------------------------------------------------------
@contextmanager
def tail(surfer: Surfer, query: str) -> Iterator[http.client.HTTPResponse]:
    place = urlsplit(surfer.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    connection.request("GET", f"/messages/tail/events?{query}")
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def next_event(stream: http.client.HTTPResponse, name: str) -> object:
    while line := stream.readline().decode():
        if line == f"event: {name}\n":
            return json.loads(stream.readline().decode().removeprefix("data: "))
    raise AssertionError(f"the stream ended before {name}")


def test_the_live_tail_shows_new_messages_and_only_those_that_fit(surfer: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("watched", 2)
    cluster.send(Message("watched", b"old"))
    with tail(surfer, "topic=watched&tag=hot") as stream:
        next_event(stream, "open")
        cluster.send(Message("watched", b"cold one", tags="cold"))
        cluster.send(Message("watched", "<b>hot\x1b[2J\u202e one</b>".encode(), tags="hot"))
        while not (lines := next_event(stream, "messages")["lines"]):  # type: ignore[index]
            pass
    assert [line["body"] for line in lines] == ["<b>hot\\x1b[2J\\u202e one</b>"]


def test_the_live_tail_goes_on_in_a_topic_that_is_made_anew(surfer: Surfer, cluster: SyncCluster) -> None:
    """It shows the messages of the new one from the first on, though there are fewer of them than there were."""
    cluster.create_topic("renewed", 1)
    for number in range(5):
        cluster.send(Message("renewed", b"old %d" % number))

    async def make_anew(inner: Cluster) -> None:
        for broker in inner.brokers:
            broker.store.delete_topic("renewed")
            broker.turn._targets.forget("renewed")  # as a deletion does

    bodies: list[str] = []
    with tail(surfer, "topic=renewed") as stream:
        next_event(stream, "open")
        cluster.call(make_anew(cluster.cluster))
        for number in range(2):
            cluster.send(Message("renewed", b"new %d" % number))
        while len(bodies) < 2:
            bodies += [line["body"] for line in next_event(stream, "messages")["lines"]]  # type: ignore[index]
    assert sorted(bodies) == ["new 0", "new 1"]  # each from another broker, and these are asked one after the other


def test_a_thousand_tails_are_refused_beyond_the_limit_and_pages_stay(surfer: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("popular", 1)
    opened = []
    try:
        for _ in range(MAX_TAILS):
            stream = tail(surfer, "topic=popular")
            next_event(stream.__enter__(), "open")
            opened.append(stream)
        for _ in range(MAX_STREAMS_OF_ONE):
            with tail(surfer, "topic=popular") as refused:
                assert "live tails are open" in str(next_event(refused, "refused"))
        assert surfer.get("/topics/popular").status == 200
    finally:
        for stream in opened:
            stream.__exit__(None, None, None)


def test_a_tail_of_no_topic_says_so(surfer: Surfer) -> None:
    with tail(surfer, "topic=nowhere") as stream:
        assert "no route" in str(next_event(stream, "refused"))
