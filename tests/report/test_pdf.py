"""Test the answers of a report and the PDF: glyphs, tags, and the same bytes for the same runs."""

import dataclasses
import importlib.util
import re
import unicodedata

import numpy as np
import pypdfium2
import pytest
from tests.support.pdf_text import texts
from tests.support.refusals import refused
from tests.support.report_page import Page

from drfl.assessment.gains import assess_gain
from drfl.assessment.seeds import seed_difference
from drfl.core.run_end import ON_TEST, RESET
from drfl.report import document, render_html, render_pdf, write_pdf
from drfl.report.assessed import assessment_of, missing_reason
from drfl.report.compose import compose
from drfl.report.content import Figure, TableBlock
from drfl.report.evidence import Evidence, RunEvidence
from drfl.report.formatting import clean
from drfl.report.names import BOX, GLYPHS, display_names, in_glyphs
from drfl.report.run_gains import AssessedRun, PairedRuns, SeedComparison
from drfl.task.measure import NOTHING, Measure

ACCURACY = {"name": "accuracy", "more_is_better": True, "percent": True, "rows": "binary"}
CALIBRATION = {"name": "calibration_error", "more_is_better": False, "percent": False, "rows": "whole"}


@pytest.fixture
def run(record):
    """Return a function that writes a run, reads it and assesses its accuracy."""

    def made(name="fedavg", algorithm="FedAvg", seed=0, *, measures=(ACCURACY,), **changes):
        changes["summary"] = {"measures": list(measures), "returned": "average", **changes.get("summary", {})}
        found = record(name, algorithm, seed, **changes)
        return RunEvidence(found, assessment_of(found), shared=False, data="ab" * 16)

    return made


def text_of(evidence):
    """Return the text that both the PDF and the page contain; text that one lacks is omitted."""
    content = compose(evidence)
    printed = " ".join(" ".join(texts(render_pdf(content))).split())
    shown = Page(render_html(content)).text
    return Both(printed, shown)


class Both:
    """The text of the PDF and that of the page."""

    def __init__(self, *texts):
        # ignore spaces, because a PDF has others at line ends
        self.texts = ["".join(unicodedata.normalize("NFC", text).split()) for text in texts]

    def __contains__(self, text):
        found = {"".join(text.split()) in own for own in self.texts}
        assert len(found) == 1, f"only one of the formats says {text!r}"
        return found.pop()


def section(evidence, name):
    return next(one for one in compose(evidence).sections if one.name == name)


def answer(evidence, name):
    return section(evidence, name).answer


def test_single_run_answers_each_question(run):
    one = run()
    evidence = Evidence((one,))
    worst = one.assessment.names[one.assessment.order[0]]
    found = text_of(evidence)
    for asked in compose(evidence).sections:
        assert asked.title in found
        assert asked.answer in found
    assert worst in answer(evidence, "worst")
    assert "LocalOnly, Pooled" in answer(evidence, "alone")
    assert "grey band" in found
    assert "--metric calibration-error" in found
    assert one.data in found
    assert "drfl run fedavg/config.toml" in found
    assert one.assessment.measure.interval(one.assessment.worst.low, one.assessment.worst.high) in found


def test_both_formats_have_the_same_content(comparison):
    """Compare the content table by table and figure by figure."""
    content = document(comparison)
    pages = "".join("".join(texts(render_pdf(content))).split())
    page = "".join(Page(render_html(content)).text.split())
    for part in strings(content):
        wanted = "".join(in_glyphs(part).split())
        assert wanted in page, part
        assert wanted in pages, part


def strings(content):
    """Return the text of the content, without pictures and their descriptions."""
    if isinstance(content, str):
        yield from content.splitlines()
    elif isinstance(content, (list, tuple)):
        for one in content:
            yield from strings(one)
    elif dataclasses.is_dataclass(content):
        silent = ("svg", "alt", "swatch", "name", "entries", "writer", "spread", "head")
        for field in dataclasses.fields(content):
            if field.name not in silent or (field.name == "head" and hasattr(content, "sections")):
                yield from strings(getattr(content, field.name))


