"""Handlers marked with their codes: registered once, awaited if they are coroutines; a server that is only bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import CURRENT_VERSION, RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_RESPONSE, encode_json_header
from cometmq.remoting.frame import JSON, FrameDecoder
from cometmq.remoting.headers import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader, NoHeader
from cometmq.remoting.processors import (
    SERVER_LANGUAGE,
    Answered,
    ProcessorTable,
    Request,
    Response,
    answers,
    encode_response,
    handlers,
)
from cometmq.remoting.server import RemotingServer


class Part:
    """Answers three codes by two handlers, one of which waits."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    @answers(RequestCode.GET_MAX_OFFSET, limits=("MAX_TOPIC_CHARS",))
    def offset(self, _connection: Any, request: Request[GetMaxOffsetRequestHeader], _body: bytes) -> Response:
        return Response(header=GetMaxOffsetResponseHeader(offset=request.header.queue_id * 10))

    @answers(RequestCode.GET_BROKER_RUNTIME_INFO)
    @answers(RequestCode.GET_BROKER_CONFIG)
    async def later(self, _connection: Any, request: Request[NoHeader], body: bytes) -> Response:
        await self.go.wait()
        if body:
            raise RuntimeError("broken on purpose")
        return Response(remark=str(request.code))


def test_marks_name_code_header_and_limits_of_each_handler() -> None:
    assert list(handlers(Part)) == [
        ("later", Answered(RequestCode.GET_BROKER_RUNTIME_INFO, NoHeader, (), None)),
        ("later", Answered(RequestCode.GET_BROKER_CONFIG, NoHeader, (), None)),
        ("offset", Answered(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader, ("MAX_TOPIC_CHARS",), None)),
    ]


def test_a_java_request_without_fields_is_decoded_as_one_with_no_fields() -> None:
    table = ProcessorTable()
    table.add(Part())
    code = int(RequestCode.GET_BROKER_CONFIG)
    java = b'{"code":%d,"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":407}' % code
    processor = table.find(JSON, java)
    assert processor is not None
    found = [
        processor.decode(JSON, java.replace(b'"flag"', fields + b'"flag"'))
        for fields in (b"", b'"extFields":{},', b'"extFields":{"Signature":"s"},', b'"extFields":null,')
    ]
    assert [(one.code, one.opaque, one.language, one.version, one.header) for one in found] == [
        (code, 7, "JAVA", 407, NoHeader())
    ] * 4


@given(
    code=st.sampled_from([0, ResponseCode.SYSTEM_ERROR, 2**31 - 1, -1]),
    opaque=st.integers(-(2**31), 2**31 - 1),
    remark=st.none() | st.text(max_size=3),
    ext=st.none() | st.dictionaries(st.sampled_from("ab"), st.text(max_size=3), max_size=1),
    body=st.binary(max_size=3),
)
def test_a_response_without_fields_has_the_header_of_any_other(
    code: int, opaque: int, remark: str | None, ext: dict[str, str] | None, body: bytes
) -> None:
    decoder = FrameDecoder()
    decoder.push(b"".join(encode_response(JSON, opaque, Response(code, remark=remark, ext=ext, body=body))))
    frame = decoder.next()
    assert frame is not None
    usual = encode_json_header(code, opaque, FLAG_RESPONSE, remark, ext or None, SERVER_LANGUAGE, CURRENT_VERSION)
    assert (frame.header, frame.body) == (usual, body)


async def test_two_parts_do_not_answer_one_code_unless_one_takes_the_place_of_the_other() -> None:
    table = ProcessorTable()
    table.add(Part())
    with pytest.raises(ValueError, match="two handlers for GET_BROKER_RUNTIME_INFO"):
        table.add(Part())
    table.add(Part(), replaces=True)


async def test_a_coroutine_is_answered_when_it_returns_and_others_before_it() -> None:
    table, part = ProcessorTable(), Part()
    table.add(part)
    server = RemotingServer(table)
    await server.start("127.0.0.1", 0)
    client, address = RemotingClient(), f"127.0.0.1:{server.port}"
    waiting = asyncio.ensure_future(client.invoke(address, RequestCode.GET_BROKER_CONFIG, timeout_s=60))
    failing = asyncio.ensure_future(client.invoke(address, RequestCode.GET_BROKER_CONFIG, None, b"x", timeout_s=60))
    header = GetMaxOffsetRequestHeader(topic="T", queue_id=4)
    answer = await client.invoke(address, RequestCode.GET_MAX_OFFSET, header, timeout_s=60)
    assert answer.header(GetMaxOffsetResponseHeader).offset == 40
    assert not waiting.done()
    part.go.set()
    assert (await waiting).remark == str(int(RequestCode.GET_BROKER_CONFIG))
    assert ((await failing).code, (await failing).remark) == (
        ResponseCode.SYSTEM_ERROR,
        "RuntimeError: broken on purpose",
    )
    await client.close()
    await server.stop()


async def test_a_server_that_is_bound_has_its_port_and_accepts_nobody_until_it_listens() -> None:
    server = RemotingServer(ProcessorTable())
    await server.bind("127.0.0.1", 0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
    server.listen()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()
    await server.stop()
