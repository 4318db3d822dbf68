"""Java properties: long texts take no longer than they are, and only Java's line ends end a line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.limits import MAX_CONFIG_BYTES
from cometmq.options import nearest
from cometmq.properties_file import (
    MalformedEscapeError,
    format_pairs,
    parse_properties,
    read_properties,
    update_file,
)

OTHER_SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""The characters that ``str.splitlines`` splits at and Java does not."""


@pytest.mark.parametrize("unit", ["a\\\n", "\\\n", "\\\\\\\n", " \\\r\n", "a=b\\\n#\\\n"])
def test_continued_lines_take_as_long_as_they_are(unit: str) -> None:
    began = time.thread_time()
    list(parse_properties("k=" + unit * 300_000))
    assert time.thread_time() - began < 3  # it took minutes


def test_a_long_key_is_not_compared_with_the_known_ones() -> None:
    began = time.thread_time()
    assert nearest("brokerName" * 100_000, [f"key{number}" for number in range(200)]) is None
    assert time.thread_time() - began < 0.1


@pytest.mark.parametrize("separator", OTHER_SEPARATORS)
def test_a_change_is_written_to_its_own_line_whatever_stands_in_others(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"# one{separator}two\nbrokerName=a{separator}b\ntraceOn=true\nlast=1\n", encoding="utf-8")
    update_file(path, {"traceOn": "false"})
    assert path.read_text(encoding="utf-8") == (
        f"# one{separator}two\nbrokerName=a{separator}b\ntraceOn=false\nlast=1\n"
    )


def test_a_key_is_not_added_to_a_last_line_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\\")
    update_file(path, {"traceOn": "false"})
    assert {key: value for _, key, value in parse_properties(path.read_text())}["traceOn"] == "false"


LINES = st.lists(
    st.text(alphabet="ab=:# \t\\" + OTHER_SEPARATORS, max_size=6) | st.sampled_from(["k=1", "k:2\\", "other=3"]),
    max_size=8,
)


@given(lines=LINES, value=st.text(alphabet="xy\\\n\r" + OTHER_SEPARATORS, max_size=5).map(str.strip))
def test_after_a_change_all_other_keys_have_their_values(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], value: str
) -> None:
    path = tmp_path_factory.mktemp("properties") / "broker.conf"
    path.write_bytes("\n".join(lines).encode())
    before = {key: text for _, key, text in parse_properties(path.read_bytes().decode())}
    update_file(path, {"k": value})
    after = {key: text for _, key, text in parse_properties(path.read_bytes().decode())}
    before.setdefault("", after.get("", ""))
    assert after | {"": ""} == before | {"k": value, "": ""}


def test_a_change_keeps_the_bytes_of_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    comment = "# 消息队列\n".encode("gbk")
    path.write_bytes(comment + b"brokerName=M\xfcnchen\ntraceOn=true\n")
    update_file(path, {"traceOn": "false", "regionId": "消息 C:\\users "})
    written = b"traceOn=false\nregionId=\\u6d88\\u606f C:\\\\users \n"
    assert path.read_bytes() == comment + b"brokerName=M\xfcnchen\n" + written
    found = {key: value for _, key, value in parse_properties(read_properties(path), strict=True)}
    assert (found["brokerName"], found["regionId"]) == ("München", "消息 C:\\users ")


def test_a_file_larger_than_any_configuration_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"a" * MAX_CONFIG_BYTES)
    assert len(read_properties(path)) == MAX_CONFIG_BYTES
    for too_large in (tmp_path / "more.conf", Path("/dev/zero")):
        if too_large.parent == tmp_path:
            too_large.write_bytes(b"a" * (MAX_CONFIG_BYTES + 1))
        with pytest.raises(OSError, match="larger than 1048576 bytes"):
            read_properties(too_large)
        with pytest.raises(OSError, match="larger than 1048576 bytes"):
            update_file(too_large, {"a": "1"})


@pytest.mark.parametrize("text", ["k=\\u", "k=\\u12", "k=\\u12g4", "\\u=1", "k=a\\\n\\uxyz"])
def test_a_half_escape_is_refused_where_java_refuses_it_and_read_elsewhere(text: str) -> None:
    with pytest.raises(MalformedEscapeError, match="line 1: four hexadecimal digits"):
        list(parse_properties(text, strict=True))
    assert len(list(parse_properties(text))) == 1


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (" x", "k=\\ x\n"),
        ("x ", "k=x \n"),
        ("a=b:c#d!e", "k=a=b:c#d!e\n"),
        ("\t\n\r\f\\", "k=\\t\\n\\r\\f\\\\\n"),
        ("😀", "k=\\ud83d\\ude00\n"),
        ("\x00\x7f\u2028", "k=\\u0000\\u007f\\u2028\n"),
    ],
)
def test_values_are_written_in_ascii_as_java_reads_them(value: str, written: str) -> None:
    assert format_pairs({"k": value}) == written
    assert list(parse_properties(written, strict=True)) == [(1, "k", value)]


def test_keys_are_escaped_too() -> None:
    pairs = {"a b": "1", "#c": "2", "d=e:f": "3", "": "4"}
    assert {key: value for _, key, value in parse_properties(format_pairs(pairs), strict=True)} == pairs
