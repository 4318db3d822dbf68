"""W3C trace context: from the span that sends a message to the listener that gets it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from tests.interop.systems import Deployment

from cometmq.client import ConsumeFromWhere, LitePullConfig, LitePullConsumer, Message, MessageExt, Producer
from cometmq.client.errors import ClientStateError
from cometmq.client.sync import SyncProducer
from cometmq.client.trace.context import (
    opentelemetry_context,
    opentelemetry_headers,
    trace_context_of,
    valid_headers,
    with_trace_context,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def received(server: Deployment, topic: str, group: str, count: int) -> dict[bytes, MessageExt]:
    config = LitePullConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    found: dict[bytes, MessageExt] = {}
    async with LitePullConsumer(group, server.address, config=config) as consumer:
        await consumer.subscribe(topic)
        while len(found) < count:
            found |= {message.body: message for message in await consumer.poll(60)}
    return found


async def test_every_way_to_send_carries_the_current_span(server: Deployment, topic: str, group: str) -> None:
    spans = iter(range(1, 100))

    def headers() -> Mapping[str, str]:
        return {"traceparent": f"00-{'a' * 32}-{next(spans):016x}-01", "tracestate": "vendor=1"}

    own = {"traceparent": PARENT}
    message = Message(topic, b"one", properties={"color": "red"})
    async with Producer("p", server.address, trace_context=headers) as producer:
        await producer.send(message)
        await producer.send(Message(topic, b"large" * 20_000))
        await producer.send_many([Message(topic, b"many")])
        await producer.send_batch([Message(topic, b"b1"), Message(topic, b"b2")])
        await producer.send_oneway(Message(topic, b"oneway"))
        await producer.send(Message(topic, b"own", properties=own))
    found = await received(server, topic, group, 7)
    parents = [trace_context_of(message)["traceparent"][36:52] for message in found.values() if message.body != b"own"]
    assert sorted(int(parent, 16) for parent in parents) == [1, 2, 3, 4, 5, 6]
    assert trace_context_of(found[b"one"])["tracestate"] == "vendor=1"
    assert found[b"one"].properties["color"] == "red"
    assert trace_context_of(found[b"own"]) == own, "a context that is there already stays"
    assert message.properties == {"color": "red"}, "the caller's message is not changed"


async def test_without_await_the_span_is_that_of_the_calling_thread(server: Deployment, topic: str, group: str) -> None:
    def headers() -> Mapping[str, str]:
        return {"traceparent": PARENT} if threading.current_thread().name == "caller" else {}

    def send() -> None:
        with SyncProducer("p", server.address, trace_context=headers) as producer:
            producer.send(Message(topic, b"one"))
            producer.send_many([Message(topic, b"many")])
            producer.send_batch([Message(topic, b"batch")])
            producer.send_oneway(Message(topic, b"oneway"))

    caller = threading.Thread(target=send, name="caller")
    caller.start()
    found = await received(server, topic, group, 4)
    caller.join()
    assert [trace_context_of(message) for message in found.values()] == [{"traceparent": PARENT}] * 4


@pytest.mark.parametrize(
    "parent",
    [
        "", "x", PARENT.upper(), PARENT[:-1], "ff" + PARENT[2:], PARENT + "x", PARENT + "-" + "y" * 600,
        PARENT.replace(PARENT[3:35], "0" * 32), PARENT.replace(PARENT[36:52], "0" * 16),
    ],
)  # fmt: skip
def test_headers_that_are_none_are_left_out(parent: str) -> None:
    message = Message("T", b"x")
    assert with_trace_context(message, lambda: {"traceparent": parent, "tracestate": "a=b"}) is message


@pytest.mark.parametrize("state", ["", "a\x02b", "a=b\n", "é", "x" * 513])
def test_a_bad_tracestate_is_left_out(state: str) -> None:
    assert valid_headers({"traceparent": PARENT, "tracestate": state}) == {"traceparent": PARENT}


@given(st.dictionaries(st.sampled_from(["traceparent", "tracestate"]), st.text()))
def test_any_text_from_outside_is_looked_at_without_harm(headers: dict[str, str]) -> None:
    valid_headers(headers)


def test_a_function_that_raises_stops_no_message(caplog: pytest.LogCaptureFixture) -> None:
    def headers() -> Mapping[str, str]:
        raise RuntimeError("no span")

    message = Message("T", b"x")
    assert with_trace_context(message, headers) is message
    assert "no span" in caplog.text


def test_without_opentelemetry_the_next_step_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace.propagation.tracecontext", None)
    with pytest.raises(ClientStateError, match="pip install opentelemetry-api"):
        opentelemetry_headers()


async def test_opentelemetrys_span_is_found_again(server: Deployment, topic: str, group: str) -> None:
    span = trace.NonRecordingSpan(
        trace.SpanContext(
            0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, is_remote=False, trace_flags=trace.TraceFlags(1)
        )
    )
    async with Producer("p", server.address, trace_context=opentelemetry_headers()) as producer:
        with trace.use_span(span):
            await producer.send(Message(topic, b"x"))
        await producer.send(Message(topic, b"no span"))
    found = await received(server, topic, group, 2)
    assert trace_context_of(found[b"x"])["traceparent"] == PARENT
    assert trace_context_of(found[b"no span"]) == {}
    context = trace.get_current_span(opentelemetry_context(found[b"x"])).get_span_context()
    assert (context.trace_id, context.span_id) == (span.get_span_context().trace_id, span.get_span_context().span_id)
