import base64
import gzip
import hashlib
import html.parser
import json
import os
import re
import subprocess
import sys

import numpy as np
import plotly.graph_objects as go
import pytest
from tests.support.refusals import refused

from drfl.report import figures, render, write_report
from drfl.report.compared import standing
from drfl.report.groups import group_runs
from drfl.report.summary_text import takeaway

EVIL = '</script><script>alert(1)</script><!--<b onclick="x">\'&amp;%{y}{{ 6 * 7 }}{% x %}'


class Page(html.parser.HTMLParser):
    """The elements, text and scripts of a page; complains about elements that are not closed."""

    VOID = ("meta", "link", "br", "img", "line")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.words, self.scripts, self.ids = [], [], [], {}, []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        tag, attrs = self.open[-1] if self.open else ("", {})
        if tag == "script":
            self.scripts[attrs.get("id", "page")] = data
        elif tag != "style":
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))

    @property
    def figures(self):
        return json.loads(self.scripts["figures"])


def test_one_run(record):
    run = record("drfa-digits", "DRFA", clients=6)
    page = Page(render([run]))
    assert re.search(r"DRFA \S+ digits\b", page.text)
    assert "drfl run drfa-digits/config.toml" in page.text
    assert f"{100 * run.final('worst_accuracy'):.1f}" in page.text
    assert "100 MB" in page.text  # 60 down, 40 up
    assert all(name in page.text for name in run.clients["client"])
    assert len(page.figures) == 3 + 2 + 2 + 2
    assert "zipf-dirichlet (alpha 0.1)" in page.text
    assert not any(attrs.get("class") == "legend" for _, attrs in page.elements)


def test_a_comparison(comparison):
    page = Page(render(comparison, "My title"))
    assert "My title" in page.text
    finals = [100 * run.final("worst_accuracy") for run in comparison[3:]]
    assert f"{np.mean(finals):.1f} ± {np.std(finals, ddof=1):.1f}" in page.text
    assert re.search(r"Not decided:\s+DRFA measures best for the worst client, .* more than FedAvg", page.text)
    assert re.search(r"FedAvg \S+ it constant\b", page.text)
    assert re.search(r"\b3 seeds [^.]*\b5\b", page.text)
    assert sum(tag == "button" for tag, _ in page.elements) == 2
    assert len(page.figures) == 3 + 2 + 2 + 2
    average = page.figures["figure-1"]["data"]
    assert [(trace["name"], trace.get("fill")) for trace in average] == [
        ("FedAvg", "toself"), ("FedAvg", None), ("DRFA", "toself"), ("DRFA", None),
    ]  # fmt: skip


GAP = [1.0, 0.1, 0.02, 3e-4, 0.0, -1e-9]
UNPROVEN = r"lower bound [^.]*gradient norm"


def test_certificates_have_a_section_a_figure_and_a_table(record):
    page = Page(render([record(f"r{seed}", "DRFA", seed, rounds=5, gap=GAP) for seed in range(2)]))
    assert "certificate" in page.ids
    assert len(page.figures) == 3 + 2 + 2 + 2 + 1
    (gap,) = [f for f in page.figures.values() if f["layout"]["yaxis"]["title"]["text"] == "Duality gap"]
    assert gap["layout"]["yaxis"]["type"] == "log"
    assert gap["data"][-1]["y"] == [1.0, 0.1, 0.02, 3e-4, None, None]  # a log axis has no place for the others
    go.Figure(gap)
    row = re.search(r"Proven.*?DRFA (.*?) yes", page.text)[1]
    assert row.split() == ["0.5", "±", "0", "0.5", "±", "0", "-1e-09", "±", "0", "1e-07", "±", "0"]
    (alt,) = [attrs["aria-label"] for _, attrs in page.elements if "Duality gap" in (attrs.get("aria-label") or "")]
    assert "DRFA -1e-09 ± 0" in alt
    assert re.search(r"\bgap of 0\b", page.text)
    assert not re.search(UNPROVEN, page.text)


def test_gaps_of_several_seeds_are_their_mean_within_a_band(record):
    runs = [record(f"r{seed}", "DRFA", seed, rounds=2, gap=[s, s / 10, s / 100]) for seed, s in enumerate((1.0, 3.0))]
    page = Page(render(runs))
    (gap,) = [f for f in page.figures.values() if f["layout"]["yaxis"]["title"]["text"] == "Duality gap"]
    band, line = gap["data"]
    assert (line["x"], line["y"]) == ([0, 1, 2], [2.0, 0.2, 0.02])
    assert band["y"] == [3.0, 0.3, 0.03, 0.01, 0.1, 1.0]
    assert not re.search(r"\bgap of 0\b", page.text)


