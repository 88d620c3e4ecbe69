"""Test that every worst client comes with its uncertainty, in cards, sentences, tables and the figure."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
from tests.support.refusals import refused
from tests.support.report_page import EVIL, Page, rendered

from drfl.assessment.clients import assess_clients
from drfl.assessment.scores import BinaryScores
from drfl.core.run_end import DAGGER, DOUBLE_DAGGER, ON_TEST, RESET
from drfl.report.assessed import assessment_of, missing_reason, worst_interval
from drfl.report.client_tables import FEWEST, MOST, by_client_tables, client_table
from drfl.report.compared import rank_algorithms
from drfl.report.content import Card
from drfl.report.evidence import gather_evidence
from drfl.report.forest import PART, describe_forest, draw_forests, legend
from drfl.report.formatting import THIN, count
from drfl.report.groups import group_runs, runs_at_one_seed, which_seed
from drfl.report.read_run import FailedRun
from drfl.report.run_gains import assess_record
from drfl.report.summary_text import cards, notices, takeaway
from drfl.report.tables import runs_table, summary_table
from drfl.task.measure import NOTHING, Measure, Rows

from .test_figures import Drawn

NAMES = ["North", "South", "East"]


@pytest.fixture
def named(record):
    """Return a function that makes runs of two algorithms at some seeds, on three named clients."""

    def made(seeds, **changes):
        cells = [(a, s) for a in ("FedAvg", "DRFA") for s in range(seeds)]
        return group_runs([record(f"{a}-{s}", a, s, clients=3, rounds=1, names=NAMES, **changes) for a, s in cells])

    return made


def told_of(run):
    """Return the statements on a run by its score."""
    return assess_record(run).assessment


def of(groups):
    """Return the assessments of the runs of some groups."""
    return gather_evidence([run for group in groups for run in group.runs])


def by_client(groups):
    """Return the tables of clients against algorithms."""
    return by_client_tables(of(groups))


def of_one(run):
    """Return the table of all clients of a run."""
    return client_table(gather_evidence([run]).runs[0])


def shown(run, i):
    """Return client i's interval, computed from its counts."""
    n, right = (run.clients[name].to_numpy(float) for name in ("samples", "accuracy_count"))
    scores, each = BinaryScores(n, right), 0.05 / (2 * len(n))
    return f"{100 * scores.lower(each)[i]:.1f} – {100 * scores.upper(each)[i]:.1f}"


def test_cell_has_the_value_and_interval_of_its_run(named):
    groups = named(1)
    (table,) = by_client(groups)
    assert table.head == ["Client", "Test samples", "FedAvg", f"95{THIN}%", "DRFA", f"95{THIN}%"]
    run = groups[1].runs[0]
    for i, row in enumerate(table.rows):
        assert row[:2] == [NAMES[i], f"{run.clients['samples'][i]:.0f}"]
        assert row[4] == f"{100 * run.clients['score'][i]:.1f}"
        found = assessment_of(run)
        assert row[5] == ("* " if found.candidates[i] else "") + shown(run, i)
    assert "*: could be the worst client" in table.caption
    assert "mean ±" not in table.caption


def test_several_seeds_show_the_mean_and_one_interval(named):
    groups = named(2)
    (table,) = by_client(groups)
    assert table.head[2:4] == ["FedAvg", f"95{THIN}%, seed 0"]
    south = [100 * run.clients["score"][1] for run in groups[1].runs]
    assert table.rows[1][4] == f"{np.mean(south):.1f} ± {np.std(south, ddof=1):.1f}"
    assert table.rows[1][5].removeprefix("* ") == shown(groups[1].runs[0], 1)
    sizes = sorted(run.clients["samples"][1] for run in groups[0].runs)
    assert table.rows[1][1] == f"{sizes[0]:.0f} to {sizes[1]:.0f}"


def test_numbered_clients_differ_between_seeds(record):
    """Their table shows one seed without a mean over seeds, and is omitted if the clients cannot be matched."""
    cells = [(a, s) for a in ("FedAvg", "DRFA") for s in (3, 1)]
    names = ["client-0", "client-1"]
    groups = group_runs([record(f"{a}-{s}", a, s, clients=2, names=names) for a, s in cells])
    (table,) = by_client(groups)
    assert "seed 1" in table.caption
    assert table.rows[0][2] == f"{100 * groups[0].runs[0].clients['score'][0]:.1f}"
    other = [record(f"other-{s}", seed=s, clients=2, names=[f"{s}a", "b"]) for s in range(2)]
    apart = [record("p", "FedAvg", 0, clients=2, names=names), record("q", "DRFA", 1, clients=2, names=names)]
    for runs in (other, apart, apart[:1]):
        assert by_client(group_runs(runs)) == []


