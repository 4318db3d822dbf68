"""Bodies as text, JSON, Avro and Protobuf, in both directions."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.conftest import RunExample
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
pytest.importorskip("fastavro", reason="fastavro is not installed (pip install cometmq[avro])")
import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type

from cometmq.spark.bodies import as_json, as_text, from_avro, from_protobuf, to_avro, to_protobuf
from cometmq.spark.bodies.avro import AvroCodec
from cometmq.spark.bodies.codec import Codec
from cometmq.spark.bodies.protobuf import ProtobufCodec
from cometmq.spark.errors import OptionError

LINE = {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "attrs", "type": {"type": "map", "values": LINE}},
        {"name": "lines", "type": {"type": "array", "items": "Line"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["SMALL", "BIG"]}},
        {"name": "other", "type": ["null", "Kind"], "default": None},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "data", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "ok", "type": "boolean"},
        {"name": "ratio", "type": "double"},
    ],
}
AVRO_DDL = (
    "struct<id:bigint,who:string,at:timestamp,day:date,price:decimal(10,2),attrs:map<string,struct<n:int>>,"
    "lines:array<struct<n:int>>,kind:string,other:string,uid:string,clock:int,data:binary,ok:boolean,ratio:double>"
)
PROTOBUF_DDL = (
    "struct<id:bigint,total:decimal(20,0),count:bigint,who:string,at:timestamp,took:interval day to second,"
    "kind:string,kinds:array<string>,lines:array<struct<n:int>>,attrs:map<string,struct<n:int>>,data:binary>"
)


def descriptor() -> bytes:
    """The output of ``protoc --include_imports --descriptor_set_out`` for a file with shop.Order and shop.Node."""
    field = descriptor_pb2.FieldDescriptorProto
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"],
    )
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("NONE", "BIG")):
        kind.value.add(name=name, number=number)
    file.message_type.add(name="Line").field.add(name="n", number=1, type=field.TYPE_INT32, label=one)
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=field.TYPE_MESSAGE, label=one, type_name=".shop.Node")
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="AttrsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=field.TYPE_MESSAGE, label=one, type_name=".shop.Line")
    order.oneof_decl.add(name="_who")
    fields: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("id", field.TYPE_INT64, one, {}),
        ("total", field.TYPE_UINT64, one, {}),
        ("count", field.TYPE_UINT32, one, {}),
        ("who", field.TYPE_STRING, one, {"proto3_optional": True, "oneof_index": 0}),
        ("at", field.TYPE_MESSAGE, one, {"type_name": ".google.protobuf.Timestamp"}),
        ("took", field.TYPE_MESSAGE, one, {"type_name": ".google.protobuf.Duration"}),
        ("kind", field.TYPE_ENUM, one, {"type_name": ".shop.Kind"}),
        ("kinds", field.TYPE_ENUM, many, {"type_name": ".shop.Kind"}),
        ("lines", field.TYPE_MESSAGE, many, {"type_name": ".shop.Line"}),
        ("attrs", field.TYPE_MESSAGE, many, {"type_name": ".shop.Order.AttrsEntry"}),
        ("data", field.TYPE_BYTES, one, {}),
    ]
    for number, (name, type_, label, more) in enumerate(fields, 1):
        order.field.add(name=name, number=number, type=type_, label=label, **more)
    files = descriptor_pb2.FileDescriptorSet()
    for imported in (timestamp_pb2, duration_pb2):
        imported.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.append(file)
    described: bytes = files.SerializeToString()
    return described


DESCRIPTOR = descriptor()
EARLY, LATE = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
times = st.datetimes(EARLY.replace(tzinfo=None), LATE.replace(tzinfo=None), timezones=st.just(UTC))
lines = st.fixed_dictionaries({"n": st.integers(-(2**31), 2**31 - 1)})
common: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-(2**63), 2**63 - 1),
    "who": st.none() | texts,
    "attrs": st.dictionaries(texts, lines, max_size=3),
    "lines": st.lists(lines, max_size=3),
}
avro_values = st.fixed_dictionaries(
    {
        **common,
        "at": times,
        "day": st.dates(),
        "price": st.decimals(-99999999, 99999999, places=2),
        "kind": st.sampled_from(["SMALL", "BIG"]),
        "other": st.sampled_from([None, "SMALL", "BIG"]),
        "uid": texts,
        "clock": st.integers(0, 86_399_999),
        "data": st.binary(min_size=2, max_size=2),
        "ok": st.booleans(),
        "ratio": st.floats(allow_nan=False),
    }
)
protobuf_values = st.fixed_dictionaries(
    {
        **common,
        "total": st.integers(0, 2**64 - 1).map(Decimal),
        "count": st.integers(0, 2**32 - 1),
        "at": st.none() | times,
        "took": st.none() | st.timedeltas(timedelta(days=-1000), timedelta(days=1000)),
        "kind": st.sampled_from(["NONE", "BIG"]),
        "kinds": st.lists(st.sampled_from(["NONE", "BIG"]), max_size=3),
        "data": st.binary(max_size=5),
    }
)


def through_arrow(codec: Codec, value: Any) -> Any:
    """A value as Spark would hold it."""
    kind = to_arrow_type(codec.spark_type, timezone="UTC")
    return pa.array([value], kind).to_pylist(maps_as_pydicts="strict")[0]


@given(avro_values)
def test_avro_values_come_back_with_the_types_of_spark(value: dict[str, Any]) -> None:
    codec = pickle.loads(pickle.dumps(AvroCodec(json.dumps(AVRO))))
    assert codec.spark_type.simpleString() == AVRO_DDL
    assert through_arrow(codec, codec.decode(codec.encode(through_arrow(codec, value)))) == value


@given(protobuf_values)
def test_protobuf_values_come_back_with_the_types_of_spark(value: dict[str, Any]) -> None:
    codec = pickle.loads(pickle.dumps(ProtobufCodec("shop.Order", DESCRIPTOR)))
    assert codec.spark_type.simpleString() == PROTOBUF_DDL
    assert through_arrow(codec, codec.decode(codec.encode(through_arrow(codec, value)))) == value


UNION: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "namespace": "shop",
    "fields": [
        {"name": "value", "type": ["null", "int", "long", "string", LINE, {"type": "array", "items": "Line"}]},
        {"name": "size", "type": ["float", "double", "int"], "default": 0.5},
        {"name": "when", "type": [{"type": "int", "logicalType": "date"}, "string"]},
        {"name": "count", "type": ["null", "int", "long"]},
        {"name": "ratio", "type": ["float", "double"]},
        {"name": "parts", "type": {"type": "map", "values": ["boolean", "Line"]}},
    ],
}
UNION_DDL = (
    "struct<value:struct<member0:int,member1:bigint,member2:string,member3:struct<n:int>,member4:array<struct<n:int>>>,"
    "size:struct<member0:float,member1:double,member2:int>,when:struct<member0:date,member1:string>,count:bigint,"
    "ratio:double,parts:map<string,struct<member0:boolean,member1:struct<n:int>>>>"
)


def branch(member: int, name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value of a union: the form in which fastavro takes its type, and the member that it is in Spark."""
    return values.map(lambda value: ((name, value), (f"member{member}", value)))


