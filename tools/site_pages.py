"""MkDocs hooks: pages that are made rather than written, and links that leave `docs/`.

README becomes the home page, and each package of axcore a page of the API reference. A link to a
file outside of `docs/` becomes the file's path, as the site has no copy of it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^]]+)\]\(([^)#:]+)(#[^)]*)?\)")


def package_names() -> list[str]:
    """Return the packages of axcore that list what is public in them."""
    found = sorted(ROOT.glob("axcore/*/__init__.py"))
    return [file.parent.name for file in found if "__all__" in file.read_text(encoding="utf-8")]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the two parts of the menu that follow from files."""
    notes = sorted(file.name for file in (ROOT / "docs" / "design").glob("*.md"))
    made = {
        "Design notes": [f"design/{name}" for name in notes],
        "API reference": [
            {f"axcore.{package}": f"api/{package}.md"} for package in package_names()
        ],
    }
    for entry in config.nav or []:
        for title in made.keys() & entry.keys():
            entry[title] = made[title]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, of which README is the home page, and the API reference."""
    made = {
        f"api/{package}.md": f"# axcore.{package}\n\n::: axcore.{package}\n"
        for package in package_names()
    }
    for source in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        made[source.replace("README", "index").lower()] = _with_links_from_docs(source)
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Replace links to files that are not on the site by their paths in the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def resolved(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(folder, link))
        if files.get_file_from_path(path):
            return match[0]
        if files.get_file_from_path(f"{path}/README.md"):
            return f"[{text}]({link.rstrip('/')}/README.md{anchor})"
        in_repository = posixpath.normpath(posixpath.join("docs", path))
        if not (ROOT / in_repository).exists():
            return match[0]  # which MkDocs complains about
        shown = "" if text == in_repository else f"{text}, "
        return f"{shown}`{in_repository}`"

    return LINK.sub(resolved, markdown)


def _with_links_from_docs(source: str) -> str:
    """Return a page of the root as if it were in `docs/`."""
    text = (ROOT / source).read_text(encoding="utf-8")

    def moved(match: re.Match[str]) -> str:
        return f"[{match[1]}]({posixpath.relpath(match[2], 'docs')}{match[3] or ''})"

    return LINK.sub(moved, text)