@pytest.mark.long
def test_table_of_many_clients_has_the_worst_of_any_algorithm(record):
    runs = [record(name, name, clients=40, rounds=1) for name in ("FedAvg", "DRFA")]
    for run, worst in zip(runs, (7, 31), strict=True):
        run.clients.loc[worst, ["score", "accuracy_count"]] = [0.0, 0]
    (table,) = by_client(group_runs(runs))
    names = runs[0].clients["client"].tolist()
    assert {row[0] for row in table.rows[:2]} == {names[7], names[31]}
    assert len(table.rows) == MOST
    assert "30 of 40 clients" in table.caption
    many = [record(f"A{k}", f"A{k}", clients=40, rounds=1) for k in range(14)]
    assert len(by_client(group_runs(many))[0].rows) == FEWEST


def test_table_of_one_run(record):
    run = record("a", "DRFA")
    worse = np.round(0.5 * run.clients["samples"][3])
    run.clients.loc[3, ["score", "accuracy_count"]] = [worse / run.clients["samples"][3], worse]
    found, table = told_of(run), of_one(run)
    assert table.head[1:4] == ["Accuracy (%)", f"95{THIN}%", "Could be the worst"]
    assert [row[2] for row in table.rows] == [shown(run, i) for i in found.order]
    assert [row[3] == "yes" for row in table.rows] == found.candidates[found.order].tolist()
    assert [row[3] for row in table.rows] == ["yes"] + [""] * 5


def test_tables_show_patients_beside_rows(record):
    runs = [record(name, name, clients=3) for name in ("FedAvg", "DRFA")]
    assert "Test patients" not in of_one(runs[0]).head
    for run in runs:
        run.clients["patients"], run.clients["train_patients"], run.clients["largest_patient"] = [7, 8, 9], [4, 5, 6], 3
    table = of_one(runs[0])
    place = table.head.index("Test samples")
    assert table.head[place : place + 4] == ["Test samples", "Test patients", "Training samples", "Training patients"]
    counts = runs[0].clients.set_index("client")[["samples", "patients", "train_samples", "train_patients"]]
    for row in table.rows:
        assert row[place : place + 4] == [count(x) for x in counts.loc[row[0]]]
    (table,) = by_client(group_runs(runs))
    assert table.head[:3] == ["Client", "Test samples", "Test patients"]
    assert [row[2] for row in table.rows] == ["7", "8", "9"]
    del runs[1].clients["patients"]
    assert "Test patients" not in by_client(group_runs(runs))[0].head
    assert "Training patients" in Page(rendered(runs[:1])).text


def test_client_without_a_value_is_marked(record):
    run = record("a", clients=3)
    run.clients.loc[1, ["score", "samples", "accuracy_count"]] = [np.nan, 0, 0]
    assert of_one(run).rows[-1][1:4] == ["–", "–", "unknown"]
    page = Page(rendered([run]))
    assert "no value" not in page.text
    assert not re.search(r"\bnan\b|NaN", " ".join(page.words))


WHOLE = {"name": "accuracy", "more_is_better": True, "percent": True, "rows": "whole"}


@pytest.mark.parametrize("lacks", ["measure", "sums"])
def test_files_without_row_information(record, lacks):
    summary = {"measures": [WHOLE]} if lacks == "measure" else {}
    runs = [record(name, name, summary=summary) for name in ("FedAvg", "DRFA")]
    for run in runs if lacks == "sums" else ():
        del run.clients["accuracy_count"]
    assert told_of(runs[0]) is None
    assert missing_reason(runs[0]).code == ("no-results" if lacks == "sums" else "unsupported-metric")
    for text in (rendered(runs), rendered(runs[:1])):
        page = Page(text)
        assert missing_reason(runs[0]) in page.text
        assert "no interval is known" in page.text
        assert not any("intervals" in alt for alt in page.figures)
    assert of_one(runs[0]).head[:3] == ["Client", "Accuracy (%)", "Loss"]


@pytest.mark.parametrize(
    ("column", "value"), [("accuracy_count", 1000), ("accuracy_count", -1), ("samples", 20.5), ("samples", 2.0**31)]
)
def test_impossible_counts_are_one_line_errors(record, column, value):
    run = record("a")
    run.clients[column] = run.clients[column].astype(float)
    run.clients.loc[2, column] = value
    with refused("damaged-run", "a/clients.csv"):
        rendered([run])


