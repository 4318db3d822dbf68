"""``cometmq watch``: run a command repeatedly and show its output until interrupted."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import click

from cometmq.cli.failures import DONE, INTERRUPTED, WrongUseError, guarded
from cometmq.cli.moments import Duration
from cometmq.visible import json_text

READING_COMMANDS: Final = {
    "cluster": ("list", "status", "slaves"),
    "topic": ("list", "describe", "stats", "route"),
    "group": ("list", "describe", "offsets"),
    "delay": ("waiting", "list"),
    "transaction": ("list",),
    "dlq": ("list",),
    "message": ("query",),
    "doctor": (),
}
"""The commands and subcommands that only read from the cluster."""
LEAST_EVERY: Final = timedelta(milliseconds=200)
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


class CommandRun(NamedTuple):
    """The result of one run: its exit code and output."""

    code: int
    out: str
    err: str


class _Screen(io.TextIOWrapper):
    """A stream that collects the text written to it. It acts as a terminal if stdout is one."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._kept = io.BytesIO()
        self._is_terminal = is_terminal
        super().__init__(self._kept, encoding="utf-8", errors="surrogateescape")

    def isatty(self) -> bool:
        return self._is_terminal

    def text(self) -> str:
        self.flush()
        return self._kept.getvalue().decode("utf-8", "replace")


@click.command("watch", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--every", type=Duration(), default="2s", show_default=True, metavar="TIME", help="Pause between runs.")
@click.option("--times", type=click.IntRange(1), help="Stop after N runs.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="COMMAND…")
def command(every: timedelta, times: int | None, words: tuple[str, ...]) -> int:
    """Run COMMAND repeatedly and show its output, for example cometmq watch group offsets billing.

    On a terminal, the output is updated in place; Ctrl-C ends it. In a pipe, each run writes a line of JSON with the
    fields time, code (the exit code), result and error. If COMMAND has -o, its own output is written instead.
    """
    _demand_reading_command(words)
    if every < LEAST_EVERY:
        raise WrongUseError(f"--every must be at least {LEAST_EVERY.total_seconds():g} s")
    is_terminal = sys.stdout.isatty()
    as_lines = not is_terminal and not any(word.startswith(("-o", "--output")) for word in words)
    try:
        for look in range(times or sys.maxsize):
            if look:
                time.sleep(every.total_seconds())
            run = _run([*words, "-o", "json"] if as_lines else words, is_terminal=is_terminal)
            if run.code == INTERRUPTED:
                return DONE
            if is_terminal:
                _draw(words, every, run, first=look == 0)
            else:
                click.echo(_line(run) if as_lines else run.out.rstrip("\n"), color=True)
                if not as_lines and run.err:
                    click.echo(run.err, err=True, nl=False)
    except KeyboardInterrupt:
        return DONE
    return run.code


def _demand_reading_command(words: Sequence[str]) -> None:
    """Check that a command only reads.

    :raises WrongUseError: the command may change something.
    """
    subcommands = READING_COMMANDS.get(words[0])
    if subcommands is None or (subcommands and (len(words) < 2 or words[1] not in subcommands)):
        known = ", ".join(f"{name} {'|'.join(of)}".strip() for name, of in READING_COMMANDS.items())
        raise WrongUseError(f"{' '.join(words[:2])} cannot be watched", next_step=f"watch one of {known}")


def _run(words: Sequence[str], *, is_terminal: bool) -> CommandRun:
    """Run a command in this process, and collect its output. The command has no stdin, so no pager starts."""
    from cometmq.cli.main import root

    out, err = _Screen(is_terminal=is_terminal), _Screen(is_terminal=False)
    before = sys.stdin
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.stdin = io.StringIO()
        try:
            code = guarded(lambda: root.main(list(words), prog_name="cometmq", standalone_mode=False))
        finally:
            sys.stdin = before
    return CommandRun(code, out.text(), err.text())


def _line(run: CommandRun) -> str:
    """Return the result of one run as a line of JSON."""
    line = {
        "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "code": run.code,
        "result": json.loads(run.out) if run.out.strip() else None,
    }
    return json_text(line | ({"error": run.err.strip()} if run.err else {}))


def _draw(words: Sequence[str], every: timedelta, run: CommandRun, *, first: bool) -> None:
    """Overwrite the previous output with the new output, and show how many lines do not fit on the terminal."""
    height = shutil.get_terminal_size().lines
    title = f"Every {every.total_seconds():g} s: cometmq {' '.join(words)}    {datetime.now().astimezone():%H:%M:%S}"
    lines = [title, "", *run.out.splitlines(), *run.err.splitlines()]
    if len(lines) >= height:
        lines = [*lines[: height - 2], f"… {len(lines) - height + 2} more lines"]
    place = "\x1b[2J" + _HOME if first else _HOME
    sys.stdout.write(place + "".join(f"{line}{_END_OF_LINE}\n" for line in lines) + _BELOW)
    sys.stdout.flush()
