"""Lines of JSON: parsed without loss, and wrong ones named."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest

from cometmq.cli.failures import WrongUseError
from cometmq.cli.messages.format import Template, unescaped
from cometmq.cli.messages.json_line import NO_DELAY, Delays, LineError, parse_line
from cometmq.message.message import Message


def parsed(delays: Delays = NO_DELAY, **fields: object) -> Message:
    return parse_line(json.dumps(fields).encode(), "t", tag="shared", keys=("common",), delays=delays)


def test_every_field_of_a_message_is_read() -> None:
    message = parsed(
        body_base64=base64.b64encode(b"\0\xff\n").decode(),
        tags="x",
        keys=["a", "b"],
        properties={"p": "1"},
        sharding_key="s",
        flag=7,
        delay="1m",
    )
    assert message == Message(
        "t",
        b"\0\xff\n",
        tags="x",
        keys=("a", "b"),
        properties={"p": "1", "__SHARDINGKEY": "s"},
        flag=7,
        delay=timedelta(minutes=1),
    )
    assert parsed(body="b", delay_level=3).delay_level == 3
    assert parsed(body="b", deliver_at="2030-01-01T00:00+00:00").deliver_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert parsed(body={"a": [1]}).body == b'{"a": [1]}'


@pytest.mark.parametrize(
    ("properties", "delays"),
    [
        ({"DELAY": "3"}, Delays(delay_level=3)),
        ({"TIMER_DELAY_MS": "1500", "TIMER_OUT_MS": "9"}, Delays(delay=timedelta(milliseconds=1500))),
        ({"TIMER_DELAY_SEC": "2"}, Delays(delay=timedelta(seconds=2))),
        ({"TIMER_DELIVER_MS": "0"}, Delays(deliver_at=datetime(1970, 1, 1, tzinfo=UTC))),
    ],
)
def test_a_stored_message_keeps_its_delay_and_loses_what_brokers_set(
    properties: dict[str, str], delays: Delays
) -> None:
    brokers = {"CLUSTER": "c", "WAIT": "true", "REAL_TOPIC": "r", "UNIQ_KEY": "u", "TAGS": "x", "KEYS": "a b"}
    message = parsed(body="b", offset_msg_id="0A", queue_id=1, properties={**brokers, **properties, "mine": "1"})
    assert message.properties == {"mine": "1"}
    assert Delays(message.delay_level, message.delay, message.deliver_at) == delays
    assert (message.tags, message.keys) == ("x", ("a", "b"))


def test_options_are_for_lines_without_their_own_values() -> None:
    assert (parsed(body="b").tags, parsed(body="b").keys) == ("shared", ("common",))
    own = parsed(body="b", tags="own", keys="one")
    assert (own.tags, own.keys) == ("own", ("one",))
    assert parsed(body="b", delay="1m", delays=Delays(delay_level=1)).delay is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1", "not a JSON object"),
        ("{", "not valid JSON"),
        ('{"body": ' + "[" * 100_000, "nested too deeply"),
        (r'{"body": "\ud800"}', r"the body contains '.ud800', which is only half of a character"),
        (r'{"body": {"a": ["\udc00"]}}', r"the body contains '.udc00', which is only half of a character"),
        ('{"bdy": "x"}', "unknown field bdy; did you mean body?"),
        ('{"body": "x", "zzzzzz": 1}', "unknown field zzzzzz"),
        ("{}", "needs either body or body_base64"),
        ('{"body": "x", "body_base64": "eA=="}', "needs either body or body_base64"),
        ('{"body_base64": "?"}', "not valid base64"),
        ('{"body": "x", "keys": 1}', "keys must be a list"),
        ('{"body": "x", "properties": [1]}', "properties must be an object"),
        ('{"body": "x", "properties": {"CLUSTER": "c"}}', "properties CLUSTER are reserved"),
        ('{"body": "x", "delay": "soon"}', "delay must be a duration such as 500ms, 90s, 1h30m or 2d, not 'soon'"),
        ('{"body": "x", "delay": "1s", "delay_level": 1}', "more than one of delay, delay_level"),
        ('{"body": "x", "delay_level": "low"}', "delay_level must be an integer"),
    ],
)
def test_wrong_lines_are_named(line: str, words: str) -> None:
    with pytest.raises(LineError, match=words.replace("?", r"\?")):
        parse_line(line.encode(), "t", tag=None, keys=(), delays=NO_DELAY)


def test_escapes_and_wrong_templates() -> None:
    assert unescaped(r"a\n\t\0\\\xffä") == b"a\n\t\0\\\xff\xc3\xa4"
    for text in ("{bodi}", "{body", "{queue_id:3}", r"\q"):
        with pytest.raises(WrongUseError, match="--format"):
            Template(text, escape=False)
