"""Reading a message's properties in one pass, compared with reading them slowly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.turn.inner_message import index_fields, read_properties
from cometmq.message.ids import tags_code
from cometmq.message.properties import decode_properties, encode_properties

NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "DELAY", "TRAN_MSG", "CLUSTER", "a", "Größe"])
VALUES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8), st.booleans())
def test_agrees_with_the_map(pieces: list[tuple[str, str]], trailing: bool) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in pieces) + ("\x02" if trailing and pieces else "")
    whole = decode_properties(text)
    read = read_properties(text, "CLUSTER\x01c")
    assert decode_properties(read.text) == {n: v for n, v in whole.items() if n != "WAIT"} | {"CLUSTER": "c"}
    assert read.tags_code == tags_code(whole.get("TAGS"))
    keys = [key for key in whole.get("KEYS", "").split(" ") if key]
    assert read.index_keys == tuple(([whole["UNIQ_KEY"]] if "UNIQ_KEY" in whole else []) + keys)
    assert read.wait is (whole.get("WAIT") != "false")
    detour = {name: value for name, value in whole.items() if name in ("DELAY", "TRAN_MSG", "WAIT")}
    assert read.detour == (None if detour.keys() <= {"WAIT"} else detour)


@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_a_map_that_was_read_already_gives_the_same(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    read = read_properties(text, "")
    assert index_fields(properties) == (read.tags_code, read.index_keys)


def test_stores_no_empty_pieces() -> None:
    assert read_properties("\x02\x02a\x01b\x02", "CLUSTER\x01c").text == "a\x01b\x02CLUSTER\x01c"


def test_no_properties() -> None:
    read = read_properties("", "CLUSTER\x01c")
    assert read.text == "CLUSTER\x01c"
    assert (read.tags_code, read.index_keys, read.wait, read.detour) == (0, (), True, None)


def test_values_may_contain_the_name_separator() -> None:
    text = encode_properties({"a": "b\x01c", "TAGS": "t"})
    assert decode_properties(read_properties(text, "CLUSTER\x01c").text)["a"] == "b\x01c"
