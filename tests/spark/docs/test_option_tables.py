"""The tables of options and columns in the pages of Spark are what the code has: names, defaults, kinds of queries."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from cometmq.cli.jobs.pipeline import JOBS
from cometmq.spark.errors import OptionError
from cometmq.spark.records.columns import COLUMNS
from cometmq.spark.sink.options import SINK_COLUMNS, SINK_OPTION_NAMES, Guarantee, parse_sink_options
from cometmq.spark.source.options import OPTION_NAMES, demand_batch, demand_stream, parse_options
from cometmq.spark.store.options import STORE_OPTION_NAMES, parse_store_options

DOCS: Final = Path(__file__).parents[3] / "docs"
SOURCE: Final = (DOCS / "spark.md").read_text(encoding="utf-8")
SINK: Final = (DOCS / "spark-sink.md").read_text(encoding="utf-8")

SOME: Final = {
    "endingOffsets": '{"orders": "latest"}',
    "endingTimestamp": "5",
    "maxOffsetsPerTrigger": "5",
    "maxBytesPerTrigger": "64m",
    "minOffsetsPerTrigger": "5",
    "maxTriggerDelay": "30s",
    "commitGroup": "billing",
    "pushFilters": "true",
}
"""A value for each option that only one kind of query has."""


def table(page: str, heading: str) -> list[tuple[list[str], list[str]]]:
    """Rows of the first table below a heading: the names in the first column, the text of the others."""
    section = page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", first), rest) for first, *rest in rows]


Parse = Callable[[dict[str, str]], Any]

TABLES: Final[dict[str, tuple[tuple[str, str], tuple[str, ...], Parse]]] = {
    "source": (
        (SOURCE, "Options"),
        OPTION_NAMES,
        lambda given: parse_options({"namesrvAddr": "a:1", "topic": "orders"} | given),
    ),
    "sink": (
        (SINK, "Options of the sink"),
        SINK_OPTION_NAMES,
        lambda given: parse_sink_options({"namesrvAddr": "a:1"} | given),
    ),
    "store": (
        (SOURCE, "A store without a broker"),
        STORE_OPTION_NAMES,
        lambda given: parse_store_options({"path": "/backup"} | given),
    ),
}


def complaint(check: Callable[[Any], Any], given: Any) -> str:
    """The text of an error; empty if there is none."""
    try:
        check(given)
    except OptionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", TABLES)
def test_the_table_has_every_option_and_nothing_else(kind: str) -> None:
    place, names, parse = TABLES[kind]
    documented = [name for row, _ in table(*place) for name in row]
    assert [name for name in documented if "has no option" in complaint(parse, {name: "?"})] == []  # aliases too
    assert set(names) <= set(documented)
    assert len(documented) == len(set(documented))


@pytest.mark.parametrize("kind", TABLES)
def test_defaults_are_those_of_the_table(kind: str) -> None:
    place, _, parse = TABLES[kind]
    for names, (default, *_) in table(*place):
        values = re.findall(r"`([^`]+)`", default)
        if len(values) == 1:
            assert parse({names[0]: values[0]}) == parse({}), names[0]
        elif len(values) == len(names):
            for name, value in zip(names, values, strict=True):
                assert parse({name: value}) == parse({}), name


def test_an_option_of_one_kind_of_query_is_refused_by_the_other() -> None:
    kinds = {names[0]: rest[1] for names, rest in table(SOURCE, "Options")}
    assert set(kinds.values()) == {"both", "batch", "stream"}
    assert {name for name, kind in kinds.items() if kind != "both"} == set(SOME)
    for name, value in SOME.items():
        options = parse_options({"namesrvAddr": "a:1", "topic": "orders", name: value})
        assert bool(complaint(demand_batch, options)) == (kinds[name] == "stream"), name
        assert bool(complaint(demand_stream, options)) == (kinds[name] == "batch"), name


def test_every_guarantee_has_its_row() -> None:
    _, *rows = table(SINK, "Guarantees of the sink")
    assert [names[0] for names, _ in rows] == [kind.value for kind in Guarantee]


def test_every_column_is_documented_with_its_type() -> None:
    rows = [(names[0], rest[0], rest[1]) for names, rest in table(SOURCE, "Schema")]
    assert rows == [(column.name, column.type, "yes" if column.default else "no") for column in COLUMNS]
    for column, (_, rest) in zip(COLUMNS, table(SOURCE, "Schema"), strict=True):
        assert rest[2].startswith(column.doc), column.name


def test_every_column_of_the_sink_is_documented_with_its_types() -> None:
    rows = [(names[0], rest[0], rest[1]) for names, rest in table(SINK, "Columns of the sink")]
    assert rows == [(column.name, " or ".join(column.types), column.doc) for column in SINK_COLUMNS]


def test_the_table_of_jobs_has_every_job() -> None:
    section = SOURCE.split("\n## Jobs\n", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"\[`([a-z-]+)`\]\(", section)) == set(JOBS)
