"""Test the assessment of runs from their folders, from Python and by the command."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.refusals import check_refusal, quotes, refusal, refused

import drfl
from drfl.assessment.gains import with_row_values
from drfl.assessment.seeds import UNTRAINED
from drfl.assessment.sentences import sentences
from drfl.cli.app import call
from drfl.core.run_end import INITIAL
from drfl.data import ClientData
from drfl.experiments.assess.assess_runs import assess_run
from drfl.report.run_gains import compare_over_seeds, pair_runs
from drfl.task.measure import Measure


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Compare two algorithms at two seeds, on the hospitals."""
    out = tmp_path_factory.mktemp("runs") / "comparison"
    metrics = [word for name in ("auc", "f1", "brier", "sensitivity") for word in ("--metric", name)]
    options = ["--dataset", "heart-disease", "--rounds", "3", "--param", "lr=0.1", "--seeds", "2", *metrics]
    assert call(["compare", "--algorithms", "FedAvg,DualDRDM", *options, "--out", str(out)]) == 0
    return out


def assessed(capsys, *arguments):
    capsys.readouterr()
    assert call(["assess", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_run_has_the_interval_of_its_counts(comparison, capsys):
    found = assessed(capsys, comparison / "FedAvg-seed0")["runs"][0]
    clients = drfl.assess(comparison / "FedAvg-seed0").to_frame()
    assert [row["client"] for row in found["clients"]] == clients["client"].tolist()
    worst = clients.loc[clients["accuracy"].idxmin()]
    assert found["worst"]["client"] == worst["client"]
    assert found["worst"]["low"] < worst["accuracy"] < found["worst"]["high"]
    assert worst["client"] in found["could_be_worst"]


def test_comparison_is_refused_from_python(comparison):
    with refused("not-a-run", str(comparison), "FedAvg-seed0"):
        drfl.assess(comparison)
    with refused("wrong-type", "of", "Comparison", "differences()"):
        drfl.assess(drfl.load_comparison(comparison))


@pytest.mark.long
def test_compare_has_the_same_interval_as_assess(comparison, capsys):
    import pandas as pd

    row = pd.read_csv(comparison / "compare.csv").query("algorithm == 'DualDRDM' and seed == 1").iloc[0]
    found = assessed(capsys, comparison / "DualDRDM-seed1")["runs"][0]["worst"]
    assert (row["worst_accuracy_low"], row["worst_accuracy_high"]) == pytest.approx(
        (found["low"], found["high"]), abs=1e-6
    )


def test_algorithms_are_compared_row_by_row_and_over_seeds(comparison, capsys):
    found = assessed(capsys, comparison)
    (pair,) = found["paired"]
    assert (pair["first"], pair["second"]) == ("FedAvg-seed0", "DualDRDM-seed0")
    assert pair["worst"]["low"] <= pair["worst"]["value"] <= pair["worst"]["high"]
    direct = drfl.assess_gain(comparison / "FedAvg-seed0", comparison / "DualDRDM-seed0")
    assert pair["worst"]["low"] == pytest.approx(direct.worst.low)
    (seeds,) = found["seeds"]
    assert (seeds["n"], seeds["verdict"]) == (2, "not decided")


def test_algorithm_stopped_by_test_rows_at_one_seed_is_not_compared(comparison):
    """The other seeds are selected by their results as well."""
    runs = [assess_run(path) for path in sorted(comparison.glob("*-seed*"))]

    def at_third(run, **more):
        record = dataclasses.replace(run.record, summary={**run.record.summary, "seed": 2, **more})
        return run._replace(record=record, assessment=None if more else run.assessment)

    one, other = (run for run in runs if run.record.seed == "0")
    assert [row.gain.n for row in compare_over_seeds([*runs, at_third(one), at_third(other)])] == [3]
    stopped = at_third(one, stopped="target", stopped_on="test")
    assert compare_over_seeds([*runs, stopped, at_third(other)]) == []


@pytest.mark.parametrize("which", [0, 1])
def test_algorithm_with_an_untrained_model_is_not_compared(comparison, which):
    runs = [assess_run(path) for path in sorted(comparison.glob("*-seed0"))]
    both = [*runs, *(assess_run(path) for path in sorted(comparison.glob("*-seed1")))]
    summary = {**both[which].record.summary, "effective_rounds": 0}
    both[which] = both[which]._replace(record=dataclasses.replace(both[which].record, summary=summary))
    (seeds,) = compare_over_seeds(both)
    assert (seeds.gain.n, seeds.verdict) == (0, UNTRAINED)
    pairs, (reason,) = pair_runs(both)
    assert (pairs, INITIAL in reason, both[which].record.label in reason) == ([], True, True)


@pytest.mark.parametrize(
    ("measure", "pairs"), [pytest.param("auc", 1, marks=pytest.mark.long), ("brier", 1), ("sensitivity", 0)]
)
def test_other_measures_are_assessed(comparison, capsys, measure, pairs):
    found = assessed(capsys, comparison, "--measure", measure)
    assert {run["measure"] for run in found["runs"]} == {measure}
    assert len(found["paired"]) == pairs
    for run in found["runs"]:
        assert run["worst"]["low"] <= run["worst"]["value"] <= run["worst"]["high"]


def test_measure_of_all_rows_names_an_alternative(comparison, capsys):
    found = assessed(capsys, comparison / "FedAvg-seed0", "--measure", "f1")["runs"][0]
    assert found["assessment"] is None
    assert "accuracy" in found["reason"]
    with refused("unsupported-metric", "f1"):
        drfl.assess(comparison / "FedAvg-seed0", measure="f1")


def test_tables_and_sentences_are_printed(comparison, capsys):
    assert call(["assess", str(comparison / "FedAvg-seed0")]) == 0
    text = capsys.readouterr().out
    assert "could be the worst" in text
    assert "new client that is exchangeable" in text
    assert call(["assess", str(comparison)]) == 0
    text = capsys.readouterr().out
    assert "row by row" in text
    assert "five seeds" in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], ("not-a-run", "nowhere")),
        (["RUN", "--level", "1.5"], ("out-of-range", "level", "1.5")),
        (["RUN", "--measure", "acuracy"], ("unknown-name", "measure", "accuracy")),
    ],
)
def test_bad_input_is_a_one_line_error(comparison, capsys, arguments, error):
    folder = str(comparison / "FedAvg-seed0")
    check_refusal(["assess", *(folder if a == "RUN" else a for a in arguments)], *error)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("name", "remedy"), [("rmse", "mae"), ("r2", "mae"), ("f1", "accuracy")])
