from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.producer_sequence import ProducerSequence, SequenceError, parse_sequence

_NUMBER = st.integers(0, 2**50)


@given(
    st.builds(
        ProducerSequence,
        producer=st.text("abcXYZ019._:%|-", min_size=1, max_size=160),
        batch=_NUMBER,
        epoch=_NUMBER,
        first=_NUMBER,
        count=st.integers(0, 10_000),
        crc=st.integers(0, 2**32 - 1),
        note=st.text("abc:,/ 09", max_size=40),
    )
)
def test_a_sequence_is_read_as_it_was_written(sequence: ProducerSequence) -> None:
    assert parse_sequence(sequence.text()) == sequence


GOOD = "1;0;1;0;10;99;query-0;broker-a:4"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        GOOD.replace("1;0", "2;0", 1),
        GOOD + ";more",
        GOOD.replace("10", "10001"),
        GOOD.replace("10", "-1"),
        GOOD.replace("10", "٣"),
        GOOD.replace("99", str(2**32)),
        GOOD.replace("1;0;1", "1;0;" + "9" * 19),
        GOOD.replace("query-0", "a/b"),
        GOOD.replace("query-0", ""),
        GOOD.replace("query-0", "q" * 161),
        GOOD.replace("broker-a:4", "a\x01b"),
        GOOD.replace("broker-a:4", "n" * 8193),
    ],
)
def test_what_is_no_sequence_is_refused(text: str) -> None:
    with pytest.raises(SequenceError):
        parse_sequence(text)
    assert parse_sequence(GOOD).end == 10