def test_a_gap_that_is_missing_in_one_seed_is_not_drawn_from_the_others(record):
    runs = [record(f"r{s}", "DRFA", s, rounds=2, gap=gap) for s, gap in enumerate(([1, 0.1, 0.01], [3, np.nan, 0.03]))]
    page = Page(render(runs))
    (gap,) = [f for f in page.figures.values() if f["layout"]["yaxis"]["title"]["text"] == "Duality gap"]
    assert gap["data"][-1]["y"] == [2.0, None, 0.02]


def test_a_doubtful_certificate_is_told_so(record):
    page = Page(render([record("a", "DRFA", rounds=5, gap=GAP, proven=False), record("b", rounds=5, gap=GAP)]))
    assert re.search(UNPROVEN, page.text)
    assert re.search(r"Proven.*?DRFA \S+ \S+ \S+ \S+ no FedAvg \S+ \S+ \S+ \S+ yes", page.text)


def test_a_missing_certificate_is_no_divergence(record):
    gone = {"primal": "nan", "lower": "nan", "gap": "nan", "gradient_norm": "nan", "proven": False}
    run = record("a", "DRFA", rounds=2, gap=[0.3, 0.2, np.nan])
    run.summary["final"] |= gone
    page = Page(render([run]))
    assert "diverged" not in page.text
    assert re.search(r"Proven DRFA – – – – no", page.text)


def test_without_certificates_nothing_is_said_of_them(comparison):
    page = Page(render(comparison))
    assert "certificate" not in page.ids
    assert "gap" not in page.text.lower()


def test_only_those_with_certificates_are_in_their_figure(record):
    page = Page(render([record("a", "DRFA", rounds=5, gap=GAP), record("b", "FedAvg", rounds=5)]))
    (gap,) = [f for f in page.figures.values() if f["layout"]["yaxis"]["title"]["text"] == "Duality gap"]
    assert [trace["name"] for trace in gap["data"]] == ["DRFA"]


def test_best_is_bold_and_ties_alike(record):
    final = {"avg_accuracy": 0.9, "worst_accuracy": 0.8, "std_accuracy": 0.05, "worst20_accuracy": 0.81}
    runs = [
        record("a", "FedAvg", summary={"final": {**final, "worst_accuracy": 0.7}}),
        record("b", "DRFA", summary={"final": {**final, "worst_accuracy": 0.80004}}),
        record("c", "DRDM", summary={"final": final}),
    ]
    page = render(runs)
    assert page.count("<strong>80.0</strong>") == 2
    assert page.count("<strong>90.0</strong>") == 3
    assert "<strong>70.0</strong>" not in page


def test_figures_are_valid_for_plotly(comparison):
    for figure in Page(render(comparison)).figures.values():
        go.Figure(figure)
        assert figure["layout"]["xaxis"]["title"]["text"]


def test_nothing_is_fetched(comparison):
    text = render(comparison)
    page = Page(text)
    for tag, attrs in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "href", "srcset", "action"} & attrs.keys()
    visible = text.replace(page.scripts["library"], "")
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest", visible)
    assert "default-src 'none'" in visible


def test_the_policy_allows_the_reports_scripts_only(record):
    page = Page(render([record("a")]))
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    library = gzip.decompress(base64.b64decode(page.scripts["library"]))
    for script in (library, page.scripts["page"].encode()):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert b"plotly.js" in library[:200]


def test_hostile_names_stay_text(record):
    names = [EVIL, "NA", "a&b"]
    changes = {"dataset": EVIL, "names": names, "clients": 3, "config": {"x": EVIL}}
    changes["summary"] = {"device": EVIL, "versions": {EVIL: EVIL}, "model": EVIL}
    runs = [record("a", "DRFA", **changes), record("b", EVIL, **changes)]
    for text in (render(runs), render(runs[:1]), render(runs[:1], EVIL)):
        page = Page(text)
        assert sum(tag == "script" for tag, _ in page.elements) == 3
        assert not any(tag == "b" or "onclick" in attrs for tag, attrs in page.elements)
        assert "<" not in page.scripts["figures"]
        assert EVIL in " ".join(page.words)
        _no_markup(page.figures)


def _no_markup(value):
    """Plotly reads tags in labels: only the report's own may be there."""
    if isinstance(value, dict):
        for inner in value.values():
            _no_markup(inner)
    elif isinstance(value, list):
        for inner in value:
            _no_markup(inner)
    elif isinstance(value, str):
        assert "<" not in re.sub(r"</?(b|br|extra)>", "", value)
        assert 'onclick="' not in value