def of_measure(record, rows, sums, name="a", **kinds):
    """Return a run with another measure, whose clients.csv has these columns."""
    measure = Measure("brier", rows=rows, **kinds)
    run = record(name, clients=3, rounds=1)
    frame = run.clients.assign(**{f"brier_{name}": values for name, values in sums.items()}, samples=[10.0, 10.0, 1.0])
    values = pd.Series(sums[next(iter(sums))]) / frame["samples"]
    run.summary["final"] = {"worst_brier": 0.3}
    return dataclasses.replace(run, clients=frame.assign(score=values), measures=(measure,))


def test_numeric_measures_have_intervals_that_fit_the_figure(record):
    sums = {"sum": [3.0, 1.0, 0.2], "squares": [1.5, 0.5, 0.04]}
    unit, real = (of_measure(record, rows, sums, rows, more_is_better=False) for rows in (Rows.UNIT, Rows.REAL))
    assert worst_interval(unit) == (told_of(unit).worst.low, told_of(unit).worst.high)
    table = of_one(real)
    assert [row[0] for row in table.rows] == ["c000", "c002", "c001"]  # smaller is better
    assert table.rows[1][2] == "−∞ – ∞"
    assert "Arrow" in legend(told_of(real))
    drawn = Drawn(draw_forests(told_of(real), 3)[0])
    assert all(np.isfinite([drawn.x(0), drawn.x(1000)]))
    Page(rendered([real]))
    worse = of_measure(record, Rows.UNIT, {"sum": [3.0, 1.0, 0.2], "squares": [3.5, 0.5, 0.04]}, "worse")
    with refused("damaged-run", "worse/clients.csv"):
        told_of(worse)


def test_ranks_of_clients(record):
    squares = [84.0, 125.0, 0.0]
    sums = {"positive": [5.0, 5.0, 1.0], "pairs": [20.0, 25.0, 0.0]}
    sums |= {"positive_squares": squares, "negative_squares": squares}
    run = of_measure(record, Rows.RANKS, sums)
    run.clients["score"] = [0.8, 1.0, np.nan]
    found = told_of(run)
    assert found.values[:2].tolist() == [0.8, 1.0]
    assert np.isnan(found.values[2])
    assert found.method.startswith("DeLong")
    free = assessment_of(run, auc_interval="distribution-free")
    assert free.low[0] < found.low[0]
    assert free.method != found.method
    del run.clients["brier_negative_squares"]
    assert told_of(run) is None


def test_rates_of_clients(record):
    sums = {"rows": [8.0, 5.0, 0.0], "count": [6.0, 5.0, 0.0]}
    run = of_measure(record, Rows.RATE, sums)
    run.clients["score"] = [0.75, 1.0, np.nan]
    found = told_of(run)
    assert found.samples.tolist() == [8, 5, 0]  # only the test rows that count
    assert found.high[0] == pytest.approx(BinaryScores(np.array([8.0]), np.array([6.0])).upper(0.025 / 2)[0])
    assert np.isnan(found.low[2])
    run.clients.loc[0, "brier_rows"] = 11.0
    with refused("damaged-run", "a/clients.csv"):
        told_of(run)


def test_clients_with_shared_test_rows_are_not_independent(record):
    run = record("a")
    apart = told_of(run)
    run.summary["shared_test_rows"] = True
    shared = told_of(run)
    assert (shared.p_worst >= apart.p_worst).all()
    assert shared.independent is False


def texts(found: list[Card]):
    return {card.title: card.note for card in found}


def test_cards_show_the_interval_of_the_worst_client(record, named):
    run = record("a", "DRFA")
    run.clients.loc[0, ["score", "accuracy_count"]] = [0.1, round(0.1 * run.clients["samples"][0])]
    run.clients.loc[0, "score"] = run.clients["accuracy_count"][0] / run.clients["samples"][0]
    (group,) = group_runs([run])
    note = texts(cards([group], None))["Worst client"]
    ends = run.score.interval(*worst_interval(run))
    assert note == f"c000; true value of the worst client, whichever it is: {ends}{THIN}% (95{THIN}% confidence)"
    groups = named(2)
    note = texts(cards(groups, rank_algorithms(groups)))["Worst client, best measured"]
    ends = run.score.interval(*worst_interval(groups[1].runs[0], alpha=0.05 / 2))
    assert note.startswith("DRFA; true value")
    assert f": {ends}{THIN}% (95{THIN}% confidence, corrected for choosing the best of 2, seed 0)" in note


