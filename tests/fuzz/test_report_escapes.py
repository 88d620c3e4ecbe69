"""Test that names in a report never add elements, in the page and in the PDF."""

from __future__ import annotations

import dataclasses
import json
import re

import pypdfium2
import pytest
from tests.report.conftest import write_directory
from tests.support.marks import long_except
from tests.support.pdf_text import texts
from tests.support.report_page import Page

from drfl.report import document, load_run, render_html, render_pdf
from drfl.report.formatting import ISOLATE, clean
from drfl.report.names import in_glyphs

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "end of a script": '</script><script src="//x">',
    "comment": "<!--<script>",
    "attribute": '" onmouseover="alert(1)" x=\'',
    "style": "</style></title><img src=x onerror=alert(1)>",
    "rule": "} body:has(*) { background: url(//x) } {",
    "entity": "&lt;script&gt;&#60;script&#62;",
    "separators": "a\u2028b\u2029c\u0085<script>d",
    "template": "$script ${figures} $$ %{y} {x}<script>{{ 6 * 7 }}{% x %}",
    "picture": ']]></text></svg><image href="//x"/><use href="//x#y"/>',
    "data": "</svg><svg onload=alert(1)>",
    "typst": '#panic("x") #read("/etc/passwd") $x$ *b* _i_ `r` @l <l> \\u{41} // c',
    "typst string": '"); panic("x',
    "latex": "\\input{/etc/passwd} $x$ % ~",
    "right to left": "\u202ex\u2067y\u200f שם مستشفى",
    "controls": "a\x00\x07\x1b]0;x\x07\x7f\ufeff\ufffe\ufdd0b",
    "emoji": "👩\u200d⚕️🏥\U0010ffff",
    "long": "<script>" * 5000,
}
KEPT = ("end of a script", "attribute", "typst", "right to left")
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "aria-label", "aria-labelledby", "type", "role",
    "tabindex", "scope", "data-group", "aria-hidden", "checked", "href", "width", "height", "x", "y", "x1", "x2", "y1",
    "y2", "cx", "cy", "r", "d", "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray",
    "stroke-linejoin", "font-size", "font-weight", "text-anchor", "transform", "viewbox", "xmlns",
    "preserveaspectratio", "image-rendering",
}  # fmt: skip
"""Attributes of the template and of pictures."""


def records(folder, bad, plain):
    """Make two runs with a text in every name and label; ``plain`` keeps the clients' names."""
    made = []
    for k, algorithm in enumerate((bad, f"{bad}2")):
        names = [f"{bad}{'abc'[i]}" for i in range(3)] if not plain else None
        changes = {
            "algorithm": algorithm, "dataset": bad, "model": bad, "device": bad, "seed": bad, "stopped": "interrupted",
            "reason": bad, "partition": {"partition": bad, bad: bad}, "versions": {bad: bad},
        }  # fmt: skip
        config = {"algorithm": algorithm, json.dumps(bad): bad, "backbone": bad, "lr": k}
        directory = write_directory(folder, f"run{k}", "DRFA", k, clients=3, rounds=2, names=names,
                                    gap=[1.0, 0.1, 0.01], summary=changes)  # fmt: skip
        record = dataclasses.replace(load_run(directory), label=bad, config=config)
        made.append(record)
    return made


def tags(page):
    """Return the elements in order, without those of pictures, which may be merged."""
    return [tag for tag, _ in page.elements if tag not in ("path", "rect", "circle", "line")]


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    """Return the page of runs with harmless names."""
    return Page(render_html(document(records(tmp_path_factory.mktemp("runs"), "plain", True), "plain")))


@pytest.mark.parametrize("bad", long_except(KEPT, HOSTILE.values(), HOSTILE))
def test_names_are_shown_as_text_only(bad, harmless, tmp_path):
    content = document(records(tmp_path, bad, False), bad)
    text = render_html(content)
    page = Page(text)
    assert tags(page) == tags(harmless)
    attributes = {name for _, attrs in page.elements for name in attrs}
    assert attributes <= ATTRIBUTES
    assert page.comments == []
    for _, attrs in page.elements:
        assert re.match(r"#[a-z]+$|data:image/png;base64,[\w+/=]+$", attrs.get("href", "#a"))
        assert re.match(r"g[01]$", attrs.get("data-group", "g0"))
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(styles) == 3  # one of the page, and two of legends
    assert not any("url(" in style for style in styles)
    if not bad.isprintable() or len(bad) > 1000 or re.search("[<>&\"']", bad):
        assert bad not in text
    assert all(mark.isprintable() or mark in "\n\u202f\u2068\u2069" for mark in text)

    pdf = render_pdf(content)
    found = "".join("".join(texts(pdf)).split())
    assert "root:" not in found  # the content of /etc/passwd
    written = pypdfium2.PdfDocument(pdf)
    assert written.get_metadata_dict()["Title"]
    links = [link for page in written for link in page.get_objects() if type(link).__name__ == "PdfLink"]
    written.close()
    assert links == []
    for name in (b"/JavaScript", b"/JS", b"/Launch", b"/URI", b"/EmbeddedFile", b"/OpenAction"):
        assert name not in pdf
    if ISOLATE not in clean(bad):  # pdfium returns its letters in another order
        assert "".join(in_glyphs(clean(bad)).split())[:30] in found