def test_values_that_are_not_finite(record):
    rows = np.array([[0, 0.1, 0.05, 0.02, 0.05, 0.2, 2.3, 2.5, *[0] * 4], [1, *[np.nan] * 6, np.inf, 1, 1, 1, 0]])
    final = {"avg_accuracy": float("nan"), "worst_accuracy": None, "avg_loss": float("inf")}
    summary = {"final": final, "stopped": "interrupted", "skipped_rounds": 2}
    runs = [record("a", "FedAvg", rows=rows, rounds=1, summary=summary), record("b", "DRFA")]
    text = render(runs)
    page = Page(text)
    assert not re.search(r"\bnan\b|NaN|Infinity", text.replace(page.scripts["library"], ""))
    assert re.search(r"FedAvg diverged \(seed 0\)", page.text)
    assert re.search(r"\binterrupted [^.]*\b1 round\b", page.text)
    assert re.search(r"\bskipped 2 rounds\b", page.text)
    assert page.figures["figure-1"]["data"][0]["y"] == [10.0, None]
    Page(render(runs[:1]))


def test_a_seed_that_failed_is_not_averaged_away(record):
    runs = [record(f"r{seed}", "DRFA", seed) for seed in range(3)]
    runs[1].summary["final"] = {"avg_accuracy": None, "worst_accuracy": None}
    runs.append(record("f", "FedAvg"))
    page = Page(render(runs))
    assert re.search(r"DRFA diverged \(seed 1\)", page.text)
    assert re.search(r"FedAvg has 1 run [^.]*\b3\b", page.text)
    said = takeaway(groups := group_runs(runs), standing(groups))
    assert said.start == "No comparison:"


def test_one_evaluated_round(record):
    page = Page(render([record("a", "DRFA", rounds=0)]))
    assert re.search(r"\bOne round [^.]*: there is nothing to draw\b", page.text)
    assert "markers" in page.figures["figure-1"]["data"][0]["mode"]


@pytest.mark.long
def test_many_clients(record):
    page = Page(render([record("a", "DRFA", clients=1000, rounds=300)]))
    (heat,) = [f["data"][0] for f in page.figures.values() if f["data"][0]["type"] == "heatmap"]
    assert (len(heat["z"]), len(heat["z"][0])) == (60, 200)
    assert "60 of 1000" in page.text


def test_runs_with_other_clients(record):
    runs = [record("a", "DRFA", clients=4), record("b", "DualDRDM", clients=7)]
    assert "4 to 7" in Page(render(runs)).text


def test_ids_are_unique_and_headings_nest(comparison):
    page = Page(render(comparison))
    assert len(page.ids) == len(set(page.ids))
    assert set(page.figures) <= set(page.ids)
    assert sum(tag == "h1" for tag, _ in page.elements) == 1
    plots = [attrs for _, attrs in page.elements if attrs.get("class") == "plot"]
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in plots)


def test_the_same_runs_give_the_same_bytes(comparison):
    assert render(comparison) == render(comparison)


def test_size(comparison):
    assert len(render(comparison).encode()) < 2_500_000


def test_write_report_replaces_a_file_whole(record, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_report([record("a")], path, "First")
    assert "<h1>First</h1>" in path.read_text(encoding="utf-8")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with refused("cannot-write", str(path), "No space left"):
        write_report([record("b")], path, "Second")
    assert "<h1>First</h1>" in path.read_text(encoding="utf-8")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "report.html"]


def test_what_cannot_be_written(record, tmp_path):
    with refused("folder-not-found", str(tmp_path / "nowhere")):
        write_report([record("a")], tmp_path / "nowhere" / "report.html")
    assert not (tmp_path / "nowhere").exists()


def test_no_runs():
    with refused("empty", "runs"):
        render([])


def test_import_is_light():
    code = "import sys, drfl.report; assert not {'plotly', 'pandas', 'jinja2', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
def test_very_many_clients_are_thinned_out_and_the_page_says_so(record):
    """Dots at even steps of the rank, both ends among them; the table stops at its limit."""
    many, few = record("many", "DRFA", clients=5001, rounds=1), record("few", "DRFA", clients=40, rounds=1)
    page, thinned = render([many]), r"\bdots [^.]*\brank\b"
    assert re.search(thinned, page)
    assert re.search(r"\b1000\b[^.]*\b5001 clients; clients\.csv\b", page)
    assert not re.search(thinned, render([few]))
    dots = figures.client_scores(group_runs([many])).data[0]
    assert len(dots.x) == figures.DOTS
    assert (dots.x[0], dots.x[-1]) == (1, 5001)
    accuracy = sorted(100 * many.clients["score"])
    assert list(dots.y) == pytest.approx([accuracy[x - 1] for x in dots.x], rel=1e-4)
    cells = [("a", "DRFA", 0), ("b", "DRFA", 1), ("c", "FedAvg", 0)]
    both = figures.client_scores(group_runs([record(*cell, clients=3000, rounds=1) for cell in cells]))
    dotted = [trace for trace in both.data if trace.mode == "markers"]
    assert [len(trace.x) for trace in dotted] == [figures.DOTS // 2] * 2
    assert [len(trace.x) for trace in both.data if trace.mode == "lines"] == [figures.DOTS // 2]
