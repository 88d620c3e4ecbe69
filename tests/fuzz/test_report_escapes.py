"""Whatever names say, a report holds three scripts, its own."""

from __future__ import annotations

import dataclasses
import html.parser
import json

import pytest
from tests.report.conftest import write_directory
from tests.support.marks import long_except

from drfl.report import load_run, render

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "end of a script": '</script><script src="//x">',
    "comment": "<!--<script>",
    "attribute": '" onmouseover="alert(1)" x=\'',
    "style": "</style></title><img src=x onerror=alert(1)>",
    "entity": "&lt;script&gt;&#60;script&#62;",
    "separators": "a\u2028b\u2029c\u0085<script>d",
    "template": "$script ${figures} $$ %{y} {x}<script>",
    "plotly": '<a href="javascript:alert(1)">x</a><extra></extra>',
    "long": "<script>" * 5000,
}
KEPT = ("end of a script", "attribute", "separators", "plotly")
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "aria-label", "aria-labelledby", "hidden",
    "type", "role", "style", "tabindex", "scope", "data-group", "aria-pressed", "aria-hidden", "width", "height",
    "x1", "x2", "y1", "y2", "stroke", "stroke-width", "stroke-dasharray",
}  # fmt: skip
"""Those of the template and the sections."""


class Page(html.parser.HTMLParser):
    """Every element of a page in order, every attribute's name, and what the scripts hold."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.inside = [], set(), [], False
        self.comments = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append((dict(attrs), ""))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.inside = False

    def handle_endtag(self, tag):
        self.inside = False

    def handle_comment(self, data):
        self.comments.append(data)

    def handle_data(self, data):
        if self.inside:
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)


def records(folder, bad, plain):
    """Two runs that say a text wherever a run can say one, but for the clients' names where it is ``plain``."""
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


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    """The page of runs that say nothing harmful."""
    return Page(render(records(tmp_path_factory.mktemp("runs"), "plain", True), "plain"))


@pytest.mark.parametrize("bad", long_except(KEPT, HOSTILE.values(), HOSTILE))
def test_names_are_text_and_nothing_else(bad, harmless, tmp_path):
    text = render(records(tmp_path, bad, False), bad)
    page = Page(text)
    assert page.tags == harmless.tags
    assert page.attributes == harmless.attributes
    assert page.attributes <= ATTRIBUTES
    assert page.comments == []
    assert [attrs for attrs, _ in page.scripts] == [
        {"type": "application/json", "id": "figures"}, {"type": "application/octet-stream", "id": "library"}, {},
    ]  # fmt: skip
    assert page.scripts[1:] == harmless.scripts[1:]  # the library and the page's own script, to the letter
    figures = page.scripts[0][1]
    assert set(json.loads(figures)) == set(json.loads(harmless.scripts[0][1]))
    assert figures.isascii()
    assert "<" not in figures
    assert bad not in text
    assert not any(mark in text for mark in "\u2028\u2029\u0085")
