"""The report to print: what it says, in which glyphs, in grey, and the same bytes for the same runs."""

import dataclasses
import importlib.util
import re

import numpy as np
import pytest
from tests.support.pdf_text import contents, texts
from tests.support.refusals import refused

from drfl.assessment.gains import assess_gain
from drfl.assessment.seeds import seed_difference
from drfl.core.run_end import ON_TEST, SET_BACK
from drfl.report.assessed import assessment_of, why_nothing
from drfl.report.pdf import Evidence, RowGain, RunEvidence, SeedGain, render_pdf, write_pdf
from drfl.report.pdf.document import document
from drfl.report.pdf.forest import ticks
from drfl.report.pdf.names import BOX, client_names, printable
from drfl.task.measure import Measure

ACCURACY = {"name": "accuracy", "more_is_better": True, "percent": True, "rows": "binary"}
CALIBRATION = {"name": "calibration_error", "more_is_better": False, "percent": False, "rows": "whole"}


@pytest.fixture
def run(record):
    """Writes a run and reads it, assessed by its accuracy."""

    def made(name="fedavg", algorithm="FedAvg", seed=0, *, measures=(ACCURACY,), **changes):
        changes["summary"] = {"measures": list(measures), "returned": "average", **changes.get("summary", {})}
        found = record(name, algorithm, seed, **changes)
        return RunEvidence(found, assessment_of(found), shared=False, data="ab" * 16)

    return made


def text_of(evidence):
    return " ".join(" ".join(texts(render_pdf(evidence))).split())


def answers(evidence):
    return [question.answer for question in document(evidence).questions]


def test_one_run_answers_each_question(run):
    one = run()
    pages = texts(render_pdf(Evidence((one,))))
    worst = one.assessment.names[one.assessment.order[0]]
    whole = " ".join(" ".join(pages).split())
    assert all(worst in page for page in pages[:2])  # on the first page, and in its section
    assert all(whole.count(f"{k} ") for k in range(1, 7))
    assert any("LocalOnly, Pooled" in answer for answer in answers(Evidence((one,))))
    assert any(getattr(block, "band", None) for block in document(Evidence((one,))).questions[0].blocks)
    assert "--metric calibration-error" in whole
    assert one.data in whole
    assert "drfl run fedavg/config.toml" in whole
    ends = one.assessment.measure.interval(one.assessment.worst.low, one.assessment.worst.high)
    assert ends in pages[1].split("\n")


def test_the_same_runs_give_the_same_bytes_without_a_date_or_a_colour(run):
    evidence = Evidence((run(),))
    data = render_pdf(evidence)
    assert data == render_pdf(evidence)
    assert b"CreationDate" not in data
    assert b"[0 0 595.28 841.89]" in data  # A4
    for page in contents(data):
        assert not re.search(rb"[\d.] (rg|RG|k|K|scn|SCN)\s", page)


HOSTILE = (
    "北京医院", "上海医院", "בית חולים", "مستشفى", "a\x00\x1b[31mred", "\u202eevil", "x" * 500, "x" * 500 + "y", " ",
    "👩‍⚕️", "Ω-Klinik", "endobj) Tj\\(", "{nb}", "\u2007\u2007", "**bold**", "/home/jane/secret/site", "W" * 60,
)  # fmt: skip


def test_hostile_names_are_printed_and_told_apart(run):
    one = run(clients=len(HOSTILE), names=list(HOSTILE), summary={"model": "W" * 300, "warnings": ["北 (\\"]})
    found = text_of(Evidence((one,), (), ()))
    shown = client_names(HOSTILE)
    assert len(set(shown)) == len(HOSTILE)
    assert shown[0] == f"{BOX * 4} (no. 1)"
    assert shown[2] == "םילוח תיב"  # as it is drawn from left to right
    assert {"{nb}", "**bold**", "endobj) Tj\\(", "…/site"} <= set(shown)
    for name in (shown[0], "{nb}", "**bold**", "endobj) Tj\\("):
        assert name in found
    assert "jane" not in found


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
    ],
)
def test_text_is_one_line_without_folders(text, shown):
    assert printable(text) == shown


