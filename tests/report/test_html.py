"""Test the report's page: its content, and that it loads nothing and escapes all names."""

import itertools
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
from tests.support.refusals import refused
from tests.support.report_page import EVIL, Page, rendered

from drfl.report import document, write_html
from drfl.report.compared import rank_algorithms
from drfl.report.groups import group_runs
from drfl.report.summary_text import takeaway

CURVES, LOSSES = 3, 2
"""Numbers of figures of the score and of the loss over the rounds."""


def test_page_of_one_run(record):
    run = record("drfa-digits", "DRFA", clients=6)
    page = Page(rendered([run]))
    assert re.search(r"DRFA \S+ digits\b", page.text)
    assert "drfl run drfa-digits/config.toml" in page.text
    assert f"{100 * run.final('worst_accuracy'):.1f}" in page.text
    assert "100 MB" in page.text  # 60 down, 40 up
    assert all(name in page.text for name in run.clients["client"])
    # besides the curves: the forest plot, clients by rank, the spread of λ, and λ
    assert len(page.figures) == CURVES + LOSSES + 4
    assert "zipf-dirichlet (alpha 0.1)" in page.text
    assert not any(attrs.get("class") == "legend" for _, attrs in page.elements)


def test_page_of_a_comparison(comparison):
    page = Page(rendered(comparison, "My title"))
    assert "My title" in page.text
    finals = [100 * run.final("worst_accuracy") for run in comparison[3:]]
    assert f"{np.mean(finals):.1f} ± {np.std(finals, ddof=1):.1f}" in page.text
    assert re.search(
        r"Not decided:\s+DRFA scores best at the worst client in these runs, .* more than FedAvg", page.text
    )
    assert re.search(r"FedAvg \S+ it constant\b", page.text)
    assert re.search(r"\b3 seeds [^.]*\b5\b", page.text)
    assert len(page.figures) == CURVES + LOSSES + 5  # a forest plot per algorithm
    boxes = [attrs["id"] for tag, attrs in page.elements if tag == "input"]
    assert boxes == ["worst-g0", "worst-g1", "training-g0", "training-g1"]


def test_figures_are_hidden_without_scripts(comparison):
    """Each box has a CSS rule for the figures of its section."""
    text = rendered(comparison)
    for tag, attrs in Page(text).elements:
        if tag == "input":
            section, _, key = attrs["id"].rpartition("-")
            assert f'#{section}:has(#{attrs["id"]}:not(:checked)) [data-group="{key}"] {{ display: none; }}' in text
            assert f'<g data-group="{key}"' in text


GAP = [1.0, 0.1, 0.02, 3e-4, 0.0, -1e-9]
UNPROVEN = r"lower bound [^.]*gradient norm"


def test_certificates_have_a_figure_and_a_table(record):
    page = Page(rendered([record(f"r{seed}", "DRFA", seed, rounds=5, gap=GAP) for seed in range(2)]))
    row = re.search(r"Proven.*?DRFA (.*?) yes", page.text)[1]
    assert row.split() == ["0.5", "±", "0", "0.5", "±", "0", "-1e-09", "±", "0", "1e-07", "±", "0"]
    (alt,) = [alt for alt in page.figures if "Duality gap" in alt]
    assert "DRFA -1e-09 ± 0" in alt
    assert re.search(r"\bGaps of 0\b", page.text)
    assert not re.search(UNPROVEN, page.text)


def test_positive_gaps_need_no_remark(record):
    runs = [record(f"r{seed}", "DRFA", seed, rounds=2, gap=[s, s / 10, s / 100]) for seed, s in enumerate((1.0, 3.0))]
    assert not re.search(r"\bGaps of 0\b", Page(rendered(runs)).text)


def test_unproven_certificate_is_marked(record):
    page = Page(rendered([record("a", "DRFA", rounds=5, gap=GAP, proven=False), record("b", rounds=5, gap=GAP)]))
    assert re.search(UNPROVEN, page.text)
    assert re.search(r"Proven.*?DRFA \S+ \S+ \S+ \S+ no FedAvg \S+ \S+ \S+ \S+ yes", page.text)


def test_missing_certificate_is_not_a_divergence(record):
    gone = {"primal": "nan", "lower": "nan", "gap": "nan", "gradient_norm": "nan", "proven": False}
    run = record("a", "DRFA", rounds=2, gap=[0.3, 0.2, np.nan])
    run.summary["final"] |= gone
    page = Page(rendered([run]))
    assert "diverged" not in page.text
    assert re.search(r"Proven DRFA – – – – no", page.text)


def test_page_without_certificates_does_not_mention_them(comparison):
    page = Page(rendered(comparison))
    assert not any("gap" in alt for alt in page.figures)
    assert "duality gap" not in page.text.lower()


def test_best_values_are_bold_with_ties(record):
    final = {"avg_accuracy": 0.9, "worst_accuracy": 0.8, "std_accuracy": 0.05, "worst20_accuracy": 0.81}
    runs = [
        record("a", "FedAvg", summary={"final": {**final, "worst_accuracy": 0.7}}),
        record("b", "DRFA", summary={"final": {**final, "worst_accuracy": 0.80004}}),
        record("c", "DRDM", summary={"final": final}),
    ]
    page = rendered(runs)
    assert page.count("<strong>80.0</strong>") == 2
    assert page.count("<strong>90.0</strong>") == 3
    assert "<strong>70.0</strong>" not in page


