"""``cometmq watch``: what a command shows, again and again, until it is interrupted."""

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

LOOKING: Final = {
    "cluster": ("list", "status", "slaves"),
    "topic": ("list", "describe", "stats", "route"),
    "group": ("list", "describe", "offsets"),
    "delay": ("waiting", "list"),
    "transaction": ("list",),
    "dlq": ("list",),
    "message": ("query",),
    "doctor": (),
}
"""The commands that only look at the cluster, with their subcommands."""
LEAST_EVERY: Final = timedelta(milliseconds=200)
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


class Shown(NamedTuple):
    """The end of one run: its exit code and what it wrote."""

    code: int
    out: str
    err: str


class _Screen(io.TextIOWrapper):
    """Keeps what is written to it; says that it is a terminal if stdout is one."""

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
@click.option(
    "--every", type=Duration(), default="2s", show_default=True, metavar="TIME", help="Pause between two looks."
)
@click.option("--times", type=click.IntRange(1), help="Stop after so many looks.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="COMMAND…")
def command(every: timedelta, times: int | None, words: tuple[str, ...]) -> int:
    """Show what COMMAND shows, again and again: cometmq watch group offsets billing.

    On a terminal the view stays in its place; Ctrl-C ends it. In a pipe each look is a line of JSON with the fields
    time, code (the exit code), result and error; with an -o of COMMAND it is what COMMAND writes.
    """
    _demand_looking(words)
    if every < LEAST_EVERY:
        raise WrongUseError(f"--every is at least {LEAST_EVERY.total_seconds():g} s")
    is_terminal = sys.stdout.isatty()
    as_lines = not is_terminal and not any(word.startswith(("-o", "--output")) for word in words)
    try:
        for look in range(times or sys.maxsize):
            if look:
                time.sleep(every.total_seconds())
            shown = _run([*words, "-o", "json"] if as_lines else words, is_terminal=is_terminal)
            if shown.code == INTERRUPTED:
                return DONE
            if is_terminal:
                _draw(words, every, shown, first=look == 0)
            else:
                click.echo(_line(shown) if as_lines else shown.out.rstrip("\n"), color=True)
                if not as_lines and shown.err:
                    click.echo(shown.err, err=True, nl=False)
    except KeyboardInterrupt:
        return DONE
    return shown.code


def _demand_looking(words: Sequence[str]) -> None:
    """Demand a command that only looks.

    :raises WrongUseError: it is another one.
    """
    subcommands = LOOKING.get(words[0])
    if subcommands is None or (subcommands and (len(words) < 2 or words[1] not in subcommands)):
        known = ", ".join(f"{name} {'|'.join(of)}".strip() for name, of in LOOKING.items())
        raise WrongUseError(f"{' '.join(words[:2])} cannot be watched", next_step=f"these can: {known}")


def _run(words: Sequence[str], *, is_terminal: bool) -> Shown:
    """Run a command in this process and keep what it writes; nobody types, so that no pager begins."""
    from cometmq.cli.main import root

    out, err = _Screen(is_terminal=is_terminal), _Screen(is_terminal=False)
    before = sys.stdin
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.stdin = io.StringIO()
        try:
            code = guarded(lambda: root.main(list(words), prog_name="cometmq", standalone_mode=False))
        finally:
            sys.stdin = before
    return Shown(code, out.text(), err.text())


def _line(shown: Shown) -> str:
    """Return one look as a line of JSON."""
    line = {
        "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "code": shown.code,
        "result": json.loads(shown.out) if shown.out.strip() else None,
    }
    return json_text(line | ({"error": shown.err.strip()} if shown.err else {}))


def _draw(words: Sequence[str], every: timedelta, shown: Shown, *, first: bool) -> None:
    """Write a look over the one before it; lines below the end of the terminal are counted."""
    height = shutil.get_terminal_size().lines
    title = f"Every {every.total_seconds():g} s: cometmq {' '.join(words)}    {datetime.now().astimezone():%H:%M:%S}"
    lines = [title, "", *shown.out.splitlines(), *shown.err.splitlines()]
    if len(lines) >= height:
        lines = [*lines[: height - 2], f"… {len(lines) - height + 2} more lines"]
    place = "\x1b[2J" + _HOME if first else _HOME
    sys.stdout.write(place + "".join(f"{line}{_END_OF_LINE}\n" for line in lines) + _BELOW)
    sys.stdout.flush()
