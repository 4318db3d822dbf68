"""Configuration files in Apache's form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cometmq.apache_keys import BROKER, apache_keys
from cometmq.options import (
    ConfigError,
    changed,
    format_properties,
    load_options,
    option,
    options_of,
)
from cometmq.options.forms import one_of
from cometmq.properties_file import parse_properties, update_file


@dataclasses.dataclass(frozen=True)
class Sample:
    """Options of every kind."""

    flush_disk_type: str = option("ASYNC_FLUSH", "How.", form=one_of("ASYNC_FLUSH", "SYNC_FLUSH"), runtime=True)
    broker_id: int = option(0, "Id.")
    ratio: float = option(0.5, "Share.", minimum=0.0, maximum=1.0, runtime=True)
    trace_on: bool = option(True, "Trace.", runtime=True)
    secret_key: str = option("s3", "Hidden.", secret=True)
    broker_ip1: str = option("", "Address.", key="brokerIP1")
    unused: Mapping[str, str] = dataclasses.field(default_factory=dict)


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
@example("\\")
def test_any_text_is_read_without_a_failure(text: str) -> None:
    for line, key, _ in parse_properties(text):
        assert line >= 1
        assert isinstance(key, str)


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
    change = changed(Sample(), "ratio=1\nbrokerId=0\n")
    assert (change.config.ratio, change.texts) == (1.0, {"ratio": "1.0"})
    with pytest.raises(ConfigError, match="brokerId cannot be changed while running"):
        changed(Sample(), "brokerId=1")
    with pytest.raises(ConfigError, match="unknown key ratoi; did you mean ratio"):
        changed(Sample(), "ratoi=1")


def test_of_two_values_for_one_key_the_last_counts() -> None:
    change = changed(Sample(), "ratio=1\ntraceOn=false\nratio=0.5\n")
    assert (change.config.ratio, change.texts) == (0.5, {"traceOn": "false"})


FOREIGN = apache_keys(BROKER)


def test_keys_without_effect_are_kept_from_a_file_and_from_a_request() -> None:
    text = "sendMessageThreadPoolNums=8\nratio=1\nhighSpeedMode=perhaps\n"
    config, warnings = load_options(Sample, text, source="x.conf", apache=FOREIGN)
    assert warnings == [
        "x.conf:3: highSpeedMode=perhaps: allowed is true or false; ignored, because it has no effect here",
        "x.conf: Apache keys that have no effect here: sendMessageThreadPoolNums",
    ]
    change = changed(config, "sendMessageThreadPoolNums=8\nhighSpeedMode=TRUE\n", apache=FOREIGN)
    assert change.config.unused == {"sendMessageThreadPoolNums": "8", "highSpeedMode": "true"}
    assert (change.texts, change.without_effect) == ({"highSpeedMode": "true"}, ("highSpeedMode",))
    shown = {key: value for _, key, value in parse_properties(format_properties(change.config, FOREIGN))}
    assert (shown["sendMessageThreadPoolNums"], shown["highSpeedMode"]) == ("8", "true")
    assert config.unused == {"sendMessageThreadPoolNums": "8"}, "what was read before stays as it was"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sendMessageThreadPoolNums=many", "a whole number from -2147483648 to 2147483647"),
        ("sendMessageThreadPoolNums=2147483648", "a whole number from -2147483648 to 2147483647"),
        ("sendMessageThreadPoolNums=", "a whole number"),
        ("consumerFallbehindThreshold=9223372036854775808", "a whole number"),
        ("timerMetricSmallThreshold=1.5", "a whole number"),
        ("diskSpaceCleanForciblyRatioo=1", "did you mean"),
        ("highSpeedMode=1", "true or false"),
        ("metricsLabel=a\\nbrokerName:b", "none of them a control character"),
        ("metricsLabel=a\u2028b", "none of them a control character"),
        (f"metricsLabel={'x' * 4097}", "at most 4096 characters"),
        ("storePathEpochFile=/etc/passwd", "cannot be changed while running"),
        ("messageStorePlugIn=some.Class", "cannot be changed while running"),
        ("brokerConfigPath=/elsewhere", "cannot be changed while running"),
        ("rocketmqHome=/elsewhere", "cannot be changed while running"),
    ],
)
def test_keys_without_effect_are_checked_and_those_that_name_files_stay(line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        changed(Sample(), f"ratio=1\n{line}\n", apache=FOREIGN)


def test_secrets_of_apaches_are_kept_and_never_shown() -> None:
    change = changed(Sample(), "initAuthenticationUser=hunter2\n", apache=FOREIGN)
    assert change.config.unused["initAuthenticationUser"] == "hunter2"
    assert "hunter2" not in format_properties(change.config, FOREIGN)


def test_many_unknown_keys_are_counted() -> None:
    _, warnings = load_options(Sample, "".join(f"zz{number}=1\n" for number in range(20_000)), source="x.conf")
    assert warnings[0] == "x.conf:1: unknown key zz0 ignored"
    assert warnings[50:] == ["x.conf: 19950 more unknown keys ignored"]


def test_every_option_says_what_it_is() -> None:
    assert options_of(Sample)["flushDiskType"].form.words == "ASYNC_FLUSH or SYNC_FLUSH"
    assert options_of(Sample)["brokerIP1"].form.words == "text"


def test_a_file_is_updated_in_place(tmp_path: Path) -> None:
    file = tmp_path / "conf" / "x.conf"
    update_file(file, {"a": "1"})
    update_file(file, {"b": "x\ny", "a": "2"})
    assert file.read_text() == "a=2\nb=x\\ny\n"
    assert [entry[1:] for entry in parse_properties(file.read_text())] == [("a", "2"), ("b", "x\ny")]
