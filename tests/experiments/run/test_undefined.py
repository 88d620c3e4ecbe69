"""Test clients of one class, at which the AUC is undefined: reports name the number of excluded clients."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import warnings

import numpy as np
import pytest
import torch
from tests.support.pdf_text import texts
from tests.support.refusals import refused
from tests.support.report_page import rendered

import drfl
from drfl.cli.app import call
from drfl.data.row_scores import RowScores
from drfl.experiments.assess.assess_runs import assess_run
from drfl.report import load_run, test_rows
from drfl.report.run_gains import compare_over_seeds, no_assessment, pair_runs
from drfl.task.measure import undefined_note, undefined_share
from drfl.training.history import undefined_names, undefined_notices

SITES, ALONE = 6, ("site-1", "site-4")
NOTE, SHARE = undefined_note([2], [SITES]), undefined_share([2], [SITES])


def write_table(path, one_class=ALONE):
    """Write six sites of 30 rows; the named ones have one class, the first of them the other class."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "a", "b", "ill"])
        for k in range(SITES):
            name = f"site-{k}"
            x = rng.normal(size=(30, 2)).round(3)
            ill = (
                np.full(30, name != one_class[0]).astype(int)
                if name in one_class
                else (x[:, 0] + rng.normal(size=30) > 0).astype(int)
            )
            writer.writerows([name, *row, y] for row, y in zip(x.tolist(), ill.tolist(), strict=True))
    return path


def job(path, *options):
    return ["--data", str(path), "--target", "ill", "--group", "site", "--rounds", "3", "--param", "lr=0.1", *options]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("data") / "sites.csv")


@pytest.fixture(scope="module")
def single(table, tmp_path_factory):
    """Return the folder of a run by AUC, and the command's output."""
    out = tmp_path_factory.mktemp("single") / "run"
    assert call(["run", *job(table, "--score", "auc", "--metric", "accuracy", "--out", str(out))]) == 0
    return out


@pytest.fixture(scope="module")
def comparison(table, tmp_path_factory):
    out = tmp_path_factory.mktemp("several") / "comparison"
    options = ["--score", "auc", "--metric", "accuracy", "--metric", "f1", "--algorithms", "FedAvg,DualDRDM"]
    assert call(["compare", *job(table, *options, "--seeds", "2", "--out", str(out))]) == 0
    return out


def printed(capsys, *arguments):
    """Return the output of a successful command on both streams."""
    capsys.readouterr()
    assert call([*map(str, arguments)]) == 0
    return capsys.readouterr()


@pytest.mark.parametrize(
    ("undefined", "clients", "share"),
    [
        ([0], [6], ""),
        ([0, 0], [6, 6], ""),
        ([2], [45], "2 of 45"),
        ([2, 2], [45], "2 of 45"),
        ([0, 3], [45, 45], "0 to 3 of 45"),
        ([1, 3], [6, 7], "1 to 3 of 6 to 7"),
        ([1200], [20000], "1,200 of 20,000"),
        ([], [], ""),
    ],
)
def test_share_of_several_models_is_a_range(undefined, clients, share):
    assert undefined_share(undefined, clients) == share
    assert (share in undefined_note(undefined, clients)) == (undefined_note(undefined, clients) != "" or share == "")


def test_each_warning_names_some_clients_and_counts_the_rest():
    nan = float("nan")
    score = torch.tensor([nan] * 5 + [0.5], dtype=torch.float64)
    evaluation = drfl.Evaluation(score, score, torch.full((6,), 9), others=(torch.ones(6), score.flip(0)))
    measures = tuple(drfl.metrics.METRICS[name] for name in ("auc", "accuracy", "f1"))
    names = [f"hospital {k}" for k in range(6)]
    found = undefined_names(evaluation, measures, names)
    assert {name: len(clients) for name, clients in found.items()} == {"auc": 5, "f1": 5}
    notices = undefined_notices(measures, [found], 6)
    assert [(notice.code, notice.field) for notice in notices] == [
        ("undefined-metric", "auc"),
        ("undefined-metric", "f1"),
    ]
    assert [name for name in names if name in notices[0]] == names[:3]
    assert "2 more" in notices[0]
    assert undefined_share([5], [6]) in notices[0]
    assert undefined_notices(measures, [{}, {"auc": ("hospital 0",)}], 6)[0].count("hospital") == 1