ints, floats = st.integers(-(2**31), 2**31 - 1), st.floats(allow_nan=False, width=32)
union_values = st.fixed_dictionaries(
    {
        "value": st.none()
        | branch(0, "int", ints)
        | branch(1, "long", st.integers(-(2**63), 2**63 - 1))
        | branch(2, "string", texts)
        | branch(3, "shop.Line", lines)
        | branch(4, "array", st.lists(lines, max_size=2)),
        "size": branch(0, "float", floats) | branch(1, "double", st.floats(allow_nan=False)) | branch(2, "int", ints),
        "when": branch(0, "int", st.dates()) | branch(1, "string", texts),
        "count": st.none() | st.integers(-(2**63), 2**63 - 1),
        "ratio": st.floats(allow_nan=False),
        "parts": st.dictionaries(
            texts, branch(0, "boolean", st.booleans()) | branch(1, "shop.Line", lines), max_size=2
        ),
    }
)


@given(union_values)
def test_avro_unions_of_several_types_are_structs_of_members(value: dict[str, Any]) -> None:
    """Output of fastavro for the same schema is read, and gives the same bytes again."""
    codec = pickle.loads(pickle.dumps(AvroCodec(json.dumps(UNION))))
    assert codec.spark_type.simpleString() == UNION_DDL
    written = io.BytesIO()
    schemaless_writer(written, parse_schema(UNION), _chosen(value, 0))
    read = through_arrow(codec, codec.decode(written.getvalue()))
    assert _without_null_members(read) == _chosen(value, 1)
    assert codec.encode(read) == written.getvalue()


