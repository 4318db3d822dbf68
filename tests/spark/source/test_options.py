"""Options are read as documented, and what is wrong is named with its remedy."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.source.options import (
    SourceOptions,
    demand_batch,
    demand_stream,
    named_paths,
    offset_named,
    parse_options,
)

BASE = {"namesrvaddr": "127.0.0.1:9876;127.0.0.2:9876", "topic": "orders, payments"}


def parse(**more: str) -> SourceOptions:
    return parse_options(BASE | more)


def test_names_are_read_in_any_case_and_by_their_aliases() -> None:
    options = parse_options({"NAMESERVER": "a:1", "Subscribe": "T", "pull.batch.size": "7"})
    assert (options.namesrv_addr, options.topics, options.pull_batch_size) == (("a:1",), ("T",), 7)


def test_lists_of_addresses_and_topics() -> None:
    options = parse()
    assert options.namesrv_addr == ("127.0.0.1:9876", "127.0.0.2:9876")
    assert options.topics == ("orders", "payments")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startOffsets": "earliest"}, "no option 'startOffsets' .did you mean startingOffsets"),
        ({"kafka.bootstrap.servers": "x:1"}, "no option 'kafka.bootstrap.servers'"),
        ({"subscribe": "T"}, "exactly one of topic, subscribe, subscribePattern and assign .* topic and subscribe"),
        ({"nameServer": "other:1"}, "namesrvAddr is given twice"),
        ({"startingOffsets": "first"}, "startingOffsets must be earliest, latest or JSON such as .*, not 'first'"),
        ({"startingOffsets": "[1]"}, r"startingOffsets must be .* JSON such as {.topic.*, not '\[1\]'"),
        ({"startingOffsets": '{"orders": 5}'}, "must be nested in a topic, a broker and a queue"),
        ({"startingOffsets": '{"orders": {"b": {"x": 5}}}'}, "'x' is not the number of a queue"),
        ({"startingOffsets": '{"orders": {"b": {"00": 5}}}'}, "'00' is not the number of a queue"),
        ({"startingOffsets": '{"orders": {"b": {"0": -7}}}'}, "-7 is not an offset"),
        ({"assign": '{"orders": [0]}'}, "assign and topic cannot be combined"),
        ({"assign": "orders"}, "assign must be JSON such as .*, not 'orders'"),
        ({"assign": "{}"}, "assign must be JSON such as .*, not '{}'"),
        ({"assign": '{"orders": []}'}, "is not a list of queue numbers"),
        ({"assign": '{"orders": {"b": [true]}}'}, "is not a list of queue numbers"),
        ({"assign": '{"orders": {"b": [-1]}}'}, "is not a list of queue numbers"),
        ({"assign": '{"a b": [1]}'}, "option assign is invalid: .*illegal characters"),
        ({"startingOffsets": '{"orders": {"b": {"0": true}}}'}, "True is not an offset"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "cannot be combined"),
        ({"endingOffsets": "latest", "endingTimestamp": "0"}, "cannot be combined"),
        (
            {"startingTimestamp": "yesterday"},
            "must be a time such as 2026-01-31T12:00 or milliseconds since 1970.*, not 'yesterday'",
        ),
        ({"failOnDataLoss": "maybe"}, "true or false, not 'maybe'"),
        ({"minPartitions": "0"}, "a whole number of at least 1, not '0'"),
        ({"maxOffsetsPerTrigger": "1e6"}, "a whole number of at least 1, not '1e6'"),
        ({"badBodies": "drop"}, "fail or null, not 'drop'"),
        ({"badRecordsPath": "/bad"}, "badRecordsPath has no effect .*badBodies=null"),
        ({"consumerGroup": "../x"}, "option consumerGroup is invalid: "),
        ({"topic": "a b"}, "option topic is invalid: .*illegal characters"),
        ({"topic": " , "}, "names no topic"),
        ({"namesrvaddr": "nowhere"}, "option namesrvAddr is invalid: the address does not have the form"),
        ({"namesrvaddr": ""}, "option namesrvAddr is missing"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(BASE | given)


def test_a_pattern_must_be_a_regular_expression() -> None:
    with pytest.raises(OptionError, match=r"subscribePattern must be a regular expression, not '.': "):
        parse_options({"namesrvAddr": "a:1", "subscribePattern": "("})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "latest"}, "cannot begin at the latest"),
        ({"endingOffsets": "earliest"}, "cannot end at the earliest"),
        ({"startingOffsets": '{"a": "earliest", "orders": "latest"}'}, "cannot begin at the latest"),
        ({"startingOffsets": '{"orders": {"b": {"0": 7, "3": -1}}}'}, "cannot begin at the latest"),
        ({"endingOffsets": '{"orders": {"b": "earliest"}}'}, "cannot end at the earliest"),
        ({"endingOffsets": '{"orders": {"b": {"0": 7, "3": -2}}}'}, "cannot end at the earliest"),
        ({"maxOffsetsPerTrigger": "5"}, "is only allowed for streams"),
        ({"maxTriggerDelay": "5s"}, "is only allowed for streams"),
    ],
)
def test_what_a_batch_cannot_mean(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        demand_batch(parse(**given))


def test_a_batch_takes_the_words_that_leave_something_to_read() -> None:
    start = '{"a": "earliest", "b": {"x": -2, "y": {"0": 0, "1": 7}}}'
    demand_batch(parse(startingOffsets=start, endingOffsets='{"a": "latest", "b": {"x": -1, "y": {"0": 9}}}'))


def test_a_queue_of_which_both_ends_say_the_same_is_left_out_on_purpose() -> None:
    start, end = '{"a": {"b": {"0": 7, "3": -1}}}', '{"a": {"b": {"0": 9, "3": -1}}}'
    demand_batch(parse(startingOffsets=start, endingOffsets=end))
    with pytest.raises(OptionError, match="cannot begin at the latest"):
        demand_batch(parse(startingOffsets=start, endingOffsets='{"a": {"b": {"0": -1, "3": 9}}}'))
    with pytest.raises(OptionError, match="cannot begin at the latest"):
        demand_batch(parse(startingOffsets="latest", endingOffsets="latest"))


@pytest.mark.parametrize("given", [{"endingTimestamp": "5"}, {"endingOffsets": '{"orders": "latest"}'}])
def test_a_stream_has_no_end(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="availableNow"):
        demand_stream(parse(**given))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ('{"orders": "latest"}', "latest"),
        ('{"orders": -2}', "earliest"),
        ('{"orders": {"b": "latest"}}', "latest"),
        ('{"orders": {"b": {"3": 12}}}', 12),
        ('{"orders": {"b": {"3": -1}}}', "latest"),
        ('{"orders": {"b": {"4": 12}}}', None),
        ('{"orders": {"c": "latest"}}', None),
        ("{}", None),
    ],
)
def test_what_offsets_say_about_a_queue(text: str, expected: int | str | None) -> None:
    start = parse(startingOffsets=text).starting_offsets
    assert start is not None
    assert offset_named(start, ("orders", "b", 3)) == expected


def test_the_places_that_offsets_name() -> None:
    start: dict[str, Any] = {"a": "latest", "b": {"x": {"0": 1}, "y": -1}}
    assert list(named_paths(start)) == [("a",), ("b",), ("b", "x"), ("b", "x", 0), ("b", "y")]


def test_times_are_milliseconds_or_iso() -> None:
    assert parse(startingTimestamp="1700000000000").starting_timestamp == 1_700_000_000_000
    assert parse(startingTimestamp="2023-11-14T22:13:20Z").starting_timestamp == 1_700_000_000_000
    assert parse(startingTimestamp="2023-11-14T22:13:20").starting_timestamp == 1_700_000_000_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, "endingTimestamp is before startingTimestamp"),
        ({"startingTimestamp": '{"a": 5, "b": 1}', "endingTimestamp": '{"a": 4}'}, "endingTimestamp of topic a is"),
        ({"startingTimestamp": '{"a": 5}', "endingTimestamp": "4"}, "endingTimestamp of topic a is before"),
        ({"startingTimestamp": "5", "endingTimestamp": '{"b": 4}'}, "endingTimestamp of topic b is before"),
        ({"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}, "minOffsetsPerTrigger is more than"),
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse(**given)


def test_what_ends_as_it_begins_is_empty_on_purpose() -> None:
    assert parse(startingTimestamp="5", endingTimestamp="5").ending_timestamp == 5
    assert parse(startingTimestamp='{"a": 5}', endingTimestamp='{"b": 4}').ending_timestamp == {"b": 4}
    assert parse(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="10").min_offsets_per_trigger == 10


def test_an_error_has_the_option_and_the_rest_of_the_sentence() -> None:
    """So a command can name the option as its user does, also when a Spark worker hands the error on."""
    with pytest.raises(OptionError) as caught:
        parse_options(BASE | {"maxTriggerDelay": "soon"})
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.option, str(error)) == ("maxTriggerDelay", f"option maxTriggerDelay {error.reason}")
        assert error.reason == "must be a duration such as 500ms, 90s, 1h30m or 2d, not 'soon'"