def test_run_shows_the_number_of_undefined_clients(table, tmp_path, capsys):
    shown = printed(capsys, "run", *job(table, "--score", "auc", "--out", tmp_path / "run"))
    iterate = re.compile(r"\b(average|earlier|initial|last)\b.*\d\.\d{3}")
    rows = [line for line in shown.out.splitlines() if iterate.search(line)]
    assert len(rows) == 2
    assert all(SHARE in row for row in rows), rows
    (interval,) = (line for line in shown.out.splitlines() if "95 %" in line)
    assert NOTE.strip() in interval
    rounds = [line for line in shown.err.splitlines() if ": round " in line]
    assert rounds
    assert all(NOTE.strip() in line for line in rounds)
    (warning,) = (line for line in shown.err.splitlines() if line.startswith("AUC is undefined"))
    assert all(name in warning for name in ALONE)


@pytest.mark.long
def test_run_with_every_score_does_not_mention_missing_ones(table, tmp_path, capsys):
    shown = printed(capsys, "run", *job(table, "--out", tmp_path / "run"))
    assert "undefined" not in shown.out + shown.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["undefined"] == {}


@pytest.mark.long
def test_files_of_a_run_contain_the_number(single):
    summary = json.loads((single / "summary.json").read_text())
    assert summary["undefined"] == {"auc": 2}
    assert len([line for line in summary["warnings"] if line.startswith("AUC is undefined")]) == 1
    clients = {row["client"]: row["auc"] for row in csv.DictReader((single / "clients.csv").read_text().splitlines())}
    assert {name for name, value in clients.items() if value == "nan"} == set(ALONE)
    record = load_run(single)
    assert [record.undefined(measure) for measure in record.measures] == [2, 0]


@pytest.mark.long
def test_dash_is_shown_if_no_client_has_a_value(tmp_path, capsys):
    path = write_table(tmp_path / "sites.csv", [f"site-{k}" for k in range(SITES)])
    shown = printed(capsys, "run", *job(path, "--score", "auc", "--out", tmp_path / "run"))
    assert "nan" not in shown.out + shown.err
    assert f"–{undefined_note([SITES], [SITES])}" in shown.err
    assert undefined_share([SITES], [SITES]) in shown.out
    found = printed(capsys, "assess", tmp_path / "run").out
    assert "nan" not in found
    assert no_assessment(assess_run(tmp_path / "run")).code == "undefined-metric"
    with refused("undefined-metric", "auc"):
        drfl.assess(tmp_path / "run")
    assert "nan" not in printed(capsys, "report", tmp_path / "run", "--pdf", tmp_path / "run.pdf").out
    assert not re.search(r"\bnan\b", "\n".join(texts((tmp_path / "run.pdf").read_bytes())))


@pytest.mark.long
def test_comparison_shows_the_number(comparison, table, tmp_path, capsys):
    options = [
        "--score",
        "auc",
        "--metric",
        "f1",
        "--algorithms",
        "FedAvg,DRFA",
        "--seeds",
        "1",
        "--out",
        tmp_path / "c",
    ]
    shown = printed(capsys, "compare", *job(table, *options))
    rows = [line for line in shown.out.splitlines() if re.match(r" (FedAvg|DRFA) .*\d\.\d\d–", line)]
    assert len(rows) == 2
    assert all(SHARE in row for row in rows)
    assert len([line for line in shown.err.splitlines() if line.startswith("AUC is undefined")]) == 1
    (verdict,) = (line for line in shown.out.splitlines() if "scores best at the worst client" in line)
    assert NOTE.strip() in verdict
    frame = list(csv.DictReader((comparison / "compare.csv").read_text().splitlines()))
    assert {(row["undefined_auc"], row["undefined_accuracy"]) for row in frame} == {("2", "0")}
    summary = json.loads((comparison / "summary.json").read_text())
    assert summary["algorithms"]["FedAvg"]["undefined"]["auc"] == [2, 2]
    assert (comparison / "table.md").read_text().count(SHARE) == 2


def test_no_algorithm_is_best_by_an_undefined_value():
    from drfl.experiments.compare.outcomes import Spread, best_algorithms

    measures = (drfl.metrics.METRICS["auc"],)
    spreads = {name: {"worst_auc": Spread(value, 0.0)} for name, value in (("A", math.nan), ("B", 0.4), ("C", 0.5))}
    assert best_algorithms(spreads, "worst_auc", measures) == {"C"}
    assert best_algorithms({"A": spreads["A"]}, "worst_auc", measures) == set()
    assert "nan" not in spreads["A"]["worst_auc"].text(".3f", ".3f")


