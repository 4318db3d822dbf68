"""Java properties: long texts take no longer than they are, and only Java's line ends end a line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.options import nearest
from cometmq.properties_file import parse_properties, update_file

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
