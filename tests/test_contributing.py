"""CONTRIBUTING.md: its code works, its paths exist (links: ``test_pages.py``), files name their classes of RocketMQ."""

from __future__ import annotations

import ast
import dataclasses
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.broker.limits import MAX_TOPICS
from cometmq.remoting.headers import Header
from cometmq.remoting.permissions import Action, Kind, needs_every
from cometmq.remoting.processors import Request, Response, answers, handlers
from cometmq.remoting.server_connection import ServerConnection

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CODE = [textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)]
TABLE = PAGE[PAGE.index("## Where is") : PAGE.index("**Follow a message.**")]
PART = re.compile(
    r"``([A-Z][A-Za-z]+(?:Processor|Service|Manager|Store|Connection|Client|Evaluator|Validator|Dispatcher|Activity|Impl))``"
)
ROWS = re.findall(r"^\| ([A-Za-z, ]+) \| (\[`.*) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("path", sorted({*re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", PAGE)} - {"spark/jobs/tally.py"}))
def test_a_path_below_the_source_exists(path: str) -> None:
    assert (ROOT / "src" / "cometmq" / path).is_file()


@pytest.mark.parametrize(("concepts", "files"), ROWS, ids=[concepts for concepts, _ in ROWS])
def test_a_file_names_the_concept_that_it_stands_for(concepts: str, files: str) -> None:
    texts = [(ROOT / path).read_text(encoding="utf-8") for path in re.findall(r"\(([^)]+)\)", files)]
    for concept in concepts.split(", "):
        assert any(re.search(rf"\b{concept}\b", text) for text in texts), concept


@cache
def modules() -> dict[Path, ast.Module]:
    """All modules, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "src").rglob("*.py"))}


def test_the_table_has_every_part_of_rocketmq_that_a_module_stands_for() -> None:
    """A module that names a class of RocketMQ in the first lines of its docstring has a row."""
    missing = []
    for path, module in modules().items():
        head = (ast.get_docstring(module) or "").partition("\n\n")[0]
        missing += [(name, path.name) for name in PART.findall(head) if not re.search(rf"\b{name}\b", TABLE)]
    assert not missing, 'add rows to the table "Where is …?" of CONTRIBUTING.md'


def test_no_module_is_above_500_lines_and_no_folder_above_25_files() -> None:
    modules = list((ROOT / "src").rglob("*.py"))
    long = {path: n for path in modules if (n := path.read_bytes().count(b"\n")) > 500}
    full = {folder: n for folder, n in Counter(path.parent for path in modules).items() if n > 25}
    assert not long, "find the second reason that moved in"
    assert not full


def test_docstrings_begin_with_their_subject_or_a_verb() -> None:
    begins = re.compile(r"(What|How|Who|Whose|Whom|Where|Whether|Why)\b")
    found = [
        f"{path.name}:{text.lineno}"
        for path, module in modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(text := node.value, ast.Constant) and begins.match(str(text.value))
    ]
    assert not found


def test_the_table_has_each_concept_once() -> None:
    concepts = [concept for row, _ in ROWS for concept in row.split(", ") if concept[0].isupper()]
    assert sorted(concepts) == sorted(set(concepts))


@pytest.mark.parametrize("page", ["README.md", "docs/README.md"])
def test_pages_lead_there(page: str) -> None:
    assert "CONTRIBUTING.md)" in (ROOT / page).read_text(encoding="utf-8")


def run(code: str, names: dict[str, Any]) -> SimpleNamespace:
    """Run code of the page; what it defines."""
    exec(compile(f"from __future__ import annotations\n{code}", "CONTRIBUTING.md", "exec"), names)
    return SimpleNamespace(**names)


class CountTopicsRequestHeader(Header):
    prefix: str


class CountTopicsResponseHeader(Header):
    count: int


def test_the_code_of_a_handler_answers_its_request() -> None:
    code = next(block for block in CODE if "@answers(" in block)
    known = (ServerConnection, Request, Response, CountTopicsRequestHeader, CountTopicsResponseHeader, Kind, Action)
    names = {kind.__name__: kind for kind in known} | {"answers": answers, "needs_every": needs_every}
    codes = SimpleNamespace(COUNT_TOPICS=30_999)
    made = run("class TopicAdmin:\n" + textwrap.indent(code, "    "), {**names, "RequestCode": codes})
    ((method, mark),) = handlers(made.TopicAdmin)
    assert (mark.code, mark.header, mark.limits) == (30_999, CountTopicsRequestHeader, ("MAX_TOPICS",))
    assert MAX_TOPICS > 0
    admin = made.TopicAdmin()
    admin._broker = SimpleNamespace(topics=SimpleNamespace(table={"T1": 1, "T2": 2, "U": 3}))
    request = SimpleNamespace(header=CountTopicsRequestHeader(prefix="T"))
    assert getattr(admin, method)(None, request, b"").header == CountTopicsResponseHeader(count=2)


def test_the_code_of_a_job_makes_its_options_and_its_report(tmp_path: Path) -> None:
    from cometmq.quantity import quantity
    from cometmq.spark.jobs.job import SparkOptions, job, job_options, option, options_from
    from cometmq.spark.jobs.message_source import MessageSource
    from cometmq.spark.jobs.report.parts import Part
    from cometmq.spark.jobs.report.report import Report
    from cometmq.spark.jobs.run import job_session

    known = (SparkOptions, MessageSource, Report, job, job_options, option, options_from, job_session, quantity)
    names = {made.__name__: made for made in known} | {"Part": Part, "Iterator": Iterator}
    options, report = (block for block in CODE if "Tally" in block)
    made = run(f"from dataclasses import dataclass\n{options}\n{report}", {**names, "__name__": __name__})
    assert [field.name for field in dataclasses.fields(made.TallyOptions)][-1] == "topic"
    done = made.TallyReport("orders", 12_000)
    done.write_page(tmp_path / "page.html")
    assert done.render() == "12,000 messages of orders"
    assert "Tally of orders" in (tmp_path / "page.html").read_text(encoding="utf-8")