@pytest.mark.long
def test_assessment_shows_the_number(single, comparison, capsys):
    shown = printed(capsys, "assess", single).out
    assert [line for line in shown.splitlines() if NOTE.strip() in line]
    found = json.loads(printed(capsys, "assess", single, "--json").out)["runs"][0]
    assert found["undefined"] == list(ALONE)
    assert NOTE.strip() in repr(drfl.assess(single))
    rows = [line for line in printed(capsys, "assess", comparison).out.splitlines() if "-seed" in line and "│" in line]
    assert len(rows) == 4
    assert all(SHARE in row for row in rows)
    (seeds,) = compare_over_seeds([assess_run(path) for path in sorted(comparison.glob("*-seed*"))])
    assert seeds.undefined == SHARE


@pytest.mark.long
def test_report_shows_the_number(single, comparison, tmp_path):
    page = rendered([load_run(single)])
    for title in ("Worst client", "Average over clients", "Std over clients"):
        card = page[page.index(f">{title}<") :][:600]
        assert NOTE.strip() in card, title
    page = rendered([load_run(path) for path in sorted(comparison.glob("*-seed*"))])
    assert len(re.findall(rf">\s*{SHARE}\s*<", page)) >= 2 + 4  # one per algorithm, and one per run
    assert NOTE.strip() in page
    for folder in (single, comparison):
        assert call(["report", str(folder), "--pdf", str(tmp_path / f"{folder.name}.pdf")]) == 0
        pages = " ".join(texts((tmp_path / f"{folder.name}.pdf").read_bytes())).replace("\n", " ")
        assert NOTE.strip() in pages


@pytest.mark.long
def test_requested_measure_is_named(single, comparison):
    found = assess_run(comparison / "FedAvg-seed0", "f1")
    why = no_assessment(found)
    assert (why.code, why.field) == ("unsupported-metric", "f1")
    assert "F1" in why
    assert "AUC" not in why
    with refused("unsupported-metric", "f1"):
        drfl.assess(comparison / "FedAvg-seed0", measure="f1")
    with refused("unsupported-metric", "f1"):
        drfl.assess_gain(comparison / "FedAvg-seed0", comparison / "DualDRDM-seed0", measure="f1")


def test_reason_for_unpaired_runs_is_correct(comparison, capsys):
    folders = [comparison / "FedAvg-seed0", comparison / "DualDRDM-seed0"]
    same, other = [assess_run(path, "f1") for path in folders], assess_run(comparison / "DualDRDM-seed1")
    pairs, (reason,) = pair_runs(same)
    assert not pairs
    assert "different test rows" not in reason
    assert "F1" in reason
    assert reason in printed(capsys, "assess", *folders, "--measure", "f1").out
    assert json.loads(printed(capsys, "assess", *folders, "--measure", "f1", "--json").out)["unpaired"] == [reason]
    by_rows = [assess_run(path, "accuracy") for path in folders]
    assert [len(part) for part in pair_runs(by_rows)] == [1, 0]
    assert [len(part) for part in pair_runs([by_rows[0], other])] == [0, 1]
    with refused("runs-differ"):
        drfl.assess_gain(folders[0], comparison / "DualDRDM-seed1", measure="accuracy")
    # Runs of one algorithm are not compared over seeds, nor on different data; only the latter needs a reason.
    first = assess_run(folders[0], "accuracy")
    assert pair_runs([first, assess_run(comparison / "FedAvg-seed1", "accuracy")]) == ([], [])
    elsewhere = dataclasses.replace(first.record, summary={**first.record.summary, "dataset": "elsewhere"})
    assert [len(part) for part in pair_runs([first, first._replace(record=elsewhere)])] == [0, 1]
    assert first.rows is not None
    rows = first.rows._replace(rows=first.rows.rows + 1)
    assert [len(part) for part in pair_runs([first, first._replace(rows=rows)])] == [0, 1]
    without = by_rows[1]._replace(rows=None)
    assert without.record.label in pair_runs([by_rows[0], without])[1][0]
    assert [len(part) for part in pair_runs([by_rows[0], same[1]])] == [0, 1]  # one by accuracy, one by F1
    assert pair_runs(by_rows[:1]) == ([], [])


