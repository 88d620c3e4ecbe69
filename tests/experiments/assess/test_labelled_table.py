"""Test trained models on new labelled tables."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import recall_score, roc_auc_score
from tests.support.refusals import check_refusal, notices, quotes, refused
from torch import nn

import drfl
from drfl.cli.app import call
from drfl.core import tensor_files
from drfl.data import personal_models


def rows(seed, n=150):
    g = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": g.normal(60, 10, n).round(1),
            "sex": g.choice(["m", "f"], n),
            "site": g.choice(["north", "south", "west"], n),
            "ill": g.choice(["no", "yes"], n),
        }
    )
    return frame.assign(dose=(frame["age"] / 10 + (frame["sex"] == "m") + g.normal(0, 0.5, n)).round(3))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return folders of a classification and a regression, by kind."""
    folder, torch_loss = tmp_path_factory.mktemp("runs"), {"ill": nn.CrossEntropyLoss(), "dose": nn.MSELoss()}
    for target, loss in torch_loss.items():
        frame = rows(0).drop(columns={"ill": "dose", "dose": "ill"}[target])
        data = drfl.ClientData.from_frame(frame, group="site", target=target)
        torch.manual_seed(0)
        task = drfl.Task(drfl.models.linear((2,), 2 if target == "ill" else 1), loss)
        drfl.compare(
            {"FedAvg": drfl.FedAvg(m=3)}, data, task, rounds=3, seeds=1, out=folder / target, progress=None
        )  # fmt: skip
    return {target: folder / target / "FedAvg-seed0" for target in torch_loss}


def by_site(frame, values):
    return [
        float(np.mean(np.asarray(values)[(frame["site"] == name).to_numpy()])) for name in sorted(set(frame["site"]))
    ]


def test_objects_are_no_paths_of_models():
    for found in (rows(1), drfl.FedAvg(m=3)):
        with refused("wrong-type", "model", type(found).__name__):
            drfl.evaluate(found, rows(1))
        with refused("wrong-type", "model"):
            drfl.load_model(found)


def test_clients_in_another_unit_are_reported(runs, tmp_path):
    new = rows(1)
    new.loc[new["site"] == "west", "age"] *= 12
    with pytest.warns(drfl.DataWarning) as caught:
        drfl.evaluate(runs["ill"], new)
    (warned,) = [each.message for each in caught]
    assert (warned.code, warned.field) == ("unit-mismatch", "age")
    assert quotes(str(warned), f"{new.loc[new['site'] == 'west', 'age'].median():.4g} at west")
    new.to_csv(tmp_path / "new.csv", index=False)
    for words in (["evaluate"], ["predict", "--out", f"{tmp_path}/p.csv"]):
        assert notices([words[0], str(runs["ill"]), f"{tmp_path}/new.csv", *words[1:]]) == [str(warned)]


def test_another_unit_is_reported_if_each_client_has_few_rows(runs):
    """No client has enough rows to tell, but all rows together have."""
    new = rows(1).groupby("site").head(5)
    new["age"] *= 12
    with pytest.warns(drfl.DataWarning) as caught:
        drfl.evaluate(runs["ill"], new)
    (warned,) = [each.message for each in caught if each.message.code == "unit-mismatch"]
    assert warned.field == "age"
    assert quotes(str(warned), f"{new['age'].median():.4g} in all rows")


def test_scores_are_those_of_the_predictions(runs):
    model, new = drfl.load_model(runs["ill"]), rows(1)
    found = drfl.evaluate(model, new)
    assert found.names == ("north", "south", "west")
    assert found.values == pytest.approx(by_site(new, model.predict(new) == new["ill"]))
    assert found.samples.tolist() == new["site"].value_counts().sort_index().tolist()
    assert found.worst.low < found.values.min() < found.worst.high


def test_truth_values_are_labels_of_several_targets(tmp_path):
    frame = rows(0).drop(columns=["dose", "sex"]).assign(ill=lambda new: new["ill"] == "yes")
    frame["old"] = frame["age"] > 60
    data = drfl.ClientData.from_frame(frame, group="site", target=["ill", "old"])
    task = drfl.Task(drfl.models.linear((1,), 2), nn.BCEWithLogitsLoss())
    drfl.compare({"FedAvg": drfl.FedAvg(m=3)}, data, task, rounds=3, seeds=1, out=tmp_path / "a", progress=None)
    model = drfl.load_model(tmp_path / "a" / "FedAvg-seed0")
    assert model.kind == "multi-label"
    found = drfl.evaluate(model, frame)
    assert found.values.tolist() == drfl.evaluate(model, frame.astype({"ill": int, "old": int})).values.tolist()
    right = (model.predict(frame) == frame[["ill", "old"]].to_numpy()).mean(1)
    assert found.values == pytest.approx(by_site(frame, right))


