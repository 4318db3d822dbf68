from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.trace_record import (
    EndTransaction,
    Pub,
    SubAfter,
    SubBefore,
    TraceRecord,
    decode_trace,
    encode_trace,
)

PUB = Pub(
    time_ms=1700000000000, region="DefaultRegion", group="g", topic="T", msg_id="AC01", tags="A", keys=None,
    store_host="127.0.0.1:10911", body_bytes=5, cost_ms=3, msg_type=0, offset_msg_id="7F01", success=True,
)  # fmt: skip


def test_records_are_written_as_javas_client_writes_them() -> None:
    assert encode_trace(PUB) == (
        "Pub\x011700000000000\x01DefaultRegion\x01g\x01T\x01AC01\x01A\x01null\x01127.0.0.1:10911\x015\x013\x010\x017F01"
        "\x01true\x02"
    )
    before = SubBefore(time_ms=1, region=None, group="g", request_id="R", msg_id="AC01", retry_times=2, keys="k1 k2")
    assert encode_trace(before) == "SubBefore\x011\x01null\x01g\x01R\x01AC01\x012\x01k1 k2\x02"
    after = SubAfter(
        request_id="R", msg_id="AC01", cost_ms=7, success=False, keys=None, context_code=4, time_ms=9, group="g"
    )
    assert encode_trace(after) == "SubAfter\x01R\x01AC01\x017\x01false\x01null\x014\x019\x01g\x02"
    end = EndTransaction(
        time_ms=1, region="", group="g", topic="T", msg_id="AC01", tags=None, keys="k", store_host="h:1", msg_type=2,
        transaction_id="X", transaction_state="COMMIT_MESSAGE", from_transaction_check=False,
    )  # fmt: skip
    assert encode_trace(end) == (
        "EndTransaction\x011\x01\x01g\x01T\x01AC01\x01null\x01k\x01h:1\x012\x01X\x01COMMIT_MESSAGE\x01false\x02"
    )


_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1).filter(
    lambda text: text != "null"
)
_number = st.integers(0, 2**40)
_FIELDS: dict[type, st.SearchStrategy[Any]] = {int: _number, bool: st.booleans(), str: _text}


def _records() -> st.SearchStrategy[TraceRecord]:
    def fields(kind: type[Any], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[TraceRecord]:
        known = {
            name: _number if name.endswith(("_ms", "_bytes", "_times")) or name in ("msg_type", "context_code")
            else st.booleans() if name in ("success", "from_transaction_check")
            else st.none() | _text if name in ("tags", "keys", "region")
            else _text
            for name in kind.__struct_fields__
            if name != "client_host"
        }  # fmt: skip
        return st.builds(kind, **(known | more))

    return st.one_of(fields(Pub), fields(SubBefore), fields(SubAfter), fields(EndTransaction))


@given(st.lists(_records(), max_size=5))
def test_what_is_written_is_read(records: list[TraceRecord]) -> None:
    assert decode_trace("".join(map(encode_trace, records)).encode()) == records


@given(
    st.binary() | st.lists(st.sampled_from(["Pub", "SubAfter", "\x01", "\x02", "1", "x" * 5000, "null"])).map("".join)
)
def test_what_is_none_is_passed_over(body: bytes | str) -> None:
    found = decode_trace(body if isinstance(body, bytes) else body.encode())
    assert decode_trace("".join(map(encode_trace, found)).encode()) == found


def test_fields_that_only_other_clients_write() -> None:
    go = encode_trace(PUB).removesuffix("\x02") + "\x0110.0.0.7\x02"
    (record,) = decode_trace(go.encode())
    assert isinstance(record, Pub)
    assert record.client_host == "10.0.0.7"
    cloud = "SubAfter\x01R\x01AC01\x017\x01true\x01k\x010\x02"
    assert decode_trace(cloud.encode()) == [
        SubAfter(request_id="R", msg_id="AC01", cost_ms=7, success=True, keys="k", context_code=0)
    ]
    assert decode_trace(b"Recall\x011\x01r\x01g\x01T\x01AC01\x01true\x02" + go.encode()) == [record]


@pytest.mark.parametrize("name", ["tags", "keys"])
def test_separators_inside_a_field_do_not_break_the_record(name: str) -> None:
    odd = msgspec.structs.replace(PUB, **{name: "a\x01b\x02c"})
    (record,) = decode_trace(encode_trace(odd).encode())
    assert getattr(record, name) == "a b c"
