"""Names, bodies and headers that want to be markup, to command a terminal, to turn the text around, or to be huge."""

from __future__ import annotations

import json
import re
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from tests.console.test_messages import first_message
from tests.helpers.consoles import Page, Surfer
from tests.helpers.pace import slowness_of_thread

from cometmq.console.bodies import best_form, body_as
from cometmq.console.decoding import PROTOBUF, Task, decoded
from cometmq.console.limits import DECODING_PROCESSES
from cometmq.errors import CometMQError
from cometmq.message.message import Message
from cometmq.testing.sync import SyncCluster

MARKUP = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}"
TERMINAL = "\x1b]0;owned\x07\x1b[2J"
TURNED = "\u202egnp.exe\u2066"


def is_harmless(page: Page) -> bool:
    scripts = re.findall(r"<script[^>]*>", page.text)
    return (
        all(re.fullmatch(r'<script src="/static/[^"]+"( defer)?>', script) for script in scripts)
        and "<img src=x" not in page.text
        and "\x1b" not in page.text
        and "\u202e" not in page.text
        and "\u2066" not in page.text
    )


@pytest.fixture(scope="module")
def place(surfer: Surfer, cluster: SyncCluster) -> str:
    cluster.create_topic("hostile", 1)
    text = MARKUP + TERMINAL + TURNED
    cluster.send(
        Message("hostile", text.encode(), tags="<b>tag</b>", keys=[MARKUP.replace(" ", "")], properties={"p": text})
    )
    return first_message(surfer, "topic=hostile")


def test_a_message_is_never_markup_and_commands_nothing(surfer: Surfer, place: str) -> None:
    for path in (place, f"{place}?as=text", f"{place}?as=hex", f"{place}?as=json", "/messages?topic=hostile"):
        page = surfer.get(path)
        assert page.status == 200
        assert is_harmless(page), path
    text = surfer.get(f"{place}?as=text").words
    assert "<script>alert(1)</script>" in text, "it is shown as it is"
    assert "\\x1b]0;owned\\x07" in text
    assert "\\u202egnp.exe" in text


@pytest.mark.parametrize(
    "path",
    [
        *("/topics?q={}", "/groups?q={}", "/messages?topic={}", "/messages?topic=hostile&key={}", "/login?next=/{}"),
        *("/messages/tail?topic={}", "/topics/{}", "/groups/{}", "/brokers/{}/0", "/groups/x/members/{}", "/{}"),
    ],
)
@pytest.mark.parametrize("text", [MARKUP, TERMINAL + TURNED], ids=["markup", "controls"])
def test_what_an_address_says_is_never_markup(surfer: Surfer, place: str, path: str, text: str) -> None:
    page = surfer.get(path.format(quote(text, safe="")))
    assert page.status < 500 or page.status == 502
    assert is_harmless(page)


