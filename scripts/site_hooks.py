"""Hooks that mkdocs runs to build the documentation site; mkdocs.yml names this file.

Pages outside docs/ (EXPERIMENTS.md, the examples' READMEs) and the tutorials' notebooks become pages of the site. A
link to any other file of the repository leads to a copy of it in the site, or to a page if it is a Markdown table. So
every stored number can be looked up without a network. Formulas become MathML, which browsers support directly.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path, PurePosixPath

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts import notebook_pages, reference

ROOT = Path(__file__).parents[1]
DOCS = "docs"
ELSEWHERE = {
    "EXPERIMENTS.md": "results/papers.md",
    "CHANGELOG.md": "contributing/changes.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "evidence/README.md": "results/commands.md",
    "examples/own/README.md": "examples/own.md",
    "examples/hospitals/README.md": "examples/hospitals.md",
}
"""Pages of the repository outside docs/ → their path in the site."""

NOTEBOOKS = notebook_pages.pages()

LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s]+)(?=[)\s])")
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)  # fmt: skip


def at(uri: str) -> str:
    """Return the path of a page's source in the repository."""
    if uri in NOTEBOOKS:
        return NOTEBOOKS[uri].relative_to(ROOT).as_posix()
    return {there: here for here, there in ELSEWHERE.items()}.get(uri) or (
        uri.removeprefix("files/") if uri.startswith("files/") else f"{DOCS}/{uri}"
    )


def to(path: str) -> str:
    """Return the path in the site of a file in the repository."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.endswith(".ipynb"):
        path = f"{path.removesuffix('.ipynb')}.md"
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"files/{path}"


def resolved(target: str, page: str) -> tuple[str, str] | None:
    """Return the path and anchor of a link within the repository; None for other links."""
    path, _, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", target):
        return None
    return os.path.normpath(PurePosixPath(page).parent / path), f"#{anchor}" if anchor else ""


def links(text: str, page: str) -> set[str]:
    """Return the repository's paths to which a page links."""
    prose = CODE.sub("", text)
    return {found[0] for link in LINK.finditer(prose) if (found := resolved(link["target"], page))}


def text_of(path: str) -> str:
    """Return the text of a page or a notebook."""
    source = ROOT / path
    return notebook_pages.page(source).text if path.endswith(".ipynb") else source.read_text(encoding="utf-8")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages from outside docs/, and every file that a page links to."""
    for there, text in {**reference.api(), "reference/command.md": reference.command()}.items():
        files.append(File.generated(config, there, content=text))
    for here, there in ELSEWHERE.items():
        files.append(File.generated(config, there, abs_src_path=str(ROOT / here)))
    for there, notebook in NOTEBOOKS.items():
        text, pictures = notebook_pages.page(notebook)
        files.append(File.generated(config, there, content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    pending = [
        at(file.src_uri) for file in files.documentation_pages() if file.abs_src_path or file.src_uri in NOTEBOOKS
    ]
    seen = set(pending)
    while pending:
        page = pending.pop()
        for path in sorted(links(text_of(page), page) - seen):
            seen.add(path)
            source = ROOT / path
            if path.startswith(f"{DOCS}/") or not source.is_file():
                continue  # mkdocs itself reports missing files
            files.append(
                File.generated(config, to(path), abs_src_path=str(source), inclusion=InclusionLevel.NOT_IN_NAV)
            )
            if path.endswith(".md"):
                pending.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirect links that leave docs/ to the site's copies."""
    own = page.file.src_uri
    here = at(own)

    def led(link: re.Match[str]) -> str:
        found = resolved(link["target"], here)
        if found is None:
            return link["target"]
        path, anchor = found
        there = os.path.relpath(to(path), PurePosixPath(own).parent)
        return there + anchor

    parts = CODE.split(markdown)
    text = "".join(part if CODE.fullmatch(part) else LINK.sub(led, part) for part in parts)
    # Otherwise tables of stored results would dominate the search.
    if own.startswith("files/"):
        page.meta["search"] = {"exclude": True}
    return text


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert LaTeX formulas to MathML."""

    def mathml(found: re.Match[str]) -> str:
        tex = found["tex"].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
        display = found["tag"] == "div"
        try:
            shown = latex2mathml.converter.convert(tex, display="block" if display else "inline")
        except Exception as error:
            raise PluginError(f"{page.file.src_uri}: cannot show the formula {tex!r}: {error}") from None
        # In a separate frame, so that a formula wider than the screen can be scrolled.
        return f'<div class="formula">{shown}</div>' if display else shown

    return FORMULA.sub(mathml, html)
