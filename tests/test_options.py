"""Configuration files in Apache's form."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.options import (
    ConfigError,
    changed,
    format_properties,
    load_options,
    option,
    options_of,
)
from cometmq.properties_file import parse_properties, update_file


@dataclasses.dataclass(frozen=True)
class Sample:
    """Options of every kind."""

    flush_disk_type: str = option("ASYNC_FLUSH", "How.", choices=("ASYNC_FLUSH", "SYNC_FLUSH"), runtime=True)
    broker_id: int = option(0, "Id.")
    ratio: float = option(0.5, "Share.", minimum=0.0, maximum=1.0, runtime=True)
    trace_on: bool = option(True, "Trace.", runtime=True)
    secret_key: str = option("s3", "Hidden.", secret=True)
    broker_ip1: str = option("", "Address.", key="brokerIP1")


def test_java_properties_in_all_their_forms() -> None:
    text = "a=1\n b : 2\n#c=3\n!d=4\ne 5\nf=x\\\n   y\n\ng=\\u00fc\\t|\nh\n"
    assert list(parse_properties(text)) == [
        (1, "a", "1"),
        (2, "b", "2"),
        (5, "e", "5"),
        (6, "f", "xy"),
        (9, "g", "ü\t|"),
        (10, "h", ""),
    ]


@given(st.text())
def test_any_text_is_read_without_a_failure(text: str) -> None:
    for line, key, _ in parse_properties(text):
        assert line >= 1
        assert key


def test_values_are_typed_and_secrets_stay() -> None:
    config, warnings = load_options(
        Sample, "flushDiskType=SYNC_FLUSH\nbrokerId=3\nratio=0.25\ntraceOn=false\nbrokerIP1=::1\n", source="x.conf"
    )
    assert config == Sample("SYNC_FLUSH", 3, 0.25, False, "s3", "::1")
    assert warnings == []
    assert format_properties(config) == (
        "flushDiskType=SYNC_FLUSH\nbrokerId=3\nratio=0.25\ntraceOn=false\nbrokerIP1=::1\n"
    )


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("flushDiskType=NO", "ASYNC_FLUSH or SYNC_FLUSH"),
        ("brokerId=-1", "a whole number from 0 to 2147483647"),
        ("ratio=nan", "a number from 0 to 1"),
        ("traceOn=1", "true or false"),
    ],
)
def test_a_bad_value_names_what_is_allowed(line: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_options(Sample, line, source="x.conf")
    assert str(caught.value) == f"x.conf:1: {line}: allowed is {allowed}"


def test_the_command_line_wins_over_the_file() -> None:
    config, _ = load_options(Sample, "brokerId=3", source="x.conf", overrides={"broker_id": 4})
    assert config.broker_id == 4


def test_only_what_may_change_at_run_time_changes() -> None:
    config, texts = changed(Sample(), "ratio=1\nbrokerId=0\n")
    assert (config.ratio, texts) == (1.0, {"ratio": "1.0"})
    with pytest.raises(ConfigError, match="brokerId cannot be changed while running"):
        changed(Sample(), "brokerId=1")
    with pytest.raises(ConfigError, match="unknown key ratoi; did you mean ratio"):
        changed(Sample(), "ratoi=1")


def test_every_option_says_what_it_is() -> None:
    assert options_of(Sample)["flushDiskType"].range_text == "ASYNC_FLUSH or SYNC_FLUSH"
    assert options_of(Sample)["brokerIP1"].range_text == "text"


def test_a_file_is_updated_in_place(tmp_path: Path) -> None:
    file = tmp_path / "conf" / "x.conf"
    update_file(file, {"a": "1"})
    update_file(file, {"b": "x\ny", "a": "2"})
    assert file.read_text() == "a=2\nb=x\\ny\n"
    assert [entry[1:] for entry in parse_properties(file.read_text())] == [("a", "2"), ("b", "x\ny")]