def test_references_and_failed_runs_are_never_best(named, record):
    pooled = [record(f"p-{s}", "Pooled", s, worst=0.99) for s in range(2)]
    runs = [run for group in named(2) for run in group.runs]
    groups = group_runs([*runs, *pooled], [FailedRun("DRFA", "7", "diverged")])
    found = {card.title: card.note for card in cards(groups, rank_algorithms(groups))}
    assert found["Worst client, best measured"].startswith("FedAvg")
    bold = [row[0].text for row in summary_table(groups).rows if any(getattr(c, "strong", False) for c in row[1:])]
    assert bold == ["FedAvg"]
    failed = summary_table(groups).rows[-1]
    assert failed[0].text == "DRFA (1 of 3 runs failed)"
    assert (failed[1].text, failed[-1]) == (NOTHING, "2 of 3")
    assert any(line.startswith("DRFA (1 of 3 runs failed): diverged (seed 7).") for line in notices(groups))


def test_runs_stopped_by_test_rows_are_marked_and_not_compared(record):
    """One of three algorithms was stopped by test rows at one of five seeds."""
    stopped = {"stopped": "target", "stopped_on": "test"}
    runs = [
        record(f"{name}-{seed}", name, seed, summary=stopped if (name, seed) == ("DRFA", 2) else {})
        for name in ("FedAvg", "DRFA", "DualDRDM")
        for seed in range(5)
    ]
    groups = group_runs(runs)
    assert rank_algorithms(groups) is None
    assert rank_algorithms([groups[0], groups[2]]) is not None
    table = summary_table(groups)
    assert [str(row[0].text) for row in table.rows] == ["FedAvg", f"DRFA {DAGGER}", "DualDRDM"]
    assert ON_TEST in table.caption
    assert [row[0] for row in runs_table(of(groups)).rows if DAGGER in row[0]] == [f"DRFA {DAGGER}"]
    assert [line for line in notices(groups) if ON_TEST in line] == [f"DRFA has no intervals (seed 2): {ON_TEST}."]
    by = next(run for run in runs if run.stopped_on_test)
    assert (told_of(by), worst_interval(by)) == (None, None)
    assert ON_TEST in texts(cards(group_runs([by]), None))["Worst client"]
    assert ON_TEST in Page(rendered([by])).text
    on_validation = record("v", summary={"stopped": "target", "stopped_on": "validation"})
    assert worst_interval(on_validation) is not None


def test_rolled_back_runs_are_marked_and_counted(record):
    """One of DRFA's three seeds was rolled back late and one early; FedAvg's runs come from an older drfl."""
    back = {0: {"rollbacks": 0, "effective_rounds": 10}}
    back[1] = {"rollbacks": 2, "effective_rounds": 2, "last_rollback": 8}
    back[2] = {"rollbacks": 1, "effective_rounds": 9}
    runs = [record(f"f{seed}", "FedAvg", seed) for seed in range(3)]
    runs += [record(f"d{seed}", "DRFA", seed, summary=counts) for seed, counts in back.items()]
    groups = group_runs(runs)
    table, each = summary_table(groups), runs_table(of(groups))
    assert [str(row[0].text) for row in table.rows] == ["FedAvg", f"DRFA {DOUBLE_DAGGER}"]
    where = f"{DOUBLE_DAGGER} {RESET}: DRFA seed 1 (2 of 10 rounds count), DRFA seed 2 (9 of 10 rounds count)"
    assert table.caption.endswith(f"; {where}")
    assert [row[3] for row in each.rows] == ["10", "10", "10", "10", "2 of 10", "9 of 10"]
    assert [row[0] for row in each.rows][3:] == ["DRFA", f"DRFA {DOUBLE_DAGGER}", f"DRFA {DOUBLE_DAGGER}"]
    # the late rollback has its own warning in the summary
    assert [line for line in notices(groups) if RESET in line] == [f"DRFA was {RESET} (seed 2): 9 of 10 rounds count."]
    assert rank_algorithms(groups) is not None
    assert where in Page(rendered(runs)).text


def test_every_worst_client_has_its_interval(named):
    groups = named(2)
    for table, runs in (
        (summary_table(groups), runs_at_one_seed(groups)),
        (runs_table(of(groups)), groups[0].runs + groups[1].runs),
    ):
        at = next(i for i, head in enumerate(table.head) if head.startswith("95"))
        assert table.head[at - 1].startswith("Worst")
        assert [row[at] for row in table.rows] == [run.score.interval(*worst_interval(run)) for run in runs]


