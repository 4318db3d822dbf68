"""The rule for columns from bodies: each row of the table in docs/tables.md."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.archive.commits import BodyColumn
from cometmq.spark.errors import OptionError
from cometmq.spark.records.body_columns.changes import ERROR_COLUMN, changed_columns, with_given
from cometmq.spark.records.body_columns.conforming import conform
from cometmq.spark.records.body_columns.decoding import BodyDecoder
from cometmq.spark.records.body_columns.formats import Bodies, JsonBodies, bodies_of
from cometmq.spark.records.body_columns.types import COLUMNS_MAX, arrow_fields, arrow_type, parse_columns, type_text


def decoded(ddl: str, *bodies: Any) -> tuple[dict[str, list[Any]], list[str | None], dict[str, str]]:
    """Values by column, errors, and the columns after the batch."""
    columns = Bodies(JsonBodies("decimal" in ddl), parse_columns(ddl) if ddl else ()).columns([])
    raw = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    found = BodyDecoder(JsonBodies("decimal" in ddl).parse, columns).decode(pa.array(raw, pa.binary()))
    values = {of.name: array.to_pylist() for of, array in zip(columns, found.columns, strict=True)}
    after, _ = changed_columns(columns, [found.wanted])
    return values, values.pop("bodyError"), {of.name: of.type for of in after if of != ERROR_COLUMN}


@pytest.mark.parametrize(
    ("ddl", "value", "after"),
    [
        ("", 7, "bigint"),
        ("", 7.5, "double"),
        ("", "x", "string"),
        ("", True, "boolean"),
        ("", {"b": [1]}, "struct<b:array<bigint>>"),
        ("", [{"b": 1}, {"c": 2.5}], "array<struct<b:bigint,c:double>>"),
        ("a int", 2**40, "bigint"),
        ("a float", 1e300, "double"),
        ("a struct<b:int>", {"b": 1, "c": "new"}, "struct<b:int,c:string>"),
        ("a array<struct<b:int>>", [{"b": 2**40}, {"c": 1}], "array<struct<b:bigint,c:bigint>>"),
    ],
)
def test_the_rule_adds_and_widens(ddl: str, value: Any, after: str) -> None:
    assert decoded(ddl, {"a": value})[2] == {"a": after}


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("bigint", "7", "a: a text does not fit bigint"),
        ("bigint", 7.5, "a: a number does not fit bigint"),
        ("bigint", True, "a: a boolean does not fit bigint"),
        ("bigint", 2**63, "a: an integer does not fit bigint"),
        ("double", "7", "a: a text does not fit double"),
        ("string", 7, "a: an integer does not fit string"),
        ("boolean", 1, "a: an integer does not fit boolean"),
        ("struct<b:bigint>", [1], "a: an array does not fit struct<b:bigint>"),
        ("array<bigint>", [1, "x"], "a[]: a text does not fit bigint"),
        ("struct<b:bigint>", {"b": {}}, "a.b: an object does not fit bigint"),
        ("timestamp", "yesterday", "a: a text does not fit timestamp"),
        ("date", 5, "a: an integer does not fit date"),
        ("decimal(4,2)", 123.45, "a: a number does not fit decimal(4,2)"),
        ("binary", "%%", "a: a text does not fit binary"),
    ],
)
def test_a_value_of_another_type_is_null_and_named(kind: str, value: Any, error: str) -> None:
    values, errors, after = decoded(f"a {kind}, other bigint", {"a": value, "other": 1}, {"a": None})
    assert errors == [error, None]
    assert values["other"] == [1, None], "the other fields keep their values"
    assert after["a"] == kind, "the column stays as it is"


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("int", 5, 5),
        ("double", 5, 5.0),
        ("float", 0.5, 0.5),
        ("decimal(6,2)", 123.4, Decimal("123.40")),
        ("decimal(6,2)", "123.4", Decimal("123.40")),
        ("date", "2026-01-31", datetime.date(2026, 1, 31)),
        ("timestamp", 1_000, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)),
        ("timestamp", "2026-01-31T10:00:00+02:00", datetime.datetime(2026, 1, 31, 8, tzinfo=datetime.UTC)),
        ("timestamp_ntz", "2026-01-31T10:00:00", datetime.datetime.fromisoformat("2026-01-31T10:00")),
        ("map<string,bigint>", {"x": 1}, [("x", 1)]),
        ("binary", "aGk=", b"hi"),
    ],
)
def test_given_types_take_their_values(kind: str, value: Any, stored: Any) -> None:
    values, errors, _ = decoded(f"a {kind}", {"a": value})
    assert (values["a"], errors) == ([stored], [None])


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "not JSON"),
        (b'{"a":', "not JSON"),
        (b'{"a":"\xff"}', "not JSON"),
        (b'{"a":1e999}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "the body is JSON, but not an object"),
        (b"null", "the body is JSON, but not an object"),
    ],
)
def test_a_bad_body_stops_nothing(body: bytes, error: str) -> None:
    values, errors, _ = decoded("a bigint", {"a": 1}, body, {"a": 2})
    assert values["a"] == [1, None, 2]
    assert errors[0] is None
    assert errors[1] is not None
    assert errors[1].startswith(error)


def test_names_that_would_collide_or_that_engines_refuse() -> None:
    body = {"topic": "x", "Hour": 1, "a.b": 1, "`": 1, "": 1, " x": 1, "é": 1, "Id": 1, "id": 2, "n" * 201: 1}
    values, errors, after = decoded("ID bigint", body)
    assert after == {"ID": "bigint", "body_topic": "string", "body_Hour": "bigint", "é": "bigint"}
    assert (values["ID"], errors) == ([None], [None])
    values, _, _ = decoded("topic string", body)
    assert values["body_topic"] == ["x"]


def test_null_empty_and_absent_values_make_no_column() -> None:
    assert decoded("", {"a": None, "b": [], "c": {}, "d": [None], "e": {"f": None}})[2] == {}


def test_tasks_of_one_batch_agree_about_a_new_column() -> None:
    integer, number, text = ({"a": arrow_type(kind)} for kind in ("int", "float", "string"))
    for wanted, kind in (([integer, number], "double"), ([number, integer], "double"), ([text, integer], "string")):
        assert changed_columns([], wanted)[0] == [BodyColumn("a", kind)]
    # A column of committed files never becomes a double: Iceberg has no such change.
    assert changed_columns([BodyColumn("a", "bigint")], [number]) == ([BodyColumn("a", "bigint")], [])


def test_a_producer_of_random_fields_does_not_make_endless_columns() -> None:
    wanted = {f"f{number}": pa.int64() for number in range(COLUMNS_MAX * 2)}
    columns, _ = changed_columns([ERROR_COLUMN], [wanted])
    assert len(columns) == COLUMNS_MAX
    more, changes = changed_columns(columns, [{"another": pa.int64()}])
    assert (more, changes) == (columns, [])


def test_columns_that_a_user_gives_later() -> None:
    known = [ERROR_COLUMN, *parse_columns("a int, b struct<c:float>, d bigint")]
    after = with_given(known, parse_columns("a bigint, b struct<c:double,e:string>, d int, f date"))
    assert after == [ERROR_COLUMN, *parse_columns("a bigint, b struct<c:double,e:string>, d bigint, f date")]
    for ddl in ("d string", "b bigint", "d double", "b struct<c:string>"):
        with pytest.raises(OptionError, match="cannot become"):
            with_given(known, parse_columns(ddl))


def test_texts_of_types() -> None:
    ddl = "a struct<`x y`:array<map<string,decimal(10,2)>>,b:timestamp>, c timestamp_ntz, d binary"
    for column in parse_columns(ddl):
        assert type_text(arrow_type(column.type)) == column.type
    assert [of.name for of in parse_columns("`a b` int, c: long")] == ["a b", "c"]


@pytest.mark.parametrize(
    "ddl",
    [
        *("", "a", "a in", "a int,", "a int b int", "a array<int", "a decimal(40,2)", "a map<int,int>", "1a int"),
        *("a struct<>", "a int; drop", "`a.b` int", "a int, A int", "a " + "array<" * 50 + "int" + ">" * 50),
    ],
)
def test_columns_that_are_no_columns(ddl: str) -> None:
    with pytest.raises(OptionError, match="invalid columns"):
        parse_columns(ddl)


def test_rows_of_older_files_fit_the_columns_of_today() -> None:
    before = pa.RecordBatch.from_pylist(
        [{"a": 1, "s": {"x": 1}, "l": [{"x": 1}, None]}, {"a": None, "s": None, "l": None}],
        schema=pa.schema(arrow_fields(parse_columns("a int, s struct<x:int>, l array<struct<x:int>>"))),
    )
    schema = pa.schema(
        arrow_fields(
            parse_columns("a bigint, n string, s struct<x:bigint,y:string>, l array<struct<y:string,x:bigint>>")
        )
    )
    for batch in (before, before.slice(1), before.slice(0, 1)):
        found = conform(batch, schema)
        found.validate(full=True)
        expected = [
            {"a": 1, "n": None, "s": {"x": 1, "y": None}, "l": [{"y": None, "x": 1}, None]},
            {"a": None, "n": None, "s": None, "l": None},
        ]
        first = 2 - len(batch) if batch.column("a")[0].as_py() is None else 0
        assert found.to_pylist() == expected[first : first + len(batch)]


AVSC = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "paid", "type": ["null", "boolean"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ],
}


def test_avro_bodies_become_columns(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed (pip install cometmq[avro])")
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(AVSC))
    bodies = bodies_of("avro", str(schema), None, "add")
    assert bodies is not None
    at = datetime.datetime(2026, 1, 31, 8, tzinfo=datetime.UTC)
    order: dict[str, Any] = {"id": 7, "paid": None, "at": at, "price": Decimal("12.50"), "tags": {"a": 1}}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(AVSC), order)
    columns = bodies.columns([])
    assert {of.name: of.type for of in columns} == {
        "bodyError": "string",
        "id": "bigint",
        "paid": "boolean",
        "at": "timestamp",
        "price": "decimal(8,2)",
        "body_tags": "map<string,int>",
    }
    found = bodies.decoder(columns).decode(pa.array([written.getvalue(), b"oops", written.getvalue() + b"x"]))
    values = pa.RecordBatch.from_arrays(found.columns, [of.name for of in columns]).to_pylist()
    tags = order.pop("tags")
    assert values[0] == {"bodyError": None, **order, "body_tags": [*tags.items()]}
    for row in values[1:]:
        assert row["bodyError"].startswith("not Avro Order: ")
        assert row["id"] is None
    assert found.wanted == {}


def test_protobuf_bodies_become_columns(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="protobuf is not installed (pip install cometmq[avro])")
    from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/duration.proto")
    kind = file.message_type.add(name="Order")
    kind.field.add(name="id", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_UINT64, label=1)
    kind.field.add(name="codes", number=2, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING, label=3)
    kind.field.add(
        name="took",
        number=3,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".google.protobuf.Duration",
        label=1,
    )
    file.message_type.add(name="Marker")
    kind.field.add(
        name="marker",
        number=4,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".shop.Marker",
        label=1,
    )
    duration = descriptor_pb2.FileDescriptorProto()
    duration_pb2.DESCRIPTOR.CopyToProto(duration)
    schema = tmp_path / "order.desc"
    schema.write_bytes(descriptor_pb2.FileDescriptorSet(file=[duration, file]).SerializeToString())
    bodies = bodies_of("protobuf", str(schema), "shop.Order", "add")
    assert bodies is not None
    columns = bodies.columns([])
    assert {of.name: of.type for of in columns} == {
        "bodyError": "string",
        "id": "decimal(20,0)",
        "codes": "array<string>",
        "took": "bigint",
    }
    pool = descriptor_pool.DescriptorPool()
    pool.Add(duration)
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(id=2**64 - 1, codes=["a"])
    made.took.FromMicroseconds(1_500_000)
    found = bodies.decoder(columns).decode(pa.array([made.SerializeToString(), b"\xff"]))
    error, identity, codes, took = (array.to_pylist() for array in found.columns)
    assert error[0] is None
    assert error[1].startswith("not Protobuf shop.Order: ")
    assert (identity, codes, took) == ([Decimal(2**64 - 1), None], [["a"], None], [1_500_000, None])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("avro", None, None), "avro bodies need a schema"),
        (("protobuf", "x.desc", None), "protobuf bodies need a schema"),
        (("json", None, "shop.Order"), "a message type is only for protobuf"),
        (("json", "missing.ddl", None), "cannot read the schema missing.ddl"),
        (("avro", "missing.avsc", None), "cannot read the schema missing.avsc"),
    ],
)
def test_options_of_bodies_are_checked(options: tuple[str, str | None, str | None], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        bodies_of(*options, "add")


NAMES = st.sampled_from(["a", "A", "b", "topic", "x.y", "", "é"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(NAMES, inside, max_size=3),
    max_leaves=8,
)
BODIES = st.lists(st.dictionaries(NAMES, VALUES, max_size=4).map(lambda of: json.dumps(of).encode()) | st.binary())
GIVEN = ("", "a int", "a struct<a:float,b:array<int>>", "b array<struct<a:int>>", "a timestamp, b decimal(8,2)")


@given(BODIES, BODIES, st.sampled_from(GIVEN))
def test_no_bodies_stop_a_table_and_columns_settle_at_once(first: list[bytes], later: list[bytes], ddl: str) -> None:
    """Whatever a producer sends: files of each commit can be written and joined, and no column is lost."""
    bodies = bodies_of("json", ddl or None, None, "add")
    assert bodies is not None
    columns, files = bodies.columns([]), []
    for batch in (first, later):
        raw = pa.array(batch, pa.binary())
        known = columns
        columns, _ = changed_columns(known, [bodies.decoder(known).decode(raw).wanted])
        assert with_given(columns, known) == columns, "the change is allowed"
        found = bodies.decoder(columns).decode(raw)
        assert changed_columns(columns, [found.wanted]) == (columns, []), "a file is written again only once"
        file = pa.RecordBatch.from_arrays(found.columns, schema=pa.schema(arrow_fields(columns)))
        file.validate(full=True)
        files.append(file)
        assert [of.type for of in columns] == [type_text(arrow_type(of.type)) for of in columns]
    for file in files:
        conform(file, pa.schema(arrow_fields(columns))).validate(full=True)