def test_gain_uses_clients_with_a_value_in_both_models():
    measure, names = drfl.metrics.METRICS["brier"], ("a", "b", "c")
    first = np.array([[50.0, 20, 10], [50, 10, 4], [50, np.nan, np.nan]])
    second = np.array([[50.0, 10, 4], [50, 10, 4], [50, 5, 1]])
    products = np.array([6.0, 4, np.nan])
    from drfl.assessment.gains import assess_gain

    found = assess_gain(measure, names, first, second, products)
    known = assess_gain(measure, names[:2], first[:2], second[:2], products[:2])
    assert found.undefined == ["c"]
    assert found.worst == known.worst
    assert found.low[:2].tolist() == known.low.tolist()
    assert math.isnan(found.values[2])
    assert undefined_note([1], [3]).strip() in repr(found)
    assert "undefined" not in repr(known)
    with refused("undefined-metric", "brier"):
        assess_gain(measure, names[2:], first[2:], second[2:], products[2:])


def test_row_without_a_value_prevents_pairing_by_accuracy(comparison, tmp_path):
    run = assess_run(comparison / "FedAvg-seed0", "accuracy")
    scores = {name: values for name, values in run.rows.scores.items() if name != "accuracy"}
    lacking = run._replace(rows=RowScores(run.rows.starts, run.rows.rows, scores, run.rows.data))
    lacking = lacking._replace(record=dataclasses.replace(run.record, summary={**run.record.summary, "algorithm": "X"}))
    (tmp_path / "rows.safetensors").write_bytes(test_rows.content(lacking.rows))
    assert test_rows.read(tmp_path / "rows.safetensors").same_rows(run.rows)
    assert [len(part) for part in pair_runs([run, lacking])] == [0, 1]
    assert "undefined" in pair_runs([run, lacking])[1][0]


