"""Configuration files: Apache 4.9.7's servers and ours make the same of generated lines, and of what we write."""

from __future__ import annotations

import base64
import json
import random
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.interop import builds
from tests.interop.conftest import unavailable

from cometmq.apache_keys import BROKER, NAMESERVER, apache_keys
from cometmq.broker.config import BrokerConfig
from cometmq.namesrv.config import NamesrvConfig
from cometmq.options import ConfigError, Option, format_properties, format_value, load_file, options_of
from cometmq.options.forms import FLAG
from cometmq.properties_file import MalformedEscapeError, format_pairs, parse_properties

pytestmark = pytest.mark.interop

SOURCE = Path(__file__).with_name("Configure.java")
SERVERS = {"broker": (BrokerConfig, BROKER), "namesrv": (NamesrvConfig, NAMESERVER)}
STRANGE = ["=", ":", " ", "\t", "\f", "#", "!", "\\", "\n", "\r", "\r\n", "\\\n", "u", "\\u0041", "\\ud83d\\ude00"]
STRANGE += ["\x0b", "\x85", "\xa0", "a", "b=1\n", "x:y\n", "\\\\"]
NUMBERS = [
    "0",
    "1",
    "7",
    "-1",
    "+5",
    "007",
    "24",
    "75",
    "98",
    "99",
    "100",
    "75%",
    "75 %",
    "1_000",
    "0x10",
    "1.0",
    "1e3",
]
NUMBERS += ["4096", "65536", "2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"]
NUMBERS += ["\\u0665", "5\\u00a0", "", " ", "0 # master", "10485760  # 10MB", "4M", "10s", "NaN", "5L", "5\\f", "\\ 5"]
WORDS = ["true", "TRUE", "True", "true ", "false", "yes", "on", "1", "tru\\u0065", "true\\t", "", "none", "false # no"]
WORDS += [
    "ASYNC_FLUSH",
    "SYNC_FLUSH",
    "sync_flush",
    "SYNC_MASTER",
    "slave",
    "SLAVE",
    "DLEDGER",
    "/data/store",
    "/data ",
]
WORDS += ["C:\\\\users", "a\\=b", "04;16", "4;x;5", "never", "\xa0x", "x\xa0", "DefaultCluster", "1.2.3.4:9876"]
SEPARATORS = ["=", ":", " ", " = ", "\t=", "=\f", "\f:\f", " \t", "\xa0=", "\x0b=", "=\xa0", "=="]
REFUSED = {"listenPort", "messageDelayLevel"}
"""Keys with values at which Apache's servers do not start, either."""