def compared(run, seeds):
    runs = tuple(run(f"{name}-{s}", name, s) for name in ("FedAvg", "DRFA") for s in range(seeds))
    n, right = np.full(6, 100.0), np.array([60.0, 70, 80, 80, 80, 80])
    first, second = (np.stack([n, own, own], 1) for own in (right, right + 15))
    gain = assess_gain(runs[0].assessment.measure, [f"c{i:03d}" for i in range(6)], first, second, right)
    return runs, RowGain("FedAvg", "DRFA", "0", gain)


@pytest.mark.parametrize(
    ("seeds", "verdict", "said"),
    [
        (5, "better", "over data splits, over 5 seeds, the worst client is significantly better off with DRFA"),
        (5, "no difference shown", "over data splits, over 5 seeds, there is no significant difference for DRFA"),
        (2, "not decided", "not decided over seeds (2 seeds, 5 are needed)"),
    ],
)
def test_algorithms_are_compared_over_seeds_and_row_by_row(run, seeds, verdict, said):
    runs, by_rows = compared(run, seeds)
    over = SeedGain("FedAvg", "DRFA", seed_difference(np.linspace(0.1, 0.2, seeds)), verdict, scope="over data splits")
    evidence = Evidence(runs, (by_rows,), (), (over,))
    assert said in answers(evidence)[1]
    assert (
        "on the same test rows (seed 0), the worst client is significantly better off with DRFA" in answers(evidence)[1]
    )
    found = text_of(evidence)
    assert "6 of 6" in found  # clients at which DRFA is better
    assert "DRFA, seed 0: 6 clients, the worst first" in found


def test_clients_stand_beside_what_they_have_alone(run):
    runs = (run("fedavg"), run("local", "LocalOnly"))
    gain = compared(run, 1)[1]._replace(first="LocalOnly", second="FedAvg")
    evidence = Evidence(runs, (), (gain,))
    assert "With FedAvg, 6 clients of 6 are shown to be better off than alone" in answers(evidence)[2]
    found = text_of(evidence)
    values = 100 * runs[1].record.clients["score"].to_numpy()
    assert all(f"{value:.1f} (" in found for value in values)


def without_rows(run):
    """The run as if its score were F1."""
    record = dataclasses.replace(run.record, measures=(Measure("f1"), *run.record.measures))
    return RunEvidence(record, assessment_of(record), why_nothing(record))


def test_a_measure_of_all_rows_together_has_no_interval(run):
    evidence = Evidence((without_rows(run()),))
    why = evidence.runs[0].nothing
    assert (why.code, why.field) == ("unsupported-metric", "f1")
    assert why in answers(evidence)[0]
    assert "--measure accuracy" in text_of(evidence)


def test_calibration_is_told_by_client(run):
    one = run(measures=(ACCURACY, CALIBRATION))
    one.record.clients["calibration_error"] = [0.01, 0.02, 0.31, 0.04, np.nan, 0.05]
    said = answers(Evidence((one,)))[3]
    assert all(part in said for part in ("c002", "0.310", "0.086"))
    assert "0.310" in text_of(Evidence((one,)))


@pytest.mark.parametrize(
    ("summary", "config", "said"),
    [
        ({}, {}, "no say in them"),
        ({"stopped": "target", "stopped_on": "test"}, {"until": "test:worst_accuracy=0.5"}, "test rows had a say in"),
        ({"stopped": "target", "stopped_on": "validation"}, {"until": "worst_accuracy=0.5"}, "no say in the model"),
        ({"stopped": "patience"}, {}, "stopped by validation rows"),
        (
            {"selection": {"part": "validation", "metric": "worst_accuracy", "round": 7, "value": 0.5}},
            {},
            "chosen by validation rows; the test rows had no say",
        ),
        ({"returned": None}, {}, "do not say all that decided"),
        ({}, {"judged_on": "validation"}, "are of validation rows"),
        ({}, {"judged_on": "training"}, "no say in them"),
    ],
)
def test_it_says_which_rows_decided(run, summary, config, said):
    evidence = Evidence((run(summary=summary, config=config),))
    assert said in answers(evidence)[4]
    table = document(evidence).questions[4].blocks[0]
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["Every score in this report"][0] == f"{config.get('judged_on', 'test')} rows"
    if "selection" in summary:
        assert cells["Which model is returned"] == ["validation rows", "round 7, the best by worst accuracy"]
    if summary.get("stopped") == "target":
        assert cells["Number of rounds"] == [f"{summary['stopped_on']} rows", f"10: stopped at {config['until']}"]


