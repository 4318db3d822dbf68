"""One property of a text is read and changed as all of it is read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.properties import PropertiesText, decode_properties, join_properties

NAMES = st.sampled_from(["a", "b", "ab", "KEYS", ""])
VALUES = st.text(st.sampled_from("ab\x01é"), max_size=3)
TEXTS = st.lists(st.tuples(NAMES, VALUES) | st.just(None), max_size=5).map(
    lambda pieces: "\x02".join("" if piece is None else f"{piece[0]}\x01{piece[1]}" for piece in pieces)
)


@given(TEXTS, st.booleans())
def test_one_value_is_that_of_the_whole_text(text: str, ends: bool) -> None:
    text += "\x02" if ends and text else ""
    found = PropertiesText(text)
    last = {name: value for name, _, value in (piece.partition("\x01") for piece in text.split("\x02"))}
    for name in ("a", "b", "ab", "KEYS", "c"):
        assert found.get(name) == last.get(name, "")
        assert (name in found) == any(piece.startswith(f"{name}\x01") for piece in text.split("\x02"))


@given(TEXTS, st.sets(NAMES))
def test_what_is_left_out_is_no_longer_read(text: str, names: set[str]) -> None:
    left = PropertiesText(text).without(names).text
    whole = decode_properties(text)
    assert decode_properties(left) == {name: value for name, value in whole.items() if name not in names}
    assert not left.endswith("\x02")


@given(TEXTS, st.booleans(), st.dictionaries(st.sampled_from(["a", "new"]), st.text("xy", min_size=1, max_size=2)))
def test_what_is_added_is_read_and_the_rest_stays(text: str, ends: bool, added: dict[str, str]) -> None:
    text += "\x02" if ends and text else ""
    longer = PropertiesText(text).plus(added).text
    assert decode_properties(longer) == decode_properties(text) | added
    assert longer.startswith(text.removesuffix("\x02"))
    assert longer.endswith(join_properties(added))


def test_added_properties_are_joined_as_a_broker_writes_them() -> None:
    assert PropertiesText("").plus({"a": "1"}).text == "a\x011"
    assert PropertiesText("a\x011\x02").plus({"b": "2", "c": "3"}).text == "a\x011\x02b\x012\x02c\x013"
    assert PropertiesText("a\x011\x02").plus({}).text == "a\x011"