def federation(**options):
    """Return a simulation of three clients, of which the last one has one class."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    x = [torch.randn(40, 3, generator=generator) for _ in range(3)]
    sites = {f"site {k}": (own, (own[:, 0] > 0).long() if k < 2 else torch.ones(40).long()) for k, own in enumerate(x)}
    data = drfl.ClientData.from_arrays(sites)
    data = data.with_validation(0.25) if options.get("validation") else data
    return drfl.Simulation(data, drfl.Task(torch.nn.Linear(3, 2), score="auc"))


def test_undefined_metrics_from_python():
    fed, algorithm = federation(), drfl.FedAvg(m=3, local=drfl.LocalSGD(lr=0.1, steps=1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = drfl.run(algorithm, fed, rounds=2)
    (own,) = (w.message for w in caught if getattr(w.message, "code", "") == "undefined-metric")
    assert (own.field, "site 2" in str(own)) == ("auc", True)
    note = undefined_note([1], [3])
    assert all(note in repr(thing) for thing in (result, result.history))
    assert [row.undefined for row in result.history.rows] == [(1,)] * 3
    assert result.history.to_frame()["worst_auc"].notna().all()
    assert note.strip() in result.plot().axes[0].get_ylabel()
    silent = drfl.run(algorithm, fed, rounds=1, check_data=False)  # pytest turns warnings into errors, so there is none
    assert silent.history.last.undefined == (1,)


def test_counts_survive_a_checkpoint(tmp_path):
    algorithm, kept = (
        drfl.FedAvg(m=3, local=drfl.LocalSGD(lr=0.1, steps=1)),
        drfl.Checkpoints(tmp_path / "kept", every=1),
    )
    stop = [lambda step: step.round == 2]
    drfl.run(algorithm, federation(), rounds=4, checkpoints=kept, callbacks=stop, check_data=False)
    resumed = drfl.run(algorithm, federation(), rounds=4, checkpoints=kept, check_data=False)
    assert [row.undefined for row in resumed.history.rows] == [(1,)] * 5


@pytest.mark.long
def test_model_selection_names_excluded_clients(tmp_path, table, capsys):
    fed = federation(validation=True)
    result = drfl.run(drfl.FedAvg(m=3, local=drfl.LocalSGD(lr=0.1)), fed, rounds=2, select="worst", check_data=False)
    assert result.selection.undefined == (2,)
    by_loss = drfl.run(drfl.FedAvg(m=3, local=drfl.LocalSGD(lr=0.1)), fed, rounds=2, select="loss", check_data=False)
    assert by_loss.selection.undefined == ()
    options = ["--algorithm", "FedAvg", "--score", "auc", "--select", "worst", "--out", tmp_path / "run"]
    shown = printed(capsys, "run", *job(table, *options))
    assert len([line for line in shown.err.splitlines() if line.startswith("model selection excludes 2 of 6")]) == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["selection"]["undefined"] == 2


@pytest.mark.long
def test_compare_from_python_warns():
    told = []
    fed = federation()
    task = drfl.Task(torch.nn.Linear(3, 2), score="auc")
    algorithms = {name: drfl.FedAvg(m=3, local=drfl.LocalSGD(lr=0.1)) for name in ("one", "two")}
    found = drfl.compare(algorithms, fed.data, task, rounds=1, seeds=2, progress=told.append)
    assert len([line for line in told if getattr(line, "code", "") == "undefined-metric"]) == 1
    assert len([line for line in told if undefined_note([1], [3]) in line]) == 4
    assert found.to_frame()["undefined_auc"].tolist() == [1] * 4
    assert found.differences()["undefined"].tolist() == [undefined_share([1], [3])]
    assert found.differences(column="avg_loss")["undefined"].tolist() == [""]
    assert undefined_share([1], [3]) in found._repr_html_()
    assert undefined_note([1], [3]).strip() in found.plot().axes[0].get_ylabel()


@pytest.mark.long
def test_undefined_metric_besides_the_score_has_its_own_column(tmp_path, capsys):
    """R² of one row is undefined, but the score, RMSE, is defined."""
    rng = np.random.default_rng(0)
    rows = [[f"site-{k}", *rng.normal(size=2).round(3)] for k in range(4) for _ in range(30 if k else 3)]
    path = tmp_path / "numbers.csv"
    path.write_text("site,a,y\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    options = ["--task", "regression", "--metric", "r2", "--algorithms", "FedAvg,DRFA", "--seeds", "1", "--rounds", "2"]
    data = ["--data", path, "--target", "y", "--group", "site", "--out", tmp_path / "c"]
    shown = printed(capsys, "compare", *data, *options)
    tables = [line for line in shown.out.splitlines() if re.match(r" (FedAvg|DRFA) ", line)]
    share = undefined_share([1], [4])
    assert [share in line for line in tables] == [False, False, True, True]
    (warning,) = (line for line in shown.err.splitlines() if "undefined" in line)
    assert "site-0" in warning
    summary = json.loads((tmp_path / "c" / "FedAvg-seed0" / "summary.json").read_text())
    assert summary["undefined"] == {"r2": 1}
    assert not any("undefined" in line for line in shown.err.splitlines() if "round" in line)


@pytest.mark.long
def test_tuning_shows_the_number_of_clients_of_the_best_trial():
    torch.manual_seed(0)
    data, task = federation().data, drfl.Task(torch.nn.Linear(3, 2), score="auc")

    def space(trial):
        return drfl.FedAvg(m=3, local=drfl.LocalSGD(steps=1, lr=trial.suggest_float("lr", 0.01, 1)))

    told = []
    found = drfl.tune(space, data, task, rounds=1, trials=2, seeds=2, progress=told.append)
    assert (found.best_trial.undefined, found.best_trial.clients) == ((1, 1), (3, 3))
    assert undefined_note([1], [3]) in repr(found)
    assert all(undefined_note([1], [3]) in line for line in told)
    by_loss = drfl.tune(space, data, task, rounds=1, trials=1, seeds=1, criterion="loss", progress=None)
    assert "undefined" not in repr(by_loss)


def test_deployment_shows_the_number(single, capsys):
    from drfl.flower.deploy.runs import print_result

    print_result(single / "summary.json")
    text = capsys.readouterr().out
    assert SHARE in text
    assert "nan" not in text


@pytest.mark.long
def test_energy_accepts_only_runs_by_accuracy(single, table, tmp_path, capsys):
    from drfl_papers.energy import from_runs

    with refused("unsupported-metric", str(single)):
        from_runs([single], 0.5)
    out = tmp_path / "run"
    assert call(["run", *job(table, "--out", str(out))]) == 0
    assert from_runs([out], 0.1)[1] == []
    text = (out / "clients.csv").read_text().splitlines()
    columns = text[0].split(",")
    cells = text[1].split(",")
    cells[columns.index("accuracy")] = "nan"
    (out / "clients.csv").write_text("\n".join([text[0], ",".join(cells), *text[2:]]) + "\n")
    (note,) = from_runs([out], 0.1)[1]
    assert undefined_note([1], [SITES]) in note