def test_the_step_size_says_if_the_model_was_set_back(run):
    found = {"step_size": {"lr": 0.1, "halved": 1}, "rollbacks": 1, "effective_rounds": 2}
    for summary, said in ((found, f"; {SET_BACK}, 2 of 10 rounds count"), ({**found, "rollbacks": 0}, "")):
        table = document(Evidence((run(f"r{len(said)}", summary=summary),))).questions[4].blocks[0]
        cells = {row[0]: row[1:] for row in table.rows}
        assert cells["Local step size"][1] == f"0.1, by the curvature of the loss, halved as the loss rose{said}"


@pytest.mark.parametrize("summary", [{"stopped": "target", "stopped_on": "test"}, {"stopped": "target"}])
def test_a_run_that_test_rows_have_stopped_has_no_intervals(run, summary):
    """Of an older drfl, which does not say by which rows a run stopped, they were the test rows."""
    one = run(summary=summary)
    assert one.record.stopped_on_test
    assert one.assessment is None
    evidence = Evidence((dataclasses.replace(one, nothing=why_nothing(one.record)),))
    assert ON_TEST in answers(evidence)[0]
    found = text_of(evidence)
    assert "95 %" not in found.split("Compared with what")[0]
    assert "--measure" not in found


def test_digests_of_files_are_whole(run):
    one = run()
    digests = {name: f"{k:064x}" for k, name in enumerate(("config.toml", "model.safetensors"), start=10**9)}
    found = text_of(Evidence((RunEvidence(one.record, one.assessment, files=digests),)))
    assert all(f"SHA-256 {digest}" in found for digest in digests.values())
    assert "keeps no digest of the data" in found


def test_bad_input_is_one_line_and_writes_nothing(run, tmp_path, monkeypatch):
    with refused("empty", "runs"):
        render_pdf(Evidence(()))
    with refused("runs-differ"):
        render_pdf(Evidence((run("a"), without_rows(run("b")))))
    with refused("folder-not-found", str(tmp_path / "nowhere")):
        write_pdf(Evidence((run("c"),)), tmp_path / "nowhere" / "r.pdf")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused("package-missing", "fpdf2", "'drfl[pdf]'"):
        write_pdf(Evidence((run("d"),)), tmp_path / "r.pdf")
    assert not list(tmp_path.rglob("*.pdf"))


@pytest.mark.parametrize(("low", "high"), [(0, 100), (0.4, 0.45), (-3e-7, 2e-7), (1e6, 9e6), (99.9, 100.1)])
def test_ticks_are_few_round_numbers_within_the_ends(low, high):
    places, digits = ticks(low, high)
    assert 2 <= len(places) <= 7
    assert low - 1e-9 * abs(low) <= places[0]
    assert places[-1] <= high + 1e-9 * abs(high)
    assert len({f"{place:.{digits}f}" for place in places}) == len(places)


def test_every_site_of_a_deployment_is_in_the_pdf(run):
    sites = [f"site-{i:02d}" for i in range(45)]
    shown = text_of(Evidence((run(clients=45, names=sites, config={"sites": sites}),)))
    assert "the 30 worst" not in shown
    assert all(site in shown for site in sites)
    simulated = text_of(Evidence((run("simulated", clients=45, names=sites),)))
    assert "he 30 worst of 45 clients" in simulated
