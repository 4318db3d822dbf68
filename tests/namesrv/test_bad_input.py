"""Whatever arrives, a nameserver answers with words or hangs up, logs no stack and goes on."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.logs import lines
from tests.namesrv.wire import Connect, topic

from cometmq.namesrv.server import NameServer
from cometmq.remoting.command import RemotingCommand

CODES = (100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327)
FIELDS = (
    *("topic", "cluster", "namespace", "key", "value", "brokerName", "brokerAddr", "clusterName", "haServerAddr"),
    *("brokerId", "compressed", "bodyCrc32"),
)
TEXTS = st.one_of(
    st.sampled_from(
        ["", "T", "../x", "0", "-1", "true", "127.0.0.1:1", "99999999999999999999", "%RETRY%", "\x00", "ü"]
    ),
    st.text(max_size=20),
    st.integers().map(str),
)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("body", [b"", b"\x00", b"{", b"[]", b"null", b'{"counter":"x"}', bytes(10_000)])
async def test_every_code_answers_a_request_without_fields(connect: Connect, code: int, body: bytes) -> None:
    wire = await connect()
    answer = await wire.ask(RemotingCommand(code=code, opaque=9, body=body))
    assert answer.opaque == 9
    assert answer.code == 0 or answer.remark


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(code=st.sampled_from(CODES), fields=st.dictionaries(st.sampled_from(FIELDS), TEXTS), body=st.binary(max_size=64))
async def test_any_fields_are_answered(
    server: NameServer,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    code: int,
    fields: dict[str, str],
    body: bytes,
) -> None:
    wire = await connect()
    caplog.clear()  # lines of the last example
    with caplog.at_level(logging.ERROR):
        answer = await wire.ask(RemotingCommand(code=code, opaque=9, ext_fields=fields, body=body))
    assert answer.code == 0 or answer.remark
    assert not lines(caplog)
    assert (await wire.register(topics=topic("T"))).code == 0
