"""The base classes of all reports.

A job's report stores its figures in fields, and defines its verdict, parts and plots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from cometmq.quantity import quantity
from cometmq.spark.jobs.report.parts import Notes, Part, per_second
from cometmq.spark.jobs.report.plots import Plot

FAILED: Final = 1
PARTLY_DONE: Final = 3
"""Exit codes of commands."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that a job has just committed. Its text is a progress line."""

    messages: int
    total: int
    """Number of messages that this run has processed."""
    seconds: float
    """Time since this run began, in seconds."""

    def __str__(self) -> str:
        return f"{self._done()}; {self.total:,} so far, {per_second(self.total, self.seconds):,.0f} messages/s"

    def _done(self) -> str:
        return f"{quantity(self.messages, 'message')} copied"


class Report:
    """Base class of all reports. Subclasses are frozen dataclasses that define their text and page."""

    TITLE: ClassVar[str]
    """Title of the page: a format string that uses the report's attributes, such as ``Audit of {0.topic}``."""
    COMPUTED: ClassVar[tuple[str, ...]] = ()
    """Properties that the JSON contains in addition to the fields."""

    @property
    def title(self) -> str:
        """Return the title of the page."""
        return self.TITLE.format(self)

    @property
    def verdict(self) -> str:
        """Return the result in a few words, which are shown at the top of the page."""
        raise NotImplementedError

    @property
    def exit_code(self) -> int:
        """Return the exit code of the job's command. The page highlights all codes except 0."""
        return 0

    def _parts(self) -> Iterator[Part]:
        """Yield the paragraphs, tables and notes. The first paragraph is a summary line."""
        raise NotImplementedError

    def _plots(self) -> Sequence[Plot]:
        """Yield the plots of the page."""
        return ()

    def _figures(self) -> Sequence[tuple[str, str]]:
        """Yield the numbers that the page shows in large type, with their captions."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return the title, the verdict and all figures as plain values for JSON."""
        plain: dict[str, Any] = {"title": self.title, "verdict": self.verdict} | msgspec.to_builtins(self)
        return plain | {name: getattr(self, name) for name in self.COMPUTED}

    def render(self) -> str:
        """Return a summary for a terminal."""
        lines: list[str] = []
        for part in self._parts():
            lines += [part] if isinstance(part, str) else part.lines()
        return "\n".join(lines)

    def write_page(self, path: str | Path, header: str = "", *, storage: Mapping[str, str] | None = None) -> None:
        """Write the report as one HTML page, with plots if matplotlib is installed.

        :param path: path or URL of the page's file.
        :param header: a line below the title.
        :param storage: options of the object store, such as ``endpoint``.
        :raises PathError: the URL has an unknown scheme, or names no file.
        :raises StorageError: the page cannot be written.
        """
        from cometmq.spark.jobs.report.drawing import figures
        from cometmq.spark.jobs.report.page import body, page
        from cometmq.spark.object_stores import open_file_place

        content = body(
            title=self.title,
            header=header,
            verdict=self.verdict,
            is_good=self.exit_code == 0,
            figures=self._figures(),
            parts=list(self._parts()),
            plots=figures(self._plots()),
        )
        place, name = open_file_place(path, storage)
        place.put(name, page(self.title, content))


class RunReport(Report):
    """Base class of reports for runs that can be stopped and resumed."""

    finished: bool
    """False if the run was stopped before it was finished."""
    warnings: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Return True if the run finished without warnings, so nothing is missing."""
        return self.finished and not self.warnings

    @property
    def exit_code(self) -> int:
        """Return exit code 3 if something is missing."""
        return 0 if self.complete else PARTLY_DONE

    @property
    def verdict(self) -> str:
        """Return a sentence that states whether the run is complete, and the number of warnings."""
        ended = "The run is complete" if self.finished else "The run was stopped before its end"
        return f"{ended}, with {quantity(len(self.warnings), 'warning')}" if self.warnings else ended

    def _ending(self, going_on: str) -> Iterator[Part]:
        """Yield the parts that all these reports have at the end."""
        if not self.finished:
            yield Notes((), f"stopped before the end; run it again {going_on}", urgent=True)
        if self.warnings:
            yield Notes([f"warning: {warning}" for warning in self.warnings], urgent=True)