def apache(server: str, files: Iterable[bytes]) -> list[dict[str, Any]]:
    """What Apache's server makes of each file, from one JVM."""
    try:
        jars = builds.apache_servers("4.9.7") / "lib"
        command = [builds.java(), *builds.QUICK_JAVA, "-cp", f"{jars}/*", str(SOURCE), server]
    except builds.ToolMissingError as problem:
        unavailable(problem)
    lines = b"".join(base64.b64encode(file) + b"\n" for file in files)
    done = subprocess.run(command, input=lines, capture_output=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def used(config: Any, found: Option) -> str:
    """The value that a server of ours works with."""
    if found.key == "storePathCommitLog":
        return config.store_path_commit_log or str(config.commit_log)
    if found.key == "mappedFileSizeConsumeQueue":
        return str(config.consume_queue_file_bytes)
    return format_value(getattr(config, found.name))


def expected(found: Option, text: str, theirs: str, unset: str) -> str:
    """The value here for that of Apache's: our default where it has its own, the nearest one beyond our range."""
    if found.form is not FLAG and text.strip() in found.form.choices:
        return text.strip()  # blanks behind it make no other role, and no other flush
    if theirs == unset:
        return format_value(found.default)
    if found.key == "mappedFileSizeConsumeQueue" and int(theirs) < 0:
        return str((2**31 - 1) // 20 * 20)  # Apache rounds up beyond an int
    if not theirs and found.apache.empty:
        return found.apache.empty
    if found.apache.stripped:
        return theirs.strip()
    if found.form.has_range:
        assert found.form.minimum is not None
        assert found.form.maximum is not None
        return str(min(max(int(theirs), int(found.form.minimum)), int(found.form.maximum)))
    return theirs


def plain(found: Option, text: str) -> str:
    """The value that a text plainly says, of which nobody is warned."""
    if found.form is FLAG:
        return text.lower()
    if found.apache.stripped or text.strip() in found.form.choices:
        return text.strip()
    is_number = found.form.has_range and re.fullmatch(r"[+-]?\d+", text)
    return str(int(text)) if is_number else text


@pytest.mark.parametrize("server", SERVERS)
def test_the_values_of_generated_lines_are_those_of_apaches_server(tmp_path: Path, server: str) -> None:
    config_type, classes = SERVERS[server]
    (empty,) = apache(server, [b""])
    known = {
        key: found
        for key, found in options_of(config_type).items()
        if key in empty["getters"] and key not in REFUSED | {"configStorePath"}
    }
    chance = random.Random(1)
    files = []
    for _ in range(150):
        chosen = [
            (key, NUMBERS if found.form.has_range and chance.random() < 0.9 else WORDS) for key, found in known.items()
        ]
        lines = [f"{key}{chance.choice(SEPARATORS)}{chance.choice(choices)}\n" for key, choices in chosen]
        files.append("".join(lines).encode("latin-1"))
    path = tmp_path / "server.conf"
    different: list[str] = []
    changed: set[str] = set()
    for file, theirs in zip(files, apache(server, files), strict=True):
        path.write_bytes(file)
        config: Any
        config, warnings = load_file(config_type, path, overrides={}, apache=apache_keys(classes))
        texts = {key: text for _, key, text in parse_properties(file.decode("latin-1"))}
        for key in known.keys() & texts.keys():
            found, text, wanted, unset = known[key], texts[key], theirs["getters"][key], empty["getters"].get(key)
            if key == "storePathCommitLog" and not text:
                continue  # Apache's broker puts the log's files into /
            value = used(config, found)
            if value != (right := expected(found, text, wanted, unset)):
                different.append(f"{key}={text!r}: Apache {wanted!r}, here {value!r} instead of {right!r}")
            words = [warning for warning in warnings if f" {key}=" in warning or f" {key} " in warning]
            if len(words) > 1 or (not words and value != plain(found, text) and key != "mappedFileSizeConsumeQueue"):
                different.append(f"{key}={text!r}: {value!r} is used with {len(words)} warnings")
            if wanted != unset:
                changed.add(key)
    assert not different, "\n".join([f"{len(different)} differ", *different[:20]])
    assert len(changed) > len(known) * 2 // 3


def test_java_reads_the_same_keys_and_values_of_any_file() -> None:
    chance = random.Random(2)
    files = [
        "".join(chance.choice(STRANGE) for _ in range(chance.randint(1, 14))).encode("latin-1") for _ in range(3_000)
    ]
    refused = 0
    for file, theirs in zip(files, apache("namesrv", files), strict=True):
        try:
            ours = {key: value for _, key, value in parse_properties(file.decode("latin-1"), strict=True)}
        except MalformedEscapeError:
            assert theirs.get("error", "").startswith("Malformed"), file
            refused += 1
            continue
        entries = theirs["entries"]
        assert ours | {"": ""} == entries | {"": ""}, file
    assert refused > 10


def test_java_reads_what_is_written_for_it() -> None:
    chance = random.Random(3)
    letters = ["a", "u", "=", ":", " ", "\t", "\f", "#", "!", "\\", "\n", "\r", "é", "中", "😀", "\x7f", "\0", "\xa0"]
    texts = ["".join(chance.choice(letters) for _ in range(chance.randint(0, 6))) for _ in range(2_000)]
    pairs = [{key or "k": value} for key, value in zip(texts, reversed(texts), strict=True)]
    config = BrokerConfig(store_path_root_dir="C:\\users\\ü", broker_name="名", region_id=" x ")
    body = format_properties(config, apache_keys(BROKER)).encode()
    *written, shown = apache("broker", [*(format_pairs(each).encode() for each in pairs), body])
    assert [each["entries"] for each in written] == pairs
    read = {key: value for _, key, value in parse_properties(body.decode(), strict=True)}
    assert shown["entries"] == read
    assert (read["storePathRootDir"], read["brokerName"], read["regionId"]) == ("C:\\users\\ü", "名", " x ")


@pytest.mark.parametrize("server", SERVERS)
def test_every_key_that_apaches_server_shows_is_shown(server: str) -> None:
    config_type, classes = SERVERS[server]
    (empty,) = apache(server, [b""])
    shown = {key: value for _, key, value in parse_properties(format_properties(config_type(), apache_keys(classes)))}
    assert shown.keys() - empty["fields"].keys() - {"rocketmqHome"} <= options_of(config_type).keys()
    without_effect = empty["fields"].keys() - options_of(config_type).keys()
    assert {key: shown[key] for key in without_effect} == {key: empty["fields"][key] for key in without_effect}


@pytest.mark.parametrize("line", ["listenPort=70000", "listenPort=-1"])
def test_a_port_that_is_none_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(line)
    with pytest.raises(ConfigError, match="from 0 to 65535"):
        load_file(BrokerConfig, path, overrides={}, apache=apache_keys(BROKER))