def test_remedy_is_a_metric_of_the_same_task(name, remedy):
    assert quotes(with_row_values(Measure(name)), remedy)


def test_single_client_is_described_in_the_singular():
    rows = torch.tensor([[[50.0, 40.0, 40.0]]])
    found = drfl.assess(drfl.Evaluation(torch.tensor([0.8]), torch.tensor([0.5]), torch.tensor([50]), sums=rows))
    assert repr(found).startswith("<Assessment of 1 client:")
    assert any("exchangeable with this one has a worse measured accuracy than it" in line for line in sentences(found))


def test_damaged_manifest_asks_for_another_folder_only_if_it_is_written(comparison, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(comparison / "FedAvg-seed0", "run")
    Path("run/manifest.json").write_bytes(b"")
    for command in (["assess", "run"], ["report", "run", "--out", "x.html"]):
        error = refusal(command)
        assert error.code == "damaged-file"
        assert "`out`" not in str(error)
    assert "another `out`" in str(refusal(["run", "--overwrite", "--out", "run"]))
    with refused("damaged-file", "run/manifest.json", "the folder of a run"):
        drfl.load_runs("run")


def federation():
    x, y = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 2
    rows = [torch.arange(i, 300, 3) for i in range(3)]
    data = ClientData.from_arrays([(x[r].numpy(), y[r].numpy()) for r in rows])
    return data, drfl.Simulation(data, drfl.Task(torch.nn.Linear(4, 2)))


def test_results_and_models_from_python():
    data, fed = federation()
    result = drfl.run(drfl.FedAvg(m=3), fed, rounds=2, check_data=False)
    found = drfl.assess(result, data)
    assert found.names == data.names
    assert found.values == pytest.approx(result.evaluation.score.numpy())
    gain = drfl.assess_gain(fed.w0, result, fed)
    before = fed.evaluate(fed.w0).score
    assert gain.values == pytest.approx((result.evaluation.score - before).numpy())
    assert gain.worst.low <= gain.worst.value <= gain.worst.high


def test_data_with_other_test_rows_are_refused():
    _, fed = federation()
    result = drfl.run(drfl.FedAvg(m=3), fed, rounds=1, check_data=False)
    x, y = torch.randn(300, 4), torch.arange(300) % 2
    other = ClientData.from_arrays([(x[:100], y[:100]), (x[100:150], y[100:150]), (x[150:], y[150:])])
    with refused("clients-differ", "data", "client-1"):
        drfl.assess(result, other)


def test_model_compared_with_itself_gains_nothing():
    _, fed = federation()
    gain = drfl.assess_gain(fed.w0, fed.w0, fed)
    assert (gain.values == 0).all()
    assert (gain.p_holm == 1).all()
    assert gain.worst.shown == "not significant"


def test_incomparable_runs_are_refused(comparison):
    _, fed = federation()
    with refused("missing-option", "fed"):
        drfl.assess_gain(fed.w0, fed.w0)
    with refused("wrong-type", "fed", "ClientData"):
        drfl.assess_gain(fed.w0, fed.w0, fed.data)
    with refused("wrong-type"):
        drfl.assess_gain(comparison, fed.w0, fed)
    with refused("not-a-run", str(comparison), "FedAvg-seed0"):
        drfl.assess_gain(comparison, comparison / "FedAvg-seed0")
    with refused("runs-differ"):
        drfl.assess_gain(comparison / "FedAvg-seed0", comparison / "FedAvg-seed1")


def test_wrong_arguments_from_python_are_refused():
    data, fed = federation()
    result = drfl.run(drfl.FedAvg(m=3), fed, rounds=1, check_data=False)
    other = ClientData.from_arrays([(torch.ones(9, 4), torch.arange(9) % 2)] * 2)
    for level in ("0.9", None, 1):
        with refused("out-of-range", "level", repr(level)):
            drfl.assess(result, data, level=level)
    with refused("clients-differ", "data", "2", "3"):
        drfl.assess(result, other)
    with refused("wrong-type", "data", "list"):
        drfl.assess(result, [1])
    for place in (None, data, fed):
        for wrong in ([result, result], 3):
            with refused("wrong-type", "of", type(wrong).__name__):
                drfl.assess(wrong, place)
    with refused("wrong-type", "predictions", "list"):
        drfl.assess_gain([1, 2], result, fed)
    with refused("wrong-shape", "model", "(10,)", "(3,)"):
        drfl.assess_gain(result.model[:3], result, fed)
    with refused("wrong-type", "module", "NoneType"):
        result.write_into(None)


def test_shared_test_rows_are_detected():
    x, y = np.zeros((6, 2), dtype=np.float32), np.zeros(6, dtype=np.int64)
    own = ClientData.from_arrays([(x[:3], y[:3]), (x[3:], y[3:])])
    assert not own.shares_test_rows
    together = ClientData(
        own.inputs, own.targets, own.train, own.test_inputs, own.test_targets, (own.test[0],) * 2, own.names
    )
    assert together.shares_test_rows


@pytest.mark.parametrize("count", ["1e9", "-1", "0.5"])
def test_impossible_count_is_a_one_line_error(comparison, count, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(comparison / "FedAvg-seed0", folder)
    with (folder / "clients.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    rows[1][rows[0].index("accuracy_count")] = count
    with (folder / "clients.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    check_refusal(["assess", str(folder)], "damaged-run", None, "run/clients.csv", "accuracy", "'Cleveland'")


def rows_of_clients(generator, clients=3):
    inputs = torch.randn(clients, 100, 4, generator=generator)
    return inputs, (inputs.sum(2) > 0).long()


def test_gain_of_results_is_that_of_their_personal_models():
    torch.manual_seed(0)
    data = ClientData.from_arrays([*zip(*rows_of_clients(torch.Generator().manual_seed(0)), strict=True)])
    fed = drfl.Simulation(data, drfl.Task(torch.nn.Linear(4, 2)))
    local = drfl.LocalSGD(lr=0.05, steps=3)
    shared = drfl.run(drfl.FedAvg(m=3, local=local), fed, rounds=2)
    own = drfl.run(drfl.FineTuned(m=3, local=local, fine_steps=50), fed, rounds=2)
    difference = own.evaluation.score - shared.evaluation.score
    assert difference.any()
    assert drfl.assess_gain(shared, own, fed).values.tolist() == pytest.approx(difference.tolist())


@pytest.mark.parametrize("loss", [torch.nn.CrossEntropyLoss(), torch.nn.BCEWithLogitsLoss()])
def test_users_data_may_have_test_rows_that_the_loss_ignores(loss):
    inputs, targets = rows_of_clients(torch.Generator().manual_seed(0))
    is_binary = isinstance(loss, torch.nn.BCEWithLogitsLoss)
    targets = torch.stack([targets, 1 - targets], 2).float() if is_binary else targets
    whole = ClientData.from_arrays([*zip(inputs, targets, strict=True)])
    targets = targets.clone()
    targets[:, ::7] = torch.nan if is_binary else -100
    data = ClientData.from_arrays([*zip(inputs, targets, strict=True)])
    fed = drfl.Simulation(data, drfl.Task(torch.nn.Linear(4, 2), loss))
    result = drfl.run(drfl.FedAvg(m=3, local=drfl.LocalSGD(lr=0.05, steps=3)), fed, rounds=2)
    assessment, expected = drfl.assess(result, data), drfl.assess(result, fed)
    assert assessment.to_frame().equals(expected.to_frame())
    with refused("clients-differ", "data"):
        drfl.assess(result, whole)
