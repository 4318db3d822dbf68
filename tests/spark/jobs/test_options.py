"""One class of options for each job: its function, its command and its page agree."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cometmq.cli.failures import guarded
from cometmq.cli.jobs.pipeline import command
from cometmq.options.forms import POSITIVE
from cometmq.spark.jobs.job import SparkOptions, argument, job, job_options, option
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.options import AuditOptions, DelayOptions, ReplayOptions, Selection
from cometmq.spark.jobs.report.report import PARTLY_DONE, Report

ROOT = Path(__file__).parents[3]


@job_options
class CountOptions(SparkOptions):
    """Count."""

    topic: str = option("The topic.")
    rate: float | None = option("Messages a second.", default=None, form=POSITIVE)
    tell: Any = argument("called at the end", default=None)


@job(CountOptions)
def count(options: CountOptions) -> CountOptions:
    """Count messages.

    :raises ValueError: never.
    """
    return options


@dataclasses.dataclass(frozen=True)
class Ended(Report):
    """The report of a job that looked at nothing."""

    TITLE = "Ended"
    verdict = "partly"

    @property
    def exit_code(self) -> int:
        return PARTLY_DONE

    def _parts(self) -> Any:
        yield "one line"


def test_a_function_takes_arguments_or_one_object() -> None:
    assert count("orders", rate=5) == count(CountOptions("orders", rate=5))
    assert count("orders").master == "local[*]"
    with pytest.raises(TypeError, match="rates"):
        count("orders", rates=5)  # type: ignore[call-overload]
    with pytest.raises(dataclasses.FrozenInstanceError):
        count("orders").topic = "other"  # type: ignore[misc]


def test_a_function_shows_its_arguments_in_notebooks() -> None:
    assert [*inspect.signature(count).parameters] == ["topic", "rate", "tell", "spark", "master"]
    assert inspect.signature(count).parameters["spark"].kind is inspect.Parameter.KEYWORD_ONLY
    assert (count.__doc__ or "").splitlines()[0] == "Count messages."
    assert ":param rate: messages a second." in (count.__doc__ or "")
    assert (count.__doc__ or "").endswith(":raises ValueError: never.")


def said(job: str, module: str, arguments: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The options that a command hands to the function of its job."""
    handed: list[Any] = []

    def function(options: Any) -> Report:
        handed.append(options)
        return Ended()

    monkeypatch.setattr(f"cometmq.spark.jobs.{module}", function)
    assert guarded(lambda: command.main([job, *shlex.split(arguments)], standalone_mode=False)) == PARTLY_DONE
    return handed[0]


def test_a_command_hands_its_options_to_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = "--archive /lake --ledger /ledger -n here:9876 --rate 9 --key a --key b --since 2000 --by-key"
    arguments += " --translate-groups 'g1, g2' --access accessKey=me --access secretKeyEnv=KEY"
    options = said("replay", "replay.job.replay", arguments, monkeypatch)
    wanted = ReplayOptions(
        Path("/lake"),
        "here:9876",
        Path("/ledger"),
        selection=Selection(since_ms=2000, keys=("a", "b")),
        per_second=9.0,
        translate_groups=("g1", "g2"),
        access={"accessKey": "me", "secretKeyEnv": "KEY"},
        by_key=True,
        on_step=options.on_step,
        stop=options.stop,
    )
    assert options == wanted
    assert not options.stop.is_set()


def test_what_a_command_leaves_out_is_left_to_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    options = said("audit", "audit.job.audit", "--topic orders", monkeypatch)
    assert options == AuditOptions("127.0.0.1:9876", "orders", on_step=options.on_step)


def test_files_win_over_the_default_of_nameservers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = f"--archive {tmp_path} --grace 1.5 --topic orders"
    options = said("delay", "delay.job.delay", arguments, monkeypatch)
    assert options == DelayOptions(MessageSource(archive=tmp_path), ("orders",), grace_ms=1500, on_step=options.on_step)


def test_a_page_begins_with_the_command_and_without_its_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = "--topic orders --group g --access accessKey=me --access secretKeyEnv=KEY"
    arguments += f" --report {tmp_path / 'page.html'}"
    said("audit", "audit.job.audit", arguments, monkeypatch)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "audit --topic orders --group g</p>" in page
    assert "accessKey" not in page


def test_the_page_of_options_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "job_tables"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_help_needs_no_spark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "from cometmq.cli.jobs.pipeline import JOBS, command\n"
        "for job in JOBS:\n"
        "    command.main([job, '--help'], standalone_mode=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--archive" in done.stdout
