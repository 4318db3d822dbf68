"""The master's consumer offsets, row by row, are what the whole body says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq import fastjson
from cometmq.broker.replication.slave_synchronize import offset_rows
from cometmq.remoting.bodies import BodyError

TABLES = st.dictionaries(st.text(max_size=12), st.dictionaries(st.integers(0, 99), st.integers(0, 2**62), max_size=4))


@given(TABLES)
def test_rows_are_those_of_the_body(table: dict[str, dict[int, int]]) -> None:
    assert dict(offset_rows(fastjson.dumps({"offsetTable": table}))) == table


@pytest.mark.parametrize(
    ("body", "table"),
    [
        (b'{"offsetTable":{}}', {}),
        (b' { "offsetTable" : { "a@b" : { "0" : 5 , 1 : 6 } , "c@d":{} } } ', {"a@b": {0: 5, 1: 6}, "c@d": {}}),
        (b'{"dataVersion":{"counter":1},"offsetTable":{"a@b":{0:5}}}', {"a@b": {0: 5}}),
        (b'{"another":[],"offsetTable":{"a@b":{0:5}}}', {"a@b": {0: 5}}),
    ],
)
def test_other_spellings_are_read(body: bytes, table: dict[str, dict[int, int]]) -> None:
    assert dict(offset_rows(body)) == table


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"offsetTable":{',
        b'{"offsetTable":{"a@b":{0:5}',
        b'{"offsetTable":{"a@b":{0:5},}}',
        b'{"offsetTable":{"a@b":{0:"many"}}}',
        b'{"offsetTable":{"a@b":{x:5}}}',
        b'{"offsetTable":{"a@b":{0:{}}}}',
        b'{"offsetTable":{"a@b":{0:99999999999999999999999999999x}}}',
        b'{"offsetTable":{"\xff@b":{0:5}}}',
        b'{"offsetTable":{"a@b":{0:5}}}}',
        b'{"offsetTable":{"a@b' + b"\\" * 10_000,
    ],
)
def test_what_cannot_be_read_is_an_error(body: bytes) -> None:
    with pytest.raises(BodyError):
        list(offset_rows(body))