@pytest.mark.parametrize(
    ("seeds", "noise", "start", "said"),
    [
        (
            1,
            0.0,
            "Not decided:",
            "FedAvg. 1 seed is too few for a verdict; 5 are needed. To compare two runs on the same test rows, use",
        ),
        (4, 0.001, "Not decided:", "FedAvg. 4 seeds are too few for a verdict; 5 are needed."),
        (
            5,
            0.3,
            "No significant difference:",
            "The difference from FedAvg is not significant (paired t-test over 5 seeds).",
        ),
        (5, 0.001, "DRFA", "serves the worst client best on these test rows and from this initial model: "),
    ],
)
def test_headline_states_significant_results(record, seeds, noise, start, said):
    worst = {"FedAvg": 0.7, "DRFA": 0.75}
    runs = [
        record(f"{a}-{s}", a, s, rounds=1, worst=worst[a] + noise * (a == "DRFA") * (s - (seeds - 1) / 2))
        for a in worst
        for s in range(seeds)
    ]
    groups = group_runs(runs)
    told, titles = takeaway(groups, rank_algorithms(groups)), texts(cards(groups, rank_algorithms(groups)))
    assert told is not None
    assert told.start == start
    assert said in told.text
    assert "Not decided" not in told.text  # the beginning states it already
    assert "5.0 points more than FedAvg" in told.text
    assert ("confidence interval of the worst client's gain over seeds" in told.text) == (seeds == 5)
    assert ("Best for the worst client" in titles) == (start == "DRFA")
    assert "overlap" not in told.text


def test_headline_of_a_tie_calls_the_algorithms_equal(record):
    groups = group_runs([record(f"{a}-{s}", a, s, rounds=1, worst=0.7) for a in ("FedAvg", "DRFA") for s in range(2)])
    told = takeaway(groups, rank_algorithms(groups))
    assert told is not None
    assert re.search(r"equal to (FedAvg|DRFA)\b", told.text)
    assert "points more" not in told.text


def test_headline_names_better_and_undecided_comparisons(record):
    worst = {"FedAvg": 0.7, "DRFA": 0.8, "DRDM": 0.801}
    noise = (0.003, -0.004, 0.002, -0.003, 0.004)
    cells = [(a, s, i) for i, a in enumerate(worst) for s in range(5)]
    groups = group_runs([record(f"{a}-{s}", a, s, rounds=1, worst=worst[a] + noise[(s + i) % 5]) for a, s, i in cells])
    told = takeaway(groups, rank_algorithms(groups))
    assert told is not None
    assert told.start == "DRDM"
    assert "scores best at the worst client in these runs: " in told.text
    assert told.text.endswith(
        "It is significantly better than FedAvg on these test rows and from this initial model; the difference from "
        "DRFA is not significant (paired t-test over 5 seeds, Holm correction for 3 differences). It is unknown "
        "whether this holds for other test rows: these runs store no values of single test rows."
    )


def test_runs_on_other_clients_are_not_compared(record):
    groups = group_runs([record("a", "FedAvg", worst=0.7), record("b", "DRFA", worst=0.8, clients=7)])
    told = takeaway(groups, rank_algorithms(groups))
    assert told is not None
    assert told.start == "Not decided:"
    assert told.text.endswith("There is no comparison with FedAvg: the clients are not the same at any seed.")


def test_seed_that_all_algorithms_have(named, record):
    groups = named(2)
    assert [run.seed for run in runs_at_one_seed(groups)] == ["0", "0"]
    assert which_seed(groups) == "seed 0"
    assert which_seed(group_runs([groups[0].runs[0], groups[1].runs[0]])) == ""
    late = group_runs([*groups[0].runs, groups[1].runs[1]])
    assert [run.seed for run in runs_at_one_seed(late)] == ["1", "1"]
    apart = group_runs([*groups[0].runs, record("z", "DRDM", 7)])
    assert which_seed(apart) == "first seed"


