"""Test that predictions of other tools get the intervals and paired tests of a model with the same outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tests.data.test_model import table
from tests.support.marks import long_beyond
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl.cli.app import call
from drfl.core.csv_cells import csv_text
from drfl.experiments.assess.predictions import read_predictions

OWN = ["--data", "t.csv", "--target", "ill", "--group", "site", "--rounds", "2", "--param", "lr=0.1"]
METRICS = ["--metric", "auc", "--metric", "log-loss", "--metric", "sensitivity", "--metric", "calibration-error"]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Make a comparison, and write the predictions of its first model to p.csv."""
    monkeypatch.chdir(tmp_path)
    frame = table().drop(columns=["note", "seen"]).dropna()
    frame.to_csv("t.csv", index=False)
    compare = ["compare", *OWN, *METRICS, "--algorithms", "FedAvg,DRFA", "--seeds", "1", "--out", "c"]
    assert call(compare) == 0
    assert call(["predict", "c/FedAvg-seed0/model.safetensors", "t.csv", "--out", "p.csv"]) == 0
    found = pd.read_csv("p.csv").rename(columns={"site": "client"})
    found.sample(frac=1, random_state=0).to_csv("p.csv", index=False)
    return found


def assessed(capsys, *arguments):
    capsys.readouterr()
    assert call(["assess", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
@pytest.mark.parametrize("measure", long_beyond(2, ["accuracy", "auc", "log_loss", "sensitivity"]))
def test_own_predictions_get_the_intervals_of_the_model(measure, runs, capsys):
    found = assessed(capsys, "c/FedAvg-seed0", "--predictions", "p.csv", "--measure", measure)
    model, other = found["runs"]
    assert other["algorithm"] == "p"
    assert other["worst"] == pytest.approx(model["worst"])
    for own, theirs in zip(model["clients"], other["clients"], strict=True):
        assert theirs == pytest.approx(own)


@pytest.mark.long
def test_scikit_learn_predictions_are_a_row_of_a_comparison(runs, capsys):
    frame = pd.read_csv("t.csv")
    inputs = pd.get_dummies(frame[["income", "crp", "stage"]]).assign(income=lambda f: (f["income"] - 4e6) / 2e5)
    fitted = LogisticRegression().fit(inputs, frame["ill"])
    other = pd.DataFrame({"row": range(1, len(frame) + 1), "probability": fitted.predict_proba(inputs)[:, 1]})
    other.to_csv("sklearn.csv", index=False)
    found = assessed(capsys, "c", "--predictions", "sklearn.csv")
    assert [run["algorithm"] for run in found["runs"]] == ["FedAvg", "DRFA", "sklearn"]
    assert call(["assess", "c", "--predictions", "sklearn.csv"]) == 0
    assert "sklearn" in capsys.readouterr().out
    right = fitted.predict(inputs) == frame["ill"]
    assert np.mean([client["accuracy" if "accuracy" in client else "value"] for client in
                    found["runs"][2]["clients"]]) == pytest.approx(right.mean(), abs=0.2)  # fmt: skip


def test_names_that_drfl_escapes_are_read_as_they_were(tmp_path):
    rows = [(1, "=a", "+"), (2, "NA", "-"), (3, "007", "-1")]
    (tmp_path / "p.csv").write_text(csv_text(("row", "client", "prediction"), rows))
    found = read_predictions(tmp_path / "p.csv")
    assert list(found.itertuples(index=False, name=None)) == rows


def simulation():
    frame = table().dropna()[["income", "crp", "site", "ill"]]
    data = drfl.ClientData.from_frame(frame, group="site", target="ill")
    return drfl.Simulation(data, drfl.Task(drfl.models.linear((2,), 2)))


def test_python_accepts_data_frames():
    fed = simulation()
    w = torch.randn(fed.w0.shape, generator=torch.Generator().manual_seed(0))
    weight, bias = w[:4].reshape(2, 2), w[4:]
    proba = (fed.data.inputs @ weight.T + bias).softmax(1).numpy()
    frame = pd.DataFrame(proba, columns=["probability_no", "probability_yes"]).assign(row=range(1, len(proba) + 1))
    own, theirs = drfl.assess(frame, fed), drfl.assess_gain(w, frame, fed)
    expected = fed.evaluate(w)
    assert own.values.tolist() == pytest.approx(expected.score.tolist())
    assert theirs.values.tolist() == [0, 0, 0]
    classes = frame[["row"]].assign(prediction=np.where(proba[:, 1] > 0.5, "yes", "no"))
    assert drfl.assess(classes, fed).values.tolist() == own.values.tolist()


def test_columns_may_be_in_any_order_and_rows_may_be_floats():
    fed = simulation()
    numbers = np.arange(1, len(fed.data.inputs) + 1)
    frame = pd.DataFrame({"row": numbers, "probability_no": 0.2 + 0.6 * (numbers % 2)})
    frame["probability_yes"] = 1 - frame["probability_no"]
    changed = frame[["probability_yes", "probability_no"]].assign(row=numbers.astype(float)).iloc[::-1]
    assert drfl.assess(changed, fed).values.tolist() == drfl.assess(frame, fed).values.tolist()


def test_predictions_of_numbers_and_labels():
    frame = table().dropna()
    numbers = frame[["income", "crp", "site"]].assign(dose=frame["crp"] * 2.0)
    data = drfl.ClientData.from_frame(numbers, group="site", target="dose")
    fed = drfl.Simulation(data, drfl.Task(drfl.models.linear((2,), 1), nn.MSELoss(), "mae"))
    found = pd.DataFrame({"row": range(1, len(frame) + 1), "prediction": numbers["dose"] + 1})
    assert drfl.assess(found, fed).values.tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    labels = numbers.drop(columns="dose").assign(a=(frame["crp"] > 5) * 1.0, b=(frame["income"] > 4e6) * 1.0)
    data = drfl.ClientData.from_frame(labels, group="site", target=["a", "b"])
    fed = drfl.Simulation(data, drfl.Task(drfl.models.linear((2,), 2), nn.BCEWithLogitsLoss()))
    found = pd.DataFrame({"row": range(1, len(frame) + 1), "probability_a": labels["a"], "probability_b": 1.0})
    values = drfl.assess(found, fed).values
    assert ((values > 0.5) & (values < 1)).all()


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        (lambda f: f.drop(columns="row"), "missing-column", "row"),
        (lambda f: f.assign(row=f["row"] - 1), "invalid-value", "row"),
        (lambda f: pd.concat([f, f]), "invalid-value", "row"),
        (lambda f: f.iloc[:9], "missing-rows", "row"),
        (lambda f: f.assign(client="north"), "clients-differ", "client"),
        (lambda f: f.assign(probability_no=2.0), "out-of-range", "probability_no"),
        (lambda f: f.assign(probability_no="x"), "not-a-number", "probability_no"),
        (lambda f: f.assign(probability_no=0.1, probability_yes=0.1), "out-of-range", "probability"),
        (lambda f: f.assign(probability_more=0.0), "missing-column", "prediction"),
        (lambda f: f.assign(row=f["row"] + 0.5), "invalid-value", "row"),
        (lambda f: f.assign(row="x"), "invalid-value", "row"),
        (lambda f: f[["row", "probability_no"]], "missing-column", "prediction"),
        (lambda f: f[["row"]], "missing-column", "prediction"),
        (lambda f: f[["row"]].assign(prediction="maybe"), "invalid-value", "prediction"),
    ],
)
def test_wrong_predictions_are_refused(change, code, field):
    fed = simulation()
    n = len(fed.data.inputs)
    good = pd.DataFrame({"row": range(1, n + 1), "probability_no": 0.5, "probability_yes": 0.5})
    drfl.assess(good, fed)
    with refused(code, field):
        drfl.assess(change(good), fed)