def test_clients_are_tested_with_their_personal_models(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = drfl.ClientData.from_frame(rows(0).drop(columns="dose"), group="site", target="ill")
    task = drfl.Task(drfl.models.linear((2,), 2))
    drfl.compare({"own": drfl.LocalOnly()}, data, task, rounds=5, seeds=1, out="a", progress=None)
    new = rows(1)
    new["site"] = new["site"].replace("west", "new")
    found = drfl.evaluate("a", new, personal=True)
    models = {name: drfl.load_model("a", client=name) for name in ("north", "south")} | {"new": drfl.load_model("a")}
    expected = [
        float((models[name].predict(new[new["site"] == name]) == new[new["site"] == name]["ill"]).mean())
        for name in found.names
    ]
    assert found.values == pytest.approx(expected)
    assert found.values.tolist() != drfl.evaluate("a", new).values.tolist()
    new.to_csv("new.csv", index=False)
    assert call(["evaluate", "a", "new.csv", "--personal"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "'north', 'south'. Others: the global model" in printed
    assert call(["evaluate", "a", "new.csv"]) == 0
    assert "add --personal" in " ".join(capsys.readouterr().out.split())
    assert drfl.evaluate(drfl.load_model("a"), new, personal=True).values.tolist() == found.values.tolist()
    # Rows of other groups are tested with the models of their clients, too.
    by_sex = drfl.evaluate("a", new, group="sex", personal=True)
    right = pd.Series(False, index=new.index)
    for name, part in new.groupby("site"):
        right[part.index] = models[name].predict(part) == part["ill"]
    assert by_sex.values == pytest.approx(right.groupby(new["sex"]).mean().tolist())
    assert call(["evaluate", "a", "new.csv", "--group", "sex", "--personal"]) == 0
    assert "Others: the global model" not in " ".join(capsys.readouterr().out.split())


def test_all_personal_models_are_read_once(runs, tmp_path, monkeypatch):
    shutil.copytree(runs["ill"], tmp_path / "a")
    weights, calls = drfl.load_model(runs["ill"]).weights, []
    own = {f"client {i}/{name}": value + i for i in range(20) for name, value in weights.items()}
    save_file(own, tmp_path / "a" / "personal.safetensors")

    def read_tensors(*args, **options):
        calls.append(args)
        return tensor_files.read_tensors(*args, **options)

    monkeypatch.setattr(personal_models, "read_tensors", read_tensors)
    drfl.evaluate(tmp_path / "a", rows(1).assign(site=[f"client {i % 20}" for i in range(150)]), personal=True)
    assert len(calls) == 1


def test_models_without_personal_ones_are_refused(runs, tmp_path, monkeypatch):
    with refused("no-personal-models", "personal", "Fit with"):
        drfl.evaluate(runs["ill"], rows(1), personal=True)
    monkeypatch.chdir(tmp_path)
    rows(1).to_csv("new.csv", index=False)
    check_refusal(["evaluate", str(runs["ill"]), "new.csv", "--personal"], "no-personal-models", "personal")


@pytest.mark.parametrize("measure", ["auc", "sensitivity"])
def test_other_metrics_equal_those_of_scikit_learn(runs, measure):
    model, new = drfl.load_model(runs["ill"]), rows(1)
    found = drfl.evaluate(model, new, measure=measure)
    for name, value in zip(found.names, found.values, strict=True):
        own = new[new["site"] == name]
        ill, probability = own["ill"] == "yes", model.predict_proba(own)[:, 1]
        expected = roc_auc_score(ill, probability) if measure == "auc" else recall_score(ill, probability > 0.5)
        assert value == pytest.approx(expected)


def test_regression_is_assessed_by_absolute_errors(runs):
    model, new = drfl.load_model(runs["dose"]), rows(1)
    found = drfl.evaluate(model, new)
    assert found.measure.name == "mae"
    assert found.values == pytest.approx(by_site(new, np.abs(model.predict(new) - new["dose"])), rel=1e-5)


def test_command_prints_what_python_returns(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    new = rows(1)
    new.to_csv("new.csv", index=False)
    assert call(["evaluate", str(runs["ill"]), "new.csv", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = drfl.evaluate(runs["ill"], new)
    assert printed["worst"]["client"] == expected.names[expected.order[0]]
    assert [row["client"] for row in printed["clients"]] == list(expected.names)
    assert call(["evaluate", str(runs["ill"]), "new.csv"]) == 0
    shown = capsys.readouterr().out
    assert "Clopper" in shown
    assert "only if the model was not trained on these rows" in shown


def test_each_file_is_a_client_if_no_column_names_it(runs, tmp_path):
    new = rows(1)
    (tmp_path / "sites").mkdir()
    for name, frame in new.groupby("site"):
        frame.drop(columns="site").to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    found, whole = drfl.evaluate(runs["ill"], tmp_path / "sites"), drfl.evaluate(runs["ill"], new)
    assert found.names == whole.names
    assert found.values.tolist() == whole.values.tolist()
    one = drfl.evaluate(runs["ill"], tmp_path / "sites" / "north.csv")
    assert one.names == ("north",)
    assert one.values[0] == whole.values[0]


def test_unsuitable_tables_and_models_are_refused(runs, tmp_path, monkeypatch):
    new = rows(1)
    with refused("missing-column", "ill"):
        drfl.evaluate(runs["ill"], new.drop(columns="ill"))
    with refused("unknown-level", "ill"):
        drfl.evaluate(runs["ill"], new.assign(ill="maybe"))
    with refused("unknown-level", "sex"):
        drfl.evaluate(runs["ill"], new.assign(sex="x"))
    with refused("unsupported-metric", "rmse"):
        drfl.evaluate(runs["dose"], new, measure="rmse")
    monkeypatch.chdir(tmp_path)
    new.drop(columns="ill").to_csv("new.csv", index=False)
    check_refusal(["evaluate", str(runs["ill"]), "new.csv"], "missing-column", "ill")
    check_refusal(["evaluate", str(runs["ill"]), "new.csv", "--group", "clinic"], "unknown-name", "group", "clinic")


def test_one_logit_is_a_classification(tmp_path):
    frame = rows(0).drop(columns="dose")
    data = drfl.ClientData.from_frame(frame, group="site", target="ill", standardise=True)
    torch.manual_seed(0)
    task = drfl.Task(drfl.models.linear((2,), 1), nn.BCEWithLogitsLoss())
    drfl.compare({"FedAvg": drfl.FedAvg(m=3)}, data, task, rounds=2, seeds=1, out=tmp_path, progress=None)
    model, new = drfl.load_model(tmp_path), rows(1)
    assert (model.kind, model.classes_.tolist()) == ("classification", ["no", "yes"])
    positive = 1 / (1 + np.exp(-model.outputs(new)[:, 0]))
    assert model.predict_proba(new) == pytest.approx(np.stack([1 - positive, positive], 1))
    assert model.predict(new).tolist() == np.where(positive > 0.5, "yes", "no").tolist()
    assert drfl.evaluate(model, new).values == pytest.approx(by_site(new, model.predict(new) == new["ill"]))


@pytest.mark.parametrize(
    ("targets", "kind"),
    [
        (lambda x: (x.sum(1) > 0).long(), "classification"),
        (lambda x: (x.sum(1) > 0).float(), "classification"),
        (lambda x: (x.sum(1, keepdim=True) > 0).long(), "classification"),
        (lambda x: (x > 0).long(), "multi-label"),
    ],
)
def test_kind_of_a_loss_of_labels_follows_from_the_targets(targets, kind, tmp_path):
    inputs = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))
    data = drfl.ClientData.from_arrays([(x, targets(x)) for x in inputs])
    task = drfl.Task(nn.Linear(3, 3 if kind == "multi-label" else 1), nn.BCEWithLogitsLoss())
    drfl.compare({"FedAvg": drfl.FedAvg(m=2)}, data, task, rounds=1, seeds=1, out=tmp_path, progress=None)
    model = drfl.load_model(tmp_path)
    assert model.kind == kind
    assert model.predict(inputs[0]).shape == ((40, 3) if kind == "multi-label" else (40,))
    assert model.predict_proba(inputs[0]).shape == (40, 3 if kind == "multi-label" else 2)


def test_several_numbers_are_a_regression(tmp_path):
    frame = rows(0).drop(columns="ill").assign(half=lambda table: table["dose"] / 2)
    data = drfl.ClientData.from_frame(frame, group="site", target=["dose", "half"])
    assert data.schema.task == "regression"
    task = drfl.Task(drfl.models.linear((2,), 2), nn.MSELoss())
    drfl.compare({"FedAvg": drfl.FedAvg(m=3)}, data, task, rounds=2, seeds=1, out=tmp_path, progress=None)
    model = drfl.load_model(tmp_path)
    new = rows(1).assign(half=lambda table: table["dose"] / 2)
    errors = np.abs(model.predict(new) - new[["dose", "half"]].to_numpy()).mean(1)
    assert drfl.evaluate(model, new).values == pytest.approx(by_site(new, errors))
    labels = frame.assign(dose=(frame["dose"] > 6) * 1, half=np.where(frame["age"] > 60, 1.0, np.nan))
    assert drfl.ClientData.from_frame(labels, group="site", target=["dose", "half"]).schema.task == "multi-label"