def test_figure_has_intervals_and_expected_if_equal(record):
    found = told_of(record("a", "DRFA"))
    drawn, tag = Drawn(draw_forests(found, 30)[0]), "{http://www.w3.org/2000/svg}"
    rows = [y for text, x, y in drawn.texts if text in found.names]
    assert [text for text, _, _ in drawn.texts if text in found.names] == [found.names[i] for i in found.order]
    lines = [[float(line.get(name)) for name in ("x1", "x2", "y1", "y2")] for line in drawn.root.iter(f"{tag}line")]
    squares = [node for node in drawn.root.iter(f"{tag}rect") if node.get("width") == node.get("height")]
    circles = [(float(node.get("cx")), float(node.get("cy"))) for node in drawn.root.iter(f"{tag}circle")]
    marks = [(float(node.get("x")) + 3.6, float(node.get("y")) + 3.6) for node in squares]
    for y, i in zip(rows, found.order, strict=True):
        ends = [drawn.x(x) for x1, x2, y1, y2 in lines if y1 == y2 == y - 4 for x in (x1, x2)]
        assert min(ends) == pytest.approx(100 * found.low[i], abs=0.1)
        assert max(ends) == pytest.approx(100 * found.high[i], abs=0.1)
        (place,) = [x for x, at in (marks if found.candidates[i] else circles) if at == pytest.approx(y - 4)]
        assert drawn.x(place) == pytest.approx(100 * found.values[i], abs=0.1)
        value, interval = [text for text, _, at in drawn.texts if at == y][2:]
        assert value == found.measure.shown(found.values[i])
        assert interval == found.measure.interval(found.low[i], found.high[i])
    (band,) = [node for node in drawn.root.iter(f"{tag}rect") if node.get("fill-opacity")]
    left, width = float(band.get("x")), float(band.get("width"))
    assert drawn.x(left) == pytest.approx(100 * found.equal.low, abs=0.1)
    assert drawn.x(left + width) == pytest.approx(100 * found.equal.high, abs=0.1)
    assert f"{int(found.candidates.sum())} of 6 could be the worst" in describe_forest(found, "DRFA")


def test_figure_has_the_worst_of_many_clients(record):
    found = told_of(record("a", clients=50, rounds=1))
    drawn = Drawn(draw_forests(found, 12)[0])
    assert [text for text, _, _ in drawn.texts if text in found.names] == [found.names[i] for i in found.order[:12]]


def test_very_many_sites_are_in_several_figures_of_one_scale(record):
    found = told_of(record("a", clients=PART + 5, rounds=1))
    drawn = [Drawn(one) for one in draw_forests(found, PART + 5)]
    assert [sum(text in found.names for text, _, _ in one.texts) for one in drawn] == [PART, 5]
    assert drawn[0].x(500) == pytest.approx(drawn[1].x(500))


def test_hostile_names_in_the_figure_are_escaped(record):
    run = record("a", EVIL, names=[EVIL, "%{x}", "&lt;b&gt;"], clients=3, summary={"seed": EVIL})
    evidence = gather_evidence([run])
    words = [text for text, _, _ in Drawn(draw_forests(evidence.runs[0].named_assessment, 3)[0]).texts]
    assert any(EVIL.startswith(word.removesuffix("…")) for word in words if word.startswith("</"))
    assert {"%{x}", "&lt;b&gt;"} <= set(words)


def test_sentences_on_the_clients_of_one_run(record):
    page = Page(rendered([record("a", "DRFA")]))
    assert re.search(r"\d of 6 clients could be the worst \(95 % confidence\)|Any of the 6", page.text)
    assert "if all clients were equally good, the worst measured accuracy would be" in page.text
    assert "exact test that all are equally good" in page.text


def test_confidence_level_can_be_set(record):
    run = record("a")
    found = assessment_of(run, level=0.5)
    n, right = (run.clients[name].to_numpy(float) for name in ("samples", "accuracy_count"))
    known = assess_clients(run.score, run.clients["client"].tolist(), np.stack([n, right, right], 1), n, level=0.5)
    assert found.low.tolist() == known.low.tolist()


def test_every_deployed_site_is_shown(record):
    """This holds for any number of sites and any number of rows."""
    sites = [f"site {i:02d}" for i in range(45)]
    runs = [record(f"run-{s}", seed=s, clients=45, names=sites, config={"sites": sites}) for s in range(2)]
    for run in runs:  # a site with a single, right row measures best
        run.clients.loc[7, ["samples", "score", "accuracy_count"]] = [1, 1.0, 1]
    (table,), page = by_client(group_runs(runs)), Page(rendered(runs))
    assert [row[0] for row in table.rows] == sites
    assert "45 clients, the worst first" in page.text
    simulated = record("simulated", clients=45, names=sites)
    assert "he 30 worst of 45 clients" in Page(rendered([simulated])).text