def _chosen(value: Any, form: int) -> Any:
    """Values of unions in the one form or the other."""
    if isinstance(value, dict):
        return {name: _chosen(part, form) for name, part in value.items()}
    if isinstance(value, tuple):
        return value[0] if form == 0 else dict([value[1]])
    return value


def _without_null_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_null_members(part)
            for name, part in value.items()
            if part is not None or not name.startswith("member")
        }
    return value


def test_a_field_of_a_union_that_is_absent_takes_its_default() -> None:
    codec = AvroCodec(json.dumps(UNION))
    rest = {"value": None, "when": {"member1": "now"}, "count": None, "ratio": 1.5, "parts": {}}
    assert codec.decode(codec.encode(rest))["size"] == {"member0": 0.5}
    with pytest.raises(ValueError, match="do not match"):
        codec.encode(rest | {"when": {"member0": None, "member1": None}})


def test_avro_unions_of_several_types_are_read_with_the_schema_that_they_were_written_with() -> None:
    both = (UNION, LINE)
    for schema, writer in (both, both[::-1]):
        with pytest.raises(OptionError, match="leave out writer_schema"):
            from_avro("body", schema, writer_schema=writer)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_an_exception_that_is_caught(body: bytes) -> None:
    for codec in (AvroCodec(json.dumps(AVRO)), AvroCodec(json.dumps(UNION)), ProtobufCodec("shop.Order", DESCRIPTOR)):
        try:
            value = codec.decode(body)
        except Exception:
            continue
        assert isinstance(value, dict)


