"""Hooks of MkDocs for ``make docs``: pages of the site that are not in ``docs/``.

``docs/README.md`` is the navigation: its sections with the pages that they link to. Pages at the root of the project
(README, ARCHITECTURE, ...) and the API reference, which mkdocstrings makes of docstrings, become pages of the site.
A link from a page to any other file of the project leads to a copy of that file in the site.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
API = {
    "cometmq.client": "Client",
    "cometmq.client.sync": "Client without asyncio",
    "cometmq.testing": "Test kit",
    "cometmq.spark": "Spark",
}
"""The modules from which programs import, and the titles of their pages."""
ROOT_PAGES = {page: page.name.lower().replace("readme", "cometmq") for page in sorted(ROOT.glob("*.md"))}
"""The pages at the root of the project, and where they are in the site."""
MENTIONS = "Install"
"""The section whose links are to pages of other sections."""
ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")
"""A name in a docstring, in the markup of Sphinx."""
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def api_page(module: str) -> str:
    """The address of a module's page."""
    return f"api/{module}.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read the navigation from ``docs/README.md``."""
    pages = {page.relative_to(DOCS).as_posix(): page for page in DOCS.rglob("*.md")}
    sections: dict[str, list[str]] = {}
    for section in re.split(r"^## ", (DOCS / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        found = [place for place in map(site_place, re.findall(r"\]\(([^)#:\s]+)", text)) if place]
        sections[title] = [place for place in dict.fromkeys(found) if place in pages or "/" not in place]
    homes = {"README.md": ""}
    for title in sorted(sections, key=MENTIONS.__eq__):
        for place in sections[title]:
            homes.setdefault(place, title)
    shown = [{title: [one for one in found if homes[one] == title]} for title, found in sections.items()]
    reference = {"API": [{title: api_page(module)} for module, title in API.items()]}
    config.nav = ["README.md", *(section for section in shown if any(section.values())), reference]
    return config


def public_names(module: str) -> list[str]:
    """The names that programs import from a module."""
    sys.path.insert(0, str(ROOT / "src"))
    try:
        return sorted(importlib.import_module(module).__all__)
    finally:
        sys.path.pop(0)


def site_place(target: str) -> str | None:
    """The page of the site to which a link of ``docs/README.md`` leads."""
    file = (DOCS / target).resolve()
    if file in ROOT_PAGES:
        return ROOT_PAGES[file]
    return file.relative_to(DOCS).as_posix() if file.suffix == ".md" and file.is_relative_to(DOCS) else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in ``docs/``."""
    for page, place in ROOT_PAGES.items():
        files.append(File.generated(config, place, content=page.read_text(encoding="utf-8")))
    for module, title in API.items():
        text = f"# {title}: `{module}`\n\n::: {module}\n    options: {{members: false}}\n\n"
        shown = "    options: {show_root_heading: true, show_root_toc_entry: true}"
        text += "".join(f"::: {module}.{name}\n{shown}\n\n" for name in public_names(module))
        files.append(File.generated(config, api_page(module), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to other pages of the site, or to copies of files."""
    by_place = {place: path for path, place in ROOT_PAGES.items()}
    place = page.file.src_uri
    if heading := re.search(r"^# (.+)$", markdown, re.MULTILINE):
        page.meta["title"] = heading[1].replace("`", "")  # the link to the other language stands before it
    source = by_place.get(place, DOCS / place)

    def lead(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        if not target.exists():
            return link[0]
        if target.is_relative_to(DOCS):
            new = target.relative_to(DOCS).as_posix()
        else:
            new = ROOT_PAGES.get(target) or copy_of(target, config, files)
        return link[1] + os.path.relpath(new, Path(place).parent) + link[3]

    return LINK.sub(lead, markdown)


def copy_of(target: Path, config: MkDocsConfig, files: Files) -> str:
    """Put a copy of a file into the site, of a folder a list of its files; its place."""
    place = f"source/{target.relative_to(ROOT).as_posix()}"
    if target.suffix != ".ipynb":
        place += ".txt"  # browsers show it
    if files.get_file_from_path(place) is None:
        if target.is_dir():
            content = "".join(f"{file.relative_to(ROOT)}\n" for file in sorted(target.rglob("*.*")) if file.is_file())
        else:
            content = target.read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=content, inclusion=InclusionLevel.INCLUDED))
    return place


class PlainRoles(griffe.Extension):
    """Shows names in docstrings as code: ``:class:`X` `` is Sphinx's markup, not Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object that was read."""
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
