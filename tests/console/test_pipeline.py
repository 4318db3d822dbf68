"""The page about reports of Spark jobs: it takes every file as a stranger's."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.helpers.consoles import Surfer, console_of

from cometmq.console.limits import MAX_REPORT_BYTES, MAX_REPORT_ROWS
from cometmq.spark.jobs.report.report import RunReport
from cometmq.testing.sync import SyncCluster


@dataclass(frozen=True)
class QueueLine:
    queue: int
    rows: int


@dataclass(frozen=True)
class ArchivedReport(RunReport):
    """A report of a job, as its command writes it."""

    TITLE = "Archive of {0.directory}"
    directory: str
    rows: int
    seconds: float
    finished: bool
    warnings: tuple[str, ...]
    queues: tuple[QueueLine, ...]


def as_written(report: RunReport) -> str:
    return json.dumps(report.to_dict() | {"exit_code": report.exit_code})


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def seen(cluster: SyncCluster, tmp_path_factory: pytest.TempPathFactory, reports: Path) -> Iterator[Surfer]:
    with console_of(cluster, tmp_path_factory.mktemp("console"), reports=reports) as server:
        yield Surfer(server.url)


def test_a_console_without_reports_says_how_to_make_some(surfer: Surfer, seen: Surfer) -> None:
    assert "cometmq console --reports DIR" in surfer.get("/pipeline").words
    assert surfer.get("/pipeline/a.json").status == 404
    page = seen.get("/pipeline")
    assert "-o json > DIR/skew.json" in page.words
    assert "--reports" not in page.words


def test_a_running_job_is_seen_until_its_report_is_no_longer_renewed(seen: Surfer, reports: Path) -> None:
    live = {
        "exit_code": 0,
        "title": "Table /lake/orders",
        "verdict": "3 messages and 2 s behind",
        "running": True,
    }
    (reports / "live.json").write_text(json.dumps(live | {"table_files": 48}))
    assert "live.json Table /lake/orders" in seen.get("/pipeline").words
    page = seen.get("/pipeline/live.json").words
    assert "running · 3 messages and 2 s behind ·" in page
    assert "table files 48" in page
    os.utime(reports / "live.json", (time.time() - 600, time.time() - 600))
    assert "no longer renewed: the job may have died" in seen.get("/pipeline/live.json").words
    (reports / "live.json").unlink()


def test_reports_are_listed_with_their_state_and_shown_as_figures_and_tables(seen: Surfer, reports: Path) -> None:
    queues = tuple(QueueLine(number, 1_000 * number) for number in range(MAX_REPORT_ROWS + 5))
    good = ArchivedReport("/lake/orders", 12_345, 1.5, finished=True, warnings=(), queues=queues)
    half = ArchivedReport("/lake/orders", 7, 2, finished=False, warnings=("queue 3 begins later",), queues=())
    (reports / "good.json").write_text(as_written(good))
    (reports / "half.json").write_text(as_written(half))
    os.utime(reports / "half.json", (1, 1))
    listed = seen.get("/pipeline").words
    assert listed.index("good.json") < listed.index("half.json"), "the newest is the first"
    assert "half.json" not in seen.get("/pipeline?q=GOOD").words
    assert "half.json Archive of /lake/orders" in listed
    assert "something is missing or needs attention The run was stopped before its end, with 1 warning 2 s 1" in listed
    page = seen.get("/pipeline/good.json").words
    assert "Archive of /lake/orders done · The run is complete ·" in page
    assert "rows 12,345" in page
    assert "directory /lake/orders" in page
    assert "finished yes" in page
    assert "queue rows 0 0 1 1,000 2 2,000" in page
    assert f"These are the first {MAX_REPORT_ROWS} of {MAX_REPORT_ROWS + 5}." in page
    assert "queue 3 begins later" in seen.get("/pipeline/half.json").words


def test_a_report_cannot_act_in_the_page(seen: Surfer, reports: Path) -> None:
    markup = "<img src=x onerror=alert(1)>"
    name = f"{markup[:12]}\u202e.json"
    head = {"title": markup + "\x1b\u202e", "verdict": markup * 100, "exit_code": 0}
    content = {**head, markup: [{markup: markup, "n": {"deep": markup}}], "text": "\x1b[31m\u202e"}
    (reports / name).write_text(json.dumps({**content, "warnings": [markup], "huge": 10**400, "most": 1e308}))
    for page in (seen.get("/pipeline"), seen.get(f"/pipeline/{quote(name)}")):
        assert page.status == 200, page.words
        assert "<img src=x" not in page.text
        assert "\x1b" not in page.text
        assert "\u202e" not in page.text
    assert "&lt;img src=x" in page.text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text.json", b"no json"),
        ("list.json", b"[1, 2]"),
        ("deep.json", b"[" * 100_000),
        ("deeper.json", b'{"exit_code": 0, "a": ' + b"[" * 900 + b"]" * 900 + b"}"),
        ("half-pair.json", b'{"exit_code": 0, "a": "\\ud800"}'),
        ("bytes.json", b'{"exit_code": 0, "a": "\xff"}'),
        ("no-code.json", b'{"warnings": []}'),
        ("no-title.json", b'{"exit_code": 0, "title": 7, "verdict": {}}'),
        ("wrong-types.json", b'{"exit_code": 0, "warnings": "<b>"}'),
        ("large.json", b'{"exit_code": 0, "a": "' + b"x" * MAX_REPORT_BYTES + b'"}'),
    ],
)
def test_a_file_that_is_no_report_hides_no_other_and_says_why(
    seen: Surfer, reports: Path, name: str, content: bytes
) -> None:
    (reports / name).write_bytes(content)
    assert name in seen.get("/pipeline").words
    assert seen.get(f"/pipeline/{name}").status in (200, 400)
    (reports / name).unlink()
    assert seen.get(f"/pipeline/{name}").status == 404


def test_only_files_of_the_directory_itself_are_opened(seen: Surfer, reports: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"exit_code": 0, "text": "secret"}')
    (reports / "link.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(reports / "pipe.json")
    (reports / "directory.json").mkdir()
    (reports / "page.html").write_text("<script>alert(1)</script>")
    os.close(os.open(os.fsencode(reports) + b"/\xff.json", os.O_CREAT))
    listed = seen.get("/pipeline")
    assert listed.status == 200
    escape = quote(f"../{tmp_path.name}/secret.json", safe="")
    for name in ("link.json", "pipe.json", "directory.json", "page.html", "%FF.json", escape):
        assert seen.get(f"/pipeline/{name}").status == 404
        assert name not in listed.words