def test_same_runs_give_the_same_bytes_without_a_date(comparison):
    data = render_pdf(document(comparison))
    assert data == render_pdf(document(comparison))
    assert b"CreationDate" not in data
    assert b"/CreateDate" not in data


def test_pages_are_tagged_a4_with_embedded_fonts(run):
    data = render_pdf(compose(Evidence((run(clients=200, names=[f"c{i}" for i in range(200)]),)), "My title"))
    found = pypdfium2.PdfDocument(data)
    assert found.get_metadata_dict()["Title"] == "My title"
    sizes = {tuple(round(side) for side in page.get_size()) for page in found}
    pages = texts(data)
    found.close()
    assert sizes == {(595, 842)}
    for number, page in enumerate(pages, start=1):
        assert f"{number} / {len(pages)}" in page
    assert sum("Training samples λ" in " ".join(page.split()) for page in pages) > 2  # the repeated table header
    fonts = set(re.findall(rb"/BaseFont ?/([\w+-]+)", data))
    assert all(re.match(rb"[A-Z]{6}\+(LibertinusSerif|DejaVuSansMono)", font) for font in fonts)
    assert data.count(b"/FontFile") >= 2
    for tag in (b"/MarkInfo", b"/StructTreeRoot", b"/Lang", b"/S/H1", b"/S/TH", b"/S/Figure", b"pdfuaid:part"):
        assert tag in data.replace(b" ", b"")


HOSTILE = (
    "北京医院", "上海医院", "בית חולים", "مستشفى", "a\x00\x1b[31mred", "\u202eevil", "x" * 500, "x" * 500 + "y", " ",
    "👩‍⚕️", "Ω-Klinik", "endobj) Tj\\(", "{nb}", "\u2007\u2007", "**bold**", "/home/jane/secret/site", "W" * 60,
    '#panic("x")', "*s* _e_ `r` $m$ @l <l> // c", "\\input{x} $x$ %", "#sys.inputs", "= Title", "\\u{41} ~ -- ...",
)  # fmt: skip


def test_hostile_names_are_shown_and_distinguishable(run):
    one = run(clients=len(HOSTILE), names=list(HOSTILE), summary={"model": "W" * 300, "warnings": ["北 (\\"]})
    evidence = Evidence((one,))
    found = text_of(evidence)
    shown = display_names(HOSTILE)
    assert len(set(map(in_glyphs, shown))) == len(HOSTILE)
    assert shown[0] == "北京医院 (no. 1)"
    assert in_glyphs(shown[0]) == f"{BOX * 4} (no. 1)"
    assert shown[2] == "\u2068בית חולים\u2069"  # isolated, so that it does not reorder adjacent numbers
    assert {"{nb}", "**bold**", "endobj) Tj\\(", "…/site"} <= set(shown)
    for name in HOSTILE:
        if name.isascii() and len(name.strip()) in range(2, 41) and "jane" not in name and name.isprintable():
            assert name in shown
            assert name in found
    assert "jane" not in found


def test_every_shown_character_has_a_glyph():
    """PDF/UA, the standard that the PDF declares, requires a glyph for every character."""
    import typst

    every = "".join(chr(code) for low, high in GLYPHS for code in range(low, high + 1))
    words = "".join(c for c in every if c.isprintable() and in_glyphs(c) != BOX)
    source = '#set document(title: "x")\n#set text(font: ("Libertinus Serif", "DejaVu Sans Mono"))\n'
    for style in ("regular", "bold"):
        typst.compile(
            f'{source}#text(weight: "{style}", sys.inputs.words)'.encode(), format="pdf", pdf_standards=["ua-1"],
            font_paths=typst.Fonts(include_system_fonts=False), sys_inputs={"words": words},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("data in /home/jane/a b.csv", "data in …/a b.csv"),
        ('x = "/home/Jane Doe/data"', 'x = "…/data"'),
        ('x = "C:\\\\Users\\\\Jane Doe\\\\x.csv"', 'x = "…/x.csv"'),
        ("at ~/runs/one: 3", "at …/one: 3"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("1/2 and a/b/c", "1/2 and a/b/c"),
        ("tab\tand\nline", "tab and line"),
        ("/home/jane/" + "x" * 300, "…/" + "x" * 197 + "…"),
        ("\u2068\u2068שם\u2069\u2069", "\u2068שם\u2069"),
    ],
)
def test_text_is_one_line_without_folders(text, shown):
    assert clean(text) == clean(clean(text)) == shown


