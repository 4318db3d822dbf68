"""The look that all HTML reports share: on wide and narrow screens, light and dark, with nothing beside the page."""

from __future__ import annotations

import base64
import html
from typing import Final

NO_PLOTS: Final = "<p>Plots need matplotlib: <code>pip install 'cometmq[plot]'</code></p>"
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1e293b; --dim: #64748b; --line: #e2e8f0; --card: #f8fafc; --back: #ffffff;
  --good: #15803d; --bad: #b91c1c; --link: #0e7490 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2e8f0; --dim: #94a3b8; --line: #334155; --card: #1e293b; --back: #0f172a;
    --good: #4ade80; --bad: #f87171; --link: #22d3ee }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2.5rem auto; padding: 0 1.25rem;
  color: var(--ink); background: var(--back); overflow-wrap: break-word }
h1 { margin: 0 0 .75rem; line-height: 1.25 } h2 { margin: 2.5rem 0 .75rem; font-size: 1.15rem }
a { color: var(--link) } .good { color: var(--good) } .bad { color: var(--bad) }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem;
  overflow-x: auto; line-height: 1.35; font-size: .875rem }
.wide { overflow-x: auto; margin-top: .75rem }
.wide img { display: block; width: 100%; min-width: 40rem; background: #fff; border-radius: .6rem }
@media (max-width: 40rem) { body { margin: 1.25rem auto } h1 { font-size: 1.4rem } }
"""
"""Pictures, and whatever else is in a ``wide`` box, are scrolled sideways where they do not fit."""


def page(title: str, body: str, style: str = "") -> bytes:
    """The whole page.

    :param title: plain text.
    :param body: HTML.
    :param style: more CSS, after the common one.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    ).encode()


def picture(png: bytes, alt: str) -> str:
    """A PNG as HTML that needs no file beside it."""
    data = base64.b64encode(png).decode()
    return f'<div class="wide"><img alt="{html.escape(alt)}" src="data:image/png;base64,{data}"></div>'