def test_every_picture_is_well_formed_and_described(comparison):
    text = rendered(comparison)
    pictures = re.findall(r"<svg xmlns=.*?</svg>(?!</g>)(?=</div>|</span>)", text)
    assert len(pictures) > 10
    for picture in pictures:
        ElementTree.fromstring(picture)
    plots = [attrs for _, attrs in Page(text).elements if attrs.get("class") == "plot"]
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in plots)


def test_page_loads_nothing_and_runs_no_script(comparison):
    text = rendered(comparison)
    page = Page(text)
    for tag, attrs in page.elements:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "use")
        assert not {"src", "srcset", "action"} & attrs.keys()
        assert not any(name.startswith("on") for name in attrs)
        assert re.match(r"#[a-z]+$|data:image/png;base64,", attrs.get("href", "#a"))
    (policy,) = [attrs["content"] for tag, attrs in page.elements if "http-equiv" in attrs]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    assert not re.search(r"https?://|url\(|@import", text.replace('xmlns="http://www.w3.org/2000/svg"', ""))


def test_hostile_names_are_escaped(record):
    names = [EVIL, "NA", "a&b"]
    changes = {"dataset": EVIL, "names": names, "clients": 3, "config": {"x": EVIL}}
    changes["summary"] = {"device": EVIL, "versions": {EVIL: EVIL}, "model": EVIL}
    runs = [record("a", "DRFA", **changes), record("b", EVIL, **changes)]
    for text in (rendered(runs), rendered(runs[:1]), rendered(runs[:1], EVIL)):
        page = Page(text)
        assert not any(tag in ("script", "b") or "onclick" in attrs for tag, attrs in page.elements)
        assert page.comments == []
        assert EVIL in " ".join(page.words)


def test_non_finite_values(record):
    rows = np.array([[0, 0.1, 0.05, 0.02, 0.05, 0.2, 2.3, 2.5, *[0] * 4], [1, *[np.nan] * 6, np.inf, 1, 1, 1, 0]])
    final = {"avg_accuracy": float("nan"), "worst_accuracy": None, "avg_loss": float("inf")}
    summary = {"final": final, "stopped": "interrupted", "skipped_rounds": 2}
    runs = [record("a", "FedAvg", rows=rows, rounds=1, summary=summary), record("b", "DRFA")]
    text = rendered(runs)
    page = Page(text)
    assert not re.search(r"\bnan\b|NaN|Infinity", text)
    assert re.search(r"FedAvg diverged \(seed 0\)", page.text)
    assert re.search(r"\binterrupted [^.]*\b1 round\b", page.text)
    assert re.search(r"\bskipped 2 rounds\b", page.text)
    Page(rendered(runs[:1]))


def test_failed_seed_is_not_averaged(record):
    runs = [record(f"r{seed}", "DRFA", seed) for seed in range(3)]
    runs[1].summary["final"] = {"avg_accuracy": None, "worst_accuracy": None}
    runs.append(record("f", "FedAvg"))
    page = Page(rendered(runs))
    assert re.search(r"DRFA diverged \(seed 1\)", page.text)
    assert re.search(r"FedAvg has 1 run [^.]*\b3\b", page.text)
    said = takeaway(groups := group_runs(runs), rank_algorithms(groups))
    assert said is not None
    assert said.start == "No comparison:"


def test_single_evaluated_round(record):
    page = Page(rendered([record("a", "DRFA", rounds=0)]))
    assert re.search(r"\bOne round [^.]*, so there is no figure\b", page.text)


def test_runs_with_other_clients(record):
    runs = [record("a", "DRFA", clients=4), record("b", "DualDRDM", clients=7)]
    assert "4 to 7" in Page(rendered(runs)).text


def test_ids_are_unique_and_headings_nested(comparison):
    page = Page(rendered(comparison))
    assert len(page.ids) == len(set(page.ids))
    assert sum(tag == "h1" for tag, _ in page.elements) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if tag in ("h1", "h2", "h3", "h4")]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_same_runs_give_the_same_bytes(comparison):
    assert rendered(comparison) == rendered(comparison)


def test_page_size_is_limited(comparison):
    assert len(rendered(comparison).encode()) < 150_000


def test_write_html_replaces_the_file_atomically(record, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_html(document([record("a")], "First"), path)
    assert "<h1>First</h1>" in path.read_text(encoding="utf-8")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with refused("cannot-write", str(path), "No space left"):
        write_html(document([record("b")], "Second"), path)
    assert "<h1>First</h1>" in path.read_text(encoding="utf-8")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "report.html"]


def test_unwritable_page_is_refused(record, tmp_path):
    with refused("folder-not-found", str(tmp_path / "nowhere")):
        write_html(document([record("a")]), tmp_path / "nowhere" / "report.html")
    assert not (tmp_path / "nowhere").exists()


def test_no_runs_are_refused():
    with refused("empty", "runs"):
        rendered([])


def test_import_is_light():
    code = "import sys, drfl.report; assert not {'typst', 'pandas', 'jinja2', 'torch', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