def compared(run, seeds):
    runs = tuple(run(f"{name}-{s}", name, s) for name in ("FedAvg", "DRFA") for s in range(seeds))
    n, right = np.full(6, 100.0), np.array([60.0, 70, 80, 80, 80, 80])
    first, second = (np.stack([n, own, own], 1) for own in (right, right + 15))
    gain = assess_gain(runs[0].assessment.measure, [f"c{i:03d}" for i in range(6)], first, second, right)
    return runs, PairedRuns(assessed(runs[0]), assessed(runs[seeds]), gain)


def assessed(run):
    return AssessedRun(run.record, run.record.score, run.assessment, None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("seeds", "verdict", "said"),
    [
        (5, "better", "over data splits, over 5 seeds, the worst client is significantly better with DRFA"),
        (5, "not significant", "over data splits, over 5 seeds, there is no significant difference for DRFA"),
        (2, "not decided", "not decided over seeds (2 seeds, 5 are needed)"),
    ],
)
def test_algorithms_are_compared_over_seeds_and_row_by_row(run, seeds, verdict, said):
    runs, by_rows = compared(run, seeds)
    over = SeedComparison(
        "FedAvg", "DRFA", seed_difference(np.linspace(0.1, 0.2, seeds)), verdict, "", "over data splits"
    )
    evidence = Evidence(runs, (by_rows,), (), (over,))
    assert said in answer(evidence, "compared")
    assert "on the same test rows (seed 0), the worst client is significantly better with DRFA" in answer(
        evidence, "compared"
    )
    found = text_of(evidence)
    assert "6 of 6" in found  # clients at which DRFA is better
    assert "DRFA, seed 0: 6 clients, the worst first" in found


@pytest.mark.long
def test_clients_are_compared_with_local_training(run):
    runs = (run("fedavg"), run("local", "LocalOnly"))
    gain = compared(run, 1)[1]._replace(first=assessed(runs[1]), second=assessed(runs[0]))
    evidence = Evidence(runs, (), (gain,))
    assert "With FedAvg, 6 clients of 6 are significantly better than alone" in answer(evidence, "alone")
    found = text_of(evidence)
    values = 100 * runs[1].record.clients["score"].to_numpy()
    assert all(f"{value:.1f} (" in found for value in values)


def without_rows(run):
    """Return the run with F1 as its score."""
    record = dataclasses.replace(run.record, measures=(Measure("f1"), *run.record.measures))
    return RunEvidence(record, assessment_of(record), missing_reason(record))


def test_measure_of_all_rows_has_no_interval(run):
    evidence = Evidence((without_rows(run()),))
    why = evidence.runs[0].missing_reason
    assert (why.code, why.field) == ("unsupported-metric", "f1")
    assert why in answer(evidence, "worst")
    assert "--measure accuracy" in text_of(evidence)


def test_calibration_is_shown_by_client(run):
    one = run(measures=(ACCURACY, CALIBRATION))
    one.record.clients["calibration_error"] = [0.01, 0.02, 0.31, 0.04, np.nan, 0.05]
    said = answer(Evidence((one,)), "calibration")
    assert all(part in said for part in ("c002", "0.310", "0.086"))
    assert "0.310" in text_of(Evidence((one,)))