def test_a_body_of_megabytes_is_shown_in_part_and_quickly(surfer: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("large", 1)
    cluster.send(Message("large", b"{" + b"[" * 3_000_000))
    listed = surfer.get("/messages?topic=large")
    assert len(listed.text) < 50_000
    page = surfer.get(first_message(surfer, "topic=large"))
    assert page.status == 200
    assert len(page.text) < 600_000
    assert "Only the beginning is shown" in page.words


def test_a_deep_json_body_is_shown_as_text(surfer: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("deep", 1)
    cluster.send(Message("deep", b"[" * 100_000 + b"]" * 100_000))
    assert surfer.get(first_message(surfer, "topic=deep") + "?as=json").status == 200


@pytest.mark.parametrize(
    "body",
    [(b"[" * 900 + b"]" * 900 + b",") * 140, b'{"a":[]},' * 29_000, b"[]," * 80_000, b"1," * 120_000],
    ids=["nested lists", "objects", "empty lists", "numbers"],
)
def test_a_json_body_of_small_values_is_shown_as_text(body: bytes) -> None:
    """Nested lists took hundreds of milliseconds and megabytes of blanks."""
    body = b"[" + body + b"1]"
    began = time.thread_time()
    form = best_form(body)
    shown = body_as(body, "json")
    took_s = time.thread_time() - began
    assert (form, shown.form, shown.text) == ("text", "text", body.decode())
    assert took_s < 0.05 or took_s < 0.05 * slowness_of_thread()


def test_odd_addresses_get_an_answer(surfer: Surfer) -> None:
    for path in ("/topics?page=-1", "/topics?page=x", "/messages/x/y/1/99999999999999999999999", "/groups/%00", "/%ff"):
        assert surfer.get(path).status < 500 or "The request failed" in surfer.get(path).words


def varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


LIST = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
FLAGS = {"type": "array", "items": "boolean"}
NOTHINGS = {"type": "array", "items": "null"}
BODY_BYTES = 4_000_000
MOST_KB = 100_000
"""Growth of the console while it shows the message."""


@pytest.mark.parametrize(
    ("body", "schema", "words"),
    [
        (b"\2" * BODY_BYTES + b"\0", LIST, "nested too deeply"),
        (varint(1 << 60) + b"\0", NOTHINGS, "too many values"),
        (varint(2 * BODY_BYTES) + b"\1" * BODY_BYTES + b"\0", FLAGS, "Only the beginning is shown"),
    ],
    ids=["deep", "many from ten bytes", "many"],
)
def test_an_avro_body_holds_neither_the_consoles_memory_nor_its_processor(
    surfer: Surfer, cluster: SyncCluster, body: bytes, schema: dict[str, Any], words: str
) -> None:
    """The first one ended the console, the second one took all memory, and the third one 370 MB."""
    pytest.importorskip("fastavro", reason="fastavro is not installed (pip install cometmq[avro])")
    topic = f"hostile-{len(body)}"
    cluster.create_topic(topic, 1)
    cluster.send(Message(topic, body))
    place = first_message(surfer, f"topic={topic}")
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    page = surfer.post(place, form="avro", schema=json.dumps(schema))
    assert words in page.words
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KB
    assert time.process_time() - began < 0.5 * slowness_of_thread()


def test_a_protobuf_body_of_many_messages_holds_no_memory() -> None:
    """Each of two bytes has all the fields of its type."""
    pb = pytest.importorskip("google.protobuf.descriptor_pb2", reason="protobuf is not installed")
    kinds = pb.FieldDescriptorProto
    fields = [pb.FieldDescriptorProto(name=f"f{n}", number=n, type=kinds.TYPE_INT64, label=1) for n in range(1, 101)]
    orders = kinds(name="orders", number=1, type=kinds.TYPE_MESSAGE, type_name=".shop.Order", label=3)
    types = [
        pb.DescriptorProto(name="Order", field=fields),
        pb.DescriptorProto(name="Orders", field=[orders]),
    ]
    file = pb.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3", message_type=types)
    schema = pb.FileDescriptorSet(file=[file]).SerializeToString()
    assert '"f100": 0' in decoded(Task(PROTOBUF, b"\x0a\x00", schema, "shop.Orders")).text
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CometMQError, match="too many values"):
        decoded(Task(PROTOBUF, b"\x0a\x00" * (BODY_BYTES // 2), schema, "shop.Orders"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KB


def test_bodies_are_decoded_by_few_processes_at_a_time(surfer: Surfer, cluster: SyncCluster) -> None:
    cluster.create_topic("hostile-crowd", 1)
    cluster.send(Message("hostile-crowd", varint(1 << 60) + b"\0"))
    place = first_message(surfer, "topic=hostile-crowd")
    crowd = DECODING_PROCESSES + 2
    with ThreadPoolExecutor(crowd) as threads:
        posts = [threads.submit(surfer.post, place, form="avro", schema=json.dumps(NOTHINGS)) for _ in range(crowd)]
    told = [post.result().words for post in posts]
    assert sum("try again in a moment" in words for words in told) == 2
    assert sum("too many values" in words for words in told) == DECODING_PROCESSES
