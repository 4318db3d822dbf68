"""Options and columns of the sink are read as documented, and what is wrong is named with its remedy."""

from __future__ import annotations

import pytest

from cometmq.message.sysflag import CompressionType
from cometmq.spark.errors import OptionError
from cometmq.spark.sink.options import Guarantee, SinkOptions, check_sink_schema, parse_sink_options

BASE = {"namesrvaddr": "127.0.0.1:9876", "topic": "orders"}


def parse(**more: str) -> SinkOptions:
    return parse_sink_options(BASE | more)


def test_names_are_read_in_any_case_and_by_their_aliases() -> None:
    options = parse_sink_options({"NAMESERVER": "a:1", "DELIVERY.guarantee": "AT_LEAST_ONCE", "CompressionType": "LZ4"})
    assert (options.namesrv_addr, options.topic, options.guarantee) == (("a:1",), None, Guarantee.AT_LEAST_ONCE)
    assert options.compression is CompressionType.LZ4


def test_what_spark_hands_to_every_sink_is_passed_over() -> None:
    assert parse(checkpointLocation="/data/checkpoint").topic == "orders"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topics": "a"}, "the rocketmq sink has no option 'topics' .did you mean topic"),
        ({"kafka.bootstrap.servers": "x:1"}, "no option 'kafka.bootstrap.servers' .it has namesrvAddr, "),
        ({"path": "/x"}, "no option 'path'"),
        ({"startingOffsets": "earliest"}, "no option 'startingOffsets'"),
        ({"topic": "a b"}, "option topic is invalid: .*illegal characters"),
        ({"nameServer": "other:1"}, "namesrvAddr is given twice"),
        ({"namesrvaddr": ""}, "option namesrvAddr is missing"),
        ({"deliveryGuarantee": "maybe"}, "deliveryGuarantee must be at-least-once, .*, not 'maybe'"),
        ({"compressionType": "snappy"}, "compressionType must be none, zlib, lz4 or zstd, not 'snappy'"),
        ({"maxBatchBytes": "5000000"}, "maxBatchBytes must be at most 4194304"),
        ({"sendTimeoutMs": "0"}, "a whole number of at least 1, not '0'"),
        ({"producerGroup": "../x"}, "option producerGroup is invalid: "),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_sink_options(BASE | given)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("body", "binary"), ("tag", "string")], "the rocketmq sink has no column 'tag' .did you mean tags"),
        ([("key", "string"), ("value", "string")], "no column 'key' .RocketMQ records have no key: use shardingKey"),
        ([("body", "binary"), ("amount", "double")], "no column 'amount' .it has body, .* leave out other columns"),
        (
            [("body", "struct<a:int>")],
            "column body .* is binary or string, not struct<a:int> .*to_json",
        ),
        ([("body", "binary"), ("queueId", "bigint")], "queueId of the rocketmq sink is int, not bigint"),
        ([("tags", "string")], "exactly one of the columns body and value, and both are missing"),
        ([("body", "binary"), ("value", "string")], "body and value, not both"),
        ([("body", "binary"), ("brokerName", "string")], "column brokerName requires column queueId"),
    ],
)
def test_a_schema_that_makes_no_messages_is_refused(fields: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_sink_schema(fields, topic_given=True)


def test_a_topic_must_come_from_somewhere() -> None:
    with pytest.raises(OptionError, match=r"topic is missing .set option topic, or add a column"):
        check_sink_schema([("body", "binary")], topic_given=False)
    check_sink_schema([("body", "binary"), ("topic", "string")], topic_given=False)