@pytest.mark.parametrize(
    ("summary", "config", "said"),
    [
        ({}, {}, "did not influence them"),
        (
            {"stopped": "target", "stopped_on": "test"},
            {"until": "test:worst_accuracy=0.5"},
            "rows influenced the model",
        ),
        pytest.param(
            {"stopped": "target", "stopped_on": "validation"},
            {"until": "worst_accuracy=0.5"},
            "did not influence",
            marks=pytest.mark.long,
        ),
        ({"stopped": "patience"}, {}, "Validation rows stopped the training"),
        pytest.param(
            {"selection": {"part": "validation", "metric": "worst_accuracy", "round": 7, "value": 0.5}},
            {},
            "Validation rows chose the round of the model; the test rows did not influence it",
            marks=pytest.mark.long,
        ),
        pytest.param({"returned": None}, {}, "do not record every decision", marks=pytest.mark.long),
        pytest.param({}, {"judged_on": "validation"}, "are from validation rows", marks=pytest.mark.long),
        pytest.param({}, {"judged_on": "training"}, "did not influence them", marks=pytest.mark.long),
    ],
)
def test_report_names_the_rows_that_decided(run, summary, config, said):
    evidence = Evidence((run(summary=summary, config=config),))
    assert said in answer(evidence, "decisions")
    table = section(evidence, "decisions").blocks[0]
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["Every score in this report"][0] == f"{config.get('judged_on', 'test')} rows"
    if "selection" in summary:
        assert cells["Which model is returned"] == ["validation rows", "round 7, the best by worst accuracy"]
    if summary.get("stopped") == "target":
        assert cells["Number of rounds"] == [f"{summary['stopped_on']} rows", f"10: stopped at {config['until']}"]


def test_step_size_section_mentions_a_rollback(run):
    found = {"step_size": {"lr": 0.1, "halved": 1}, "rollbacks": 1, "effective_rounds": 2}
    for summary, said in ((found, f"; {RESET}, 2 of 10 rounds count"), ({**found, "rollbacks": 0}, "")):
        table = section(Evidence((run(f"r{len(said)}", summary=summary),)), "decisions").blocks[0]
        cells = {row[0]: row[1:] for row in table.rows}
        assert cells["Local step size"][1] == f"0.1, from the curvature of the loss, halved after the loss rose{said}"


def test_run_stopped_by_test_rows_has_no_intervals(run):
    one = run(summary={"stopped": "target", "stopped_on": "test"})
    assert one.record.stopped_on_test
    assert one.assessment is None
    evidence = Evidence((dataclasses.replace(one, missing_reason=missing_reason(one.record)),))
    assert ON_TEST in answer(evidence, "worst")
    assert "--measure" not in text_of(evidence)
    shown = section(evidence, "worst").blocks
    assert not any("intervals" in block.alt for block in shown if isinstance(block, Figure))
    (runs,) = [block for block in shown if isinstance(block, TableBlock) and "Could be worst" in block.head]
    assert [cell for head, cell in zip(runs.head, runs.rows[0], strict=True) if head.startswith(("95", "Could"))] == [
        NOTHING, NOTHING,
    ]  # fmt: skip


def test_digests_of_files_are_complete(run):
    one = run()
    digests = {name: f"{k:064x}" for k, name in enumerate(("config.toml", "model.safetensors"), start=10**9)}
    found = text_of(Evidence((RunEvidence(one.record, one.assessment, files=digests),)))
    assert all(f"SHA-256 {digest}" in found for digest in digests.values())
    assert "contains no digest of the data" in found


def test_bad_input_is_one_line_and_writes_nothing(run, tmp_path, monkeypatch):
    with refused("empty", "runs"):
        Evidence(())
    with refused("runs-differ"):
        Evidence((run("a"), without_rows(run("b"))))
    content = compose(Evidence((run("c"),)))
    with refused("folder-not-found", str(tmp_path / "nowhere")):
        write_pdf(content, tmp_path / "nowhere" / "r.pdf")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused("package-missing", "typst", "'drfl[pdf]'"):
        write_pdf(content, tmp_path / "r.pdf")
    assert not list(tmp_path.rglob("*.pdf"))


@pytest.mark.long
def test_pdf_has_every_deployed_site(run):
    sites = [f"site-{i:02d}" for i in range(45)]
    shown = text_of(Evidence((run(clients=45, names=sites, config={"sites": sites}),)))
    assert "the 30 worst" not in shown
    assert all(site in shown for site in sites)
    simulated = text_of(Evidence((run("simulated", clients=45, names=sites),)))
    assert "he 30 worst of 45 clients" in simulated
