"""Renders pages from templates. All values are escaped, and untrusted text is made harmless.

Every value in a template passes through :func:`shown`: control characters, terminal escapes and direction overrides
become visible, and long texts are cut. Then Jinja escapes markup. Only :class:`markupsafe.Markup`, which the filters in
this module create, is not escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from cometmq import __version__
from cometmq.console.languages import LANGUAGES
from cometmq.console.limits import MAX_SHOWN_CHARS
from cometmq.message.queue_names import own_spelling
from cometmq.quantity import duration_text, size_text
from cometmq.visible import visible

_TEMPLATES: Final = Path(__file__).with_name("templates")
STATIC: Final = Path(__file__).with_name("static")


def shown(value: Any) -> Any:
    """Return a value in a form that is safe on a page."""
    if value is None:
        return "–"
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return clipped(visible(value[: 2 * MAX_SHOWN_CHARS]))


def clipped(text: str, limit: int = MAX_SHOWN_CHARS) -> str:
    """Return a text. A long text is cut and ends with an ellipsis."""
    return text if len(text) <= limit else text[:limit] + "…"


def environment() -> Environment:
    """Return the console's templates."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=number,
        size=lambda value: None if value is None else size_text(max(0, int(value))),
        duration=lambda value: None if value is None else duration_text(value),
        segment=lambda value: quote(str(value), safe=""),
        own_spelling=lambda topic: topic and own_spelling(topic),
        lines=_lines,
        exact=lambda value: escape(value),
    )
    made.globals.update(version=__version__, languages=LANGUAGES, query=query)
    return made


def number(value: float | None) -> str | None:
    """Format a number with thousands separators and at most one decimal place."""
    if value is None:
        return None
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.1f}"
    return f"{int(value):,}"


def query(given: Mapping[str, Any], **changed: Any) -> str:
    """Return a URL query string: the ``given`` parameters with some changed. ``None`` and empty values are left out."""
    merged = {**given, **changed}
    kept = {name: str(value) for name, value in merged.items() if value not in (None, "")}
    return f"?{urlencode(kept)}" if kept else "?"


def _lines(text: str) -> Markup:
    """Return a text with several lines. All control characters except line breaks are made visible."""
    return Markup("\n").join(escape(visible(line)) for line in text.split("\n"))


def time_element(timestamp_ms: float | None, zone: tzinfo) -> Markup:
    """Return a time in the reader's time zone as an HTML element, or a dash if there is no time."""
    if timestamp_ms is None or timestamp_ms <= 0:
        return Markup("–")
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
        local = moment.astimezone(zone)
    except (ValueError, OverflowError, OSError):
        return escape(str(int(timestamp_ms)))
    text = local.strftime("%Y-%m-%d %H:%M:%S") + f".{local.microsecond // 1000:03}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.isoformat(timespec="milliseconds"), f"{text} {local.tzname()}", text[:19]
    )
