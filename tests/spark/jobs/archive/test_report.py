"""The report of an archive job."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import cometmq.spark.jobs.archive.job as archive_module
from cometmq.archive.commits import Commit, QueueTotals
from cometmq.archive.files import DataFile
from cometmq.cli.failures import guarded
from cometmq.cli.jobs.pipeline import command
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.jobs.archive.report import ArchivedBatch, ArchiveReport, ArchiveRun

REPORT = ArchiveReport(
    directory="/lake",
    rows=1500,
    bytes=2_000_000,
    files=3,
    batches=2,
    seconds=2.0,
    finished=True,
    warnings=(),
    queues=(QueueTotals("orders", "broker-a", 0, 0, 1000, 1000), QueueTotals("orders", "broker-a", 1, 5, 505, 500)),
)


def test_it_is_complete_when_nothing_is_missing() -> None:
    assert REPORT.complete
    assert not dataclasses.replace(REPORT, finished=False).complete
    assert not dataclasses.replace(REPORT, warnings=("x",)).complete


def test_a_run_of_months_is_summed_up(tmp_path: Path) -> None:
    """Each commit is passed on as it comes, and not held in memory."""
    seen: list[ArchivedBatch] = []
    run = ArchiveRun(ArchiveLog(tmp_path), seen.append)
    file = DataFile("x", "orders", "broker-a", 0, 0, 10, 10, 1000, 0, 0, 1)
    for number in range(300):
        run.add_commit(Commit(number, "q", number, 0, [], [file, file], [], [f"gap {number}"]))
    report = run.report(finished=True)
    assert (report.rows, report.bytes, report.files, report.batches) == (6000, 600_000, 600, 300)
    assert (seen[-1].total, seen[-1].bytes, seen[-1].files) == (6000, 2000, 2)
    assert report.warnings[0] == "messages gap 0 were gone before they were read"
    assert report.warnings[-2:] == (
        "200 more gaps: see gaps in the archive's commits",
        "600 bodies could not be unpacked; they are kept as stored in column storedBody",
    )
    assert len(report.warnings) == 102


def test_the_text_has_totals_queues_and_warnings() -> None:
    text = dataclasses.replace(REPORT, finished=False, warnings=("messages q [1, 2) were gone",)).render()
    assert "1,500 messages in 3 files (2.0 MB), 2 batches, 2.0 s (750 messages/s)" in text
    assert "now holds 1,500 messages of 2 queues" in text
    assert "broker-a      1      5    505       500" in text
    assert "run it again with the same checkpoint" in text
    assert "warning: messages q [1, 2) were gone" in text
    assert max(map(len, REPORT.render().splitlines())) <= 80


def test_everything_is_there_for_programs() -> None:
    plain = json.loads(json.dumps(REPORT.to_dict()))
    assert plain["queues"][1] == {
        "topic": "orders",
        "broker": "broker-a",
        "queue_id": 1,
        "first": 5,
        "next": 505,
        "rows": 500,
        "expired_to": 0,
        "expired_before_ms": 0,
    }
    assert (plain["total_rows"], plain["complete"]) == (1500, True)


@pytest.mark.parametrize(("report", "code"), [(REPORT, 0), (dataclasses.replace(REPORT, warnings=("x",)), 3)])
def test_the_command_ends_with_what_the_report_says(
    report: ArchiveReport,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(archive_module, "archive", lambda *_, **__: report)
    arguments = ["archive", "--topic", "orders", "--to", str(tmp_path / "to"), "--checkpoint", str(tmp_path / "at")]
    assert guarded(lambda: command.main([*arguments, "-o", "json"], standalone_mode=False)) == code
    seen = json.loads(capsys.readouterr().out)
    assert (seen["exit_code"], seen["complete"], seen["vacuumed"]) == (code, code == 0, 0)