@pytest.mark.long
def test_changed_data_and_folders_without_data_are_refused(runs, capsys):
    with refused("missing-option", "data"):
        drfl.assess(runs)
    frame = pd.read_csv("t.csv")
    frame.iloc[:-30].to_csv("t.csv", index=False)
    capsys.readouterr()
    assert call(["assess", "c/FedAvg-seed0", "--predictions", "p.csv", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "runs-differ"
    fed = simulation()
    drfl.compare({"FedAvg": drfl.FedAvg(m=3)}, fed.data, drfl.Task(drfl.models.linear((2,), 2)), rounds=0, seeds=1,
                 out=Path("o"), progress=None)  # fmt: skip
    capsys.readouterr()
    assert call(["assess", "o/FedAvg-seed0", "--predictions", "p.csv", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "missing-results"


@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", ","), (";", "."), ("\t", ",")])
def test_predicted_numbers_may_have_decimal_commas(separator, decimal, tmp_path):
    frame = table().dropna()[["income", "crp", "site"]]
    data = drfl.ClientData.from_frame(frame, group="site", target="crp")
    fed = drfl.Simulation(data, drfl.Task(drfl.models.linear((1,), 1), nn.MSELoss(), metrics=("mae",)))
    predicted = (data.targets + 0.25).numpy().round(4)
    lines = [f"{row}{separator}{str(value).replace('.', decimal)}" for row, value in enumerate(predicted, start=1)]
    path = tmp_path / "p.csv"
    path.write_text("\n".join([f"row{separator}prediction", *lines]))
    found = drfl.assess(read_predictions(path), fed, measure="mae")
    assert found.values == pytest.approx([0.25] * data.n, abs=1e-4)


def test_predicted_classes_keep_their_texts(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("row;prediction\n1;007\n2;1,5\n")
    assert read_predictions(path)["prediction"].tolist() == ["007", "1,5"]
