"""The command of the demo: check the machine, show the progress, print the report."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cometmq.cli.failures import guarded
from cometmq.cli.local_path import LocalPath
from cometmq.errors import CometMQError
from cometmq.remoting.security import VARIABLES

if TYPE_CHECKING:
    from examples.demo.stage import Observed, Plan, Progress, Stage

DISK_NEEDED_BYTES: Final = 700 * 1024**2
"""Logs, queues, index and archive of the default size, twice."""
PLAIN_SECONDS: Final = 2.0
"""Pause between two lines of progress where stderr is no terminal."""
STILL_SECONDS: Final = 15.0
"""The same while nothing changes."""
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


@click.command(name="python -m examples.demo")
@click.option(
    "--messages",
    type=click.IntRange(1_000, 20_000_000),
    default=300_000,
    show_default=True,
    help="Changes of orders to send.",
)
@click.option("--producers", type=click.IntRange(1, 16), default=2, show_default=True, help="Producer processes.")
@click.option("--consumers", type=click.IntRange(1, 8), default=2, show_default=True, help="Consumer processes.")
@click.option("--rate", type=click.FloatRange(100), default=30_000, show_default=True, help="Most messages a second.")
@click.option(
    "--report",
    type=LocalPath(file_okay=False, path_type=Path),
    default="demo-report",
    show_default=True,
    help="Directory for report, plot and archive.",
)
@click.option("--keep", is_flag=True, help="Keep the broker's store and the logs.")
def command(messages: int, producers: int, consumers: int, rate: float, report: Path, keep: bool) -> int:
    """Run orders from producer to archive and back, with a crash in the middle.

    Producers send changes of orders, a group consumes them, the broker is killed and started again. Spark archives
    the topic, audits it, replays the archive into another topic and audits that. Then all counts are compared. Exit
    code 0 only if they agree.
    """
    from examples.demo.stage import Plan, Stage

    check_machine(report)
    forget_security()
    plan = Plan(messages, producers, consumers, rate, report.absolute())
    with Watcher(plan) as watcher:
        try:
            seen = asyncio.run(played(Stage(plan, watcher.show)))
        except asyncio.CancelledError:
            raise click.Abort from None

    from examples.demo.report import compare, save
    from rich.console import Console

    verdict = compare(messages, seen)
    Console(highlight=False).print(save(plan, seen, verdict))
    if verdict.agrees and not keep:
        shutil.rmtree(plan.directory / "work")
    return 0 if verdict.agrees else 1


def forget_security() -> None:
    """Drop credentials and TLS from the environment of this process and its children: they are for another cluster."""
    for name in VARIABLES:
        os.environ.pop(name, None)


def check_machine(report: Path) -> None:
    """Check what the demo needs.

    :raises CometMQError: something is missing.
    """
    from cometmq.cli.admin.doctor import JAVA_WANTED, free_bytes, java_major
    from cometmq.spark.session.environment import demand_spark

    demand_spark()
    major = java_major()
    if major is None or major < JAVA_WANTED:
        raise CometMQError(
            f"Spark needs Java {JAVA_WANTED} or newer, and {'there is none' if major is None else f'this is {major}'}",
            next_step="install it (Debian, Ubuntu: sudo apt install openjdk-17-jre-headless) or point JAVA_HOME to one",
        )
    free = free_bytes(report)
    if free < DISK_NEEDED_BYTES:
        raise CometMQError(
            f"only {free / 1024**2:.0f} MB are free for {report}, the demo needs {DISK_NEEDED_BYTES / 1024**2:.0f} MB",
            next_step="free some room, or name a directory on another disk with --report",
        )


async def played(stage: Stage) -> Observed:
    """Run all acts; the first SIGINT or SIGTERM cancels them, later ones do not disturb the cleaning up."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def end() -> None:
        for number in _ENDING:
            loop.add_signal_handler(number, lambda: None)
        task.cancel()

    for number in _ENDING:
        loop.add_signal_handler(number, end)
    return await stage.run()


class Watcher:
    """Show the progress: bars in a terminal, lines elsewhere."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shown_at = 0.0
        self._act = ""
        self._line = ""
        self._bars: _Bars | None = _Bars(plan.messages) if sys.stderr.isatty() else None

    def __enter__(self) -> Watcher:
        if self._bars is not None:
            self._bars.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.bar.stop()

    def show(self, progress: Progress) -> None:
        """Show the progress; lines only now and then."""
        if self._bars is not None:
            self._bars.show(progress)
            return
        from cometmq.clock import SYSTEM_CLOCK

        now = SYSTEM_CLOCK.monotonic()
        line = (
            f"{progress.act}: {progress.acked:,} acknowledged, {progress.consumed:,} consumed, "
            f"{progress.archived:,} archived, {progress.replayed:,} replayed of {self._plan.messages:,}"
        )
        pause = STILL_SECONDS if line == self._line else PLAIN_SECONDS
        if progress.act != self._act or now - self._shown_at >= pause:
            self._act, self._line, self._shown_at = progress.act, line, now
            click.echo(line, err=True)


class _Bars:
    """Four bars and the current act."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[act]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks = [
            self.bar.add_task(name, total=total, act="")
            for name in ("acknowledged", "consumed", "archived", "replayed")
        ]

    def show(self, progress: Progress) -> None:
        counts = (progress.acked, progress.consumed, progress.archived, progress.replayed)
        acts = (progress.act, "", "", "")
        for task, done, act in zip(self._tasks, counts, acts, strict=True):
            self.bar.update(task, completed=done, act=act)


if __name__ == "__main__":
    sys.exit(guarded(lambda: command.main(standalone_mode=False)))
