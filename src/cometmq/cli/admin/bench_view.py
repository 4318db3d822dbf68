"""Displays a running benchmark's counts, and its rates, percentiles and histogram at the end."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import click

from cometmq.bench.latencies import Latencies
from cometmq.bench.plan import Plan, Progress
from cometmq.bench.run import Kind, Outcome
from cometmq.cli.output import Column, show, show_one
from cometmq.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.live import Live

_BAR_WIDTH: Final = 40
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


class LiveView:
    """Shows the counts of a running benchmark on stderr, if stderr is a terminal."""

    def __init__(self, kind: Kind, plan: Plan) -> None:
        self._kind = kind
        self._plan = plan
        self._live: Live | None = None
        self._last: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Show the current counts."""
        recent, progress.recent = progress.recent, Latencies()
        now = SYSTEM_CLOCK.monotonic()
        done = progress.sent if self._kind is Kind.PRODUCE else progress.received
        before, self._last = self._last, (now, done)
        if self._live is None or before is None or not progress.begin:
            return
        from rich.text import Text

        elapsed = now - progress.begin
        rate = (done - before[1]) / max(now - before[0], 1e-9)
        share = (
            done / self._plan.count if self._plan.count else elapsed / self._plan.seconds if self._plan.seconds else 0
        )
        lines = [
            f"{self._kind}  {elapsed:6.1f} s  {done:,} messages  {rate:,.0f}/s",
            f"{_bar(min(1.0, share))} {min(1.0, share):4.0%}",
        ]
        if recent.count:
            p50, p99 = recent.percentile_us(50) / 1000, recent.percentile_us(99) / 1000
            lines.append(f"latency now  p50 {p50:,.2f} ms  p99 {p99:,.2f} ms  max {recent.max_us / 1000:,.2f} ms")
        if progress.failed:
            lines.append(f"not sent: {progress.failed:,}")
        self._live.update(Text("\n".join(lines)), refresh=True)


def show_outcome(kind: Kind, outcome: Outcome, output: str) -> None:
    """Write the result of a benchmark to stdout."""
    if output != "table":
        show_one({"kind": kind.value, **outcome.result}, output)
        return
    row: dict[str, Any] = dict(outcome.result)
    latency = row.pop("latency_ms")
    show_one(
        {name.replace("_", " "): f"{value:,}" if isinstance(value, int) else value for name, value in row.items()},
        output,
        title=f"Load: {kind}",
    )
    if latency is None:
        return
    columns = [Column(name, name, right=True) for name in latency]
    click.echo()
    show([{name: f"{value:,.3f}" for name, value in latency.items()}], columns, output, title="Latency in ms")
    click.echo()
    click.echo(histogram(outcome.progress.latencies))


def histogram(latencies: Latencies) -> str:
    """Return a histogram as lines of text with the lower limit, upper limit, share and bar of each bucket."""
    bars = latencies.bars()
    most = max((bar.number for bar in bars), default=1)
    return "\n".join(
        f"{bar.from_us / 1000:>10,.2f} – {bar.below_us / 1000:>10,.2f} ms "
        f"{bar.number / latencies.count:>6.1%} {_bar(bar.number / most).rstrip()}".rstrip()
        for bar in bars
    )


def _bar(share: float) -> str:
    eighths = round(share * _BAR_WIDTH * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_WIDTH)
