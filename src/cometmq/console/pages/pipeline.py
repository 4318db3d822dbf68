"""The pipeline pages: reports of finished Spark jobs."""

from __future__ import annotations

from starlette.responses import Response

from cometmq.console.limits import MAX_REPORTS
from cometmq.console.page import Ask, FormError, NotFoundError, page
from cometmq.console.reports import ReportError, report_of, reports_in
from cometmq.threads import in_thread


async def show_list(ask: Ask) -> Response:
    """Show the newest reports whose names contain a text."""
    directory = ask.console.options.reports
    lines = [] if directory is None else await in_thread(reports_in, directory, ask.console.clock.now_ms())
    wanted = ask.text("q").casefold()
    found = [line for line in lines if wanted in line.name.casefold()]
    return ask.page("pipeline/list.html", directory=directory, lines=found, total=len(lines), most=MAX_REPORTS)


async def show_report(ask: Ask) -> Response:
    """Show one report."""
    directory, name = ask.console.options.reports, ask.path("name")
    try:
        report = None if directory is None else await in_thread(report_of, directory, name, ask.console.clock.now_ms())
    except ReportError as error:
        raise FormError(error.message, next_step=error.next_step) from error
    if report is None:
        raise NotFoundError(
            ask.t("report {name} does not exist", name=name[:200]),
            next_step=ask.t("the page Pipeline lists all reports"),
        )
    return ask.page("pipeline/report.html", report=report)


ROUTES = (page("/pipeline", show_list), page("/pipeline/{name}", show_report))
