"""A hook of MkDocs: the pages that are outside `docs`, and links that leave it."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# file of the project: page of the site
OUTSIDE = {
    "README.md": "index.md",
    ".github/ARCHITECTURE.md": "architecture.md",
    ".github/CONTRIBUTING.md": "contributing.md",
}
SOURCES = {page: file for file, page in OUTSIDE.items()}
LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")  # and pictures


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are outside `docs`."""
    for file, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point each relative link to the page or picture of the site; one to another file of the project is its text."""
    source = SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def link(match: re.Match[str]) -> str:
        picture, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            raise PluginError(f"{source}: the link to {target} names no file of the project")
        shown = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if shown == "reference":
            shown = "reference/README.md"
        if shown is None:
            return text
        return f"{picture}[{text}]({posixpath.relpath(shown, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    return LINK.sub(link, markdown)