def test_avro_bodies_of_an_older_schema_are_resolved() -> None:
    older = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    newer = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    newer["fields"].append({"name": "note", "type": "string", "default": "-"})  # type: ignore[attr-defined]
    body = AvroCodec(json.dumps(older)).encode({"id": 7})
    assert AvroCodec(json.dumps(newer), json.dumps(older)).decode(body) == {"id": 7, "note": "-"}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "invalid Avro schema"),
        ('"nothing"', "invalid Avro schema"),
        ('["null"]', "null alone has no values"),
        ('"null"', "null alone has no values"),
        ({"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}, "contains itself"),
        (Path("/nowhere/order.avsc"), "cannot read"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused_at_once(schema: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        from_avro("body", schema)


@pytest.mark.parametrize(
    ("message", "given", "words"),
    [
        ("shop.Nothing", DESCRIPTOR, "no message type 'shop.Nothing'"),
        ("shop.Node", DESCRIPTOR, "contains itself"),
        ("shop.Order", b"\xff", "invalid descriptor"),
        ("shop.Order", Path("/nowhere/order.desc"), "cannot read"),
    ],
)
def test_descriptors_that_cannot_be_used_are_refused_at_once(message: str, given: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        from_protobuf("body", message, given)


def test_modes_are_those_of_from_json() -> None:
    with pytest.raises(OptionError, match="a column cannot drop rows"):
        from_avro("body", AVRO, mode="DROPMALFORMED")
    with pytest.raises(OptionError, match="PERMISSIVE or FAILFAST"):
        as_text("body", mode="strict")


ONE: dict[str, Any] = {
    "id": 7,
    "who": None,
    "at": datetime(2026, 1, 31, 9, tzinfo=UTC),
    "day": date(2026, 1, 31),
    "price": Decimal("12.30"),
    "attrs": {"x": {"n": 1}},
    "lines": [{"n": 2}, {"n": 3}],
    "kind": "BIG",
    "other": None,
    "uid": "u",
    "clock": 5,
    "data": b"ab",
    "ok": True,
    "ratio": 0.5,
}


AT_COLLECTED = ONE["at"].astimezone().replace(tzinfo=None)
"""Spark gives timestamps in the zone of this machine."""


@pytest.mark.spark
def test_bodies_go_through_a_topic_in_both_forms(spark: Any, topics: Topics, tmp_path: Path) -> None:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema, described = tmp_path / "order.avsc", tmp_path / "order.desc"
    schema.write_text(json.dumps(AVRO))
    described.write_bytes(DESCRIPTOR)
    row = StructType().add("v", AvroCodec(json.dumps(AVRO)).spark_type)
    values = spark.createDataFrame([(ONE,)], row)
    fields = "id", "who", "at", "lines", "attrs", "kind", "data"
    both = values.select(
        to_avro("v", schema).alias("avro"),
        to_protobuf(f.struct(*(f.col("v")[name].alias(name) for name in fields)), "shop.Order", described).alias("pb"),
    )
    sent = both.selectExpr("avro AS body", "'avro' AS tags").unionAll(both.selectExpr("pb AS body", "'pb' AS tags"))
    topic = topics.create(1)
    servers = {"namesrvAddr": topics.namesrv, "topic": topic}
    sent.unionAll(spark.createDataFrame([(b"\xff\xff", "bad")], "body binary, tags string")).coalesce(1).write.format(
        "rocketmq"
    ).mode("append").options(**servers).save()

    read = spark.read.format("rocketmq").options(**servers).load()
    found = {
        row.tags: row
        for row in read.select(
            "tags",
            from_avro("body", schema, with_reason=True).alias("avro"),
            from_protobuf(f.col("body"), "shop.Order", described, with_reason=True).alias("pb"),
            from_avro("body", AVRO).alias("plain"),
            from_protobuf("body", "shop.Order", DESCRIPTOR).id.alias("id"),
        ).collect()
    }
    assert found["avro"].plain.asDict(recursive=True) == ONE | {"at": AT_COLLECTED}
    assert found["avro"].avro.value == found["avro"].plain
    assert found["avro"].avro.reason is None
    assert found["pb"].id == 7
    decoded = found["pb"].pb.value.asDict(recursive=True)
    assert {name: decoded[name] for name in fields} == {name: ONE[name] for name in fields} | {"at": AT_COLLECTED}
    assert (decoded["took"], decoded["count"], decoded["kinds"]) == (None, 0, [])
    assert (found["bad"].plain, found["bad"].id, found["bad"].avro.value) == (None, None, None)
    assert found["bad"].avro.reason
    assert "DecodeError" in found["bad"].pb.reason
    strict = read.where("tags = 'bad'").select(from_avro("body", schema, mode="FAILFAST"))
    with pytest.raises(PySparkException, match=r"cannot be decoded as Avro shop\.Order"):
        strict.collect()


@pytest.mark.spark
def test_values_that_do_not_fit_fail_or_give_null(spark: Any) -> None:
    small = {"type": "record", "name": "Small", "fields": [{"name": "n", "type": "int"}]}
    wrong = spark.sql("SELECT named_struct('n', 'text') AS v UNION ALL SELECT named_struct('n', null) AS v")
    permissive = wrong.select(to_avro("v", small, mode="PERMISSIVE").alias("body"))
    assert [row.body for row in permissive.collect()] == [None, None]
    with pytest.raises(PySparkException, match="cannot be encoded as Avro Small"):
        wrong.select(to_avro("v", small)).collect()
    with pytest.raises(PySparkException, match="has no field n"):
        wrong.select(to_protobuf("v", "shop.Order", DESCRIPTOR)).collect()


@pytest.mark.spark
def test_text_and_json(spark: Any) -> None:
    bodies = spark.createDataFrame([(b'{"n": 1}',), ("é{".encode(),), (b"\xff",), (None,)], "body binary")
    rows = bodies.select(
        as_text("body").alias("text"),
        as_json("body").cast("string").alias("variant"),
        as_json("body", "n int").n.alias("n"),
    ).collect()
    assert [tuple(row) for row in rows] == [
        ('{"n": 1}', '{"n":1}', 1),
        ("é{", None, None),
        (None, None, None),
        (None, None, None),
    ]
    for strict in (as_text("body", mode="FAILFAST"), as_json("body", mode="failfast")):
        # Spark raises an error of its own, or py4j's for one that it does not know.
        with pytest.raises(Exception, match=r"(?i)utf-?8|malformed"):
            bodies.select(strict).collect()


@pytest.mark.spark
def test_the_example_runs(run_example: RunExample, topics: Topics) -> None:
    said = run_example("bodies.py", topics.namesrv, topics.create(1))
    assert "|   100|1237.50|" in said
    assert "bytes follow the datum" in said or "Error" in said
