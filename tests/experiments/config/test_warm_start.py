"""Test runs that start from a model file: the first model equals the old one, and unsuitable files are refused."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.data.test_model import SCHEMA, table
from tests.support.refusals import notice_codes, refused

import drfl
from drfl.cli.app import call
from drfl.core.errors import RunWarning
from drfl.data import ClientData
from drfl.data.model_card import card
from drfl.data.warm_start import warm_start
from drfl.testing.quadratic_federation import QuadraticFederation

SEEN = "seen-test-rows"
OLD = "old/model.safetensors"
ROWS = ["--data", "t.csv", "--target", "ill", "--group", "site"]


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Finish a run on last month's rows; this month's rows are t.csv."""
    monkeypatch.chdir(tmp_path)
    frame = table().drop(columns=["note", "seen"]).dropna()
    frame.to_csv("t.csv", index=False)
    assert call(["run", *ROWS, "--rounds", "4", "--out", "old", "--returned", "last"]) == 0
    later = table(seed=1).drop(columns=["note", "seen"]).dropna()
    later.assign(income=later["income"] * 1.3 + 1e6).to_csv("t.csv", index=False)
    return frame


def rows(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_first_model_equals_the_old_one_despite_rescaled_columns(old):
    assert call(["run", *ROWS, "--rounds", "0", "--out", "new", "--init-from", OLD]) == 0
    before, after = drfl.load_model(OLD), drfl.load_model("new/model.safetensors")
    assert not torch.equal(before.standardisation.mean, after.standardisation.mean)
    # float32 logits far from 0 round by this much, differently on different processors
    np.testing.assert_allclose(after.predict_proba(old), before.predict_proba(old), atol=1e-5)
    digest = hashlib.sha256(Path(OLD).read_bytes()).hexdigest()
    assert json.loads(Path("new/summary.json").read_text())["init_from"] == {
        "path": OLD, "sha256": digest, "run": before.about["run"], "test_rows": "unknown",
    }  # fmt: skip
    assert after.about["training"]["init_from"] == digest
    assert tomllib.loads(Path("new/config.toml").read_text())["init_from"] == OLD
    assert call(["run", "new/config.toml", "--out", "again"]) == 0
    assert Path("again/model.safetensors").read_bytes() == Path("new/model.safetensors").read_bytes()


def test_initial_model_that_may_have_seen_test_rows_gives_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = table().drop(columns=["note", "seen"]).dropna()
    frame.iloc[:-20].to_csv("t.csv", index=False)

    def codes(out, *more, rounds=1):
        shared = ["run", *ROWS, "--rounds", str(rounds), "--returned", "last", "--lr", "0.1", "--out", out]
        return [code for code in notice_codes([*shared, *more]) if code == SEEN]

    def stored(out):
        """Return whether the summary, the report and the model's card have the warning."""
        (line,) = card(drfl.load_model(out))["Evaluation data"]
        warnings = " ".join(json.loads(Path(out, "summary.json").read_text())["warnings"])
        texts = (line, warnings, Path(out, "report.html").read_text())
        (seen,) = {"may have been trained" in text for text in texts}
        assert ("did not see" in line) != seen
        return seen

    assert codes("first") == []
    assert not stored("first")
    # the same table and seed give the same test rows, also if other rows are held out for validation
    assert codes("same", "--init-from", "first") == codes("again", "--init-from", "same", "--patience", "9") == []
    assert not stored("again")
    for out, more in (("other", ["--seed", "1"]), ("untrained", ["--seed", "2", "--test-fraction", "0.3"])):
        assert codes(out, "--init-from", "first", *more, rounds=int(out == "other")) == [SEEN]
        assert stored(out)
    frame.to_csv("t.csv", index=False)
    assert codes("grown", "--init-from", "first") == [SEEN]
    # the split is that of its initial model, which may have seen the test rows itself
    assert codes("chain", "--init-from", "grown") == [SEEN]
    assert stored("chain")
    # a model that was tested on its training rows
    Path("c.toml").write_text('judged_on = "training"')
    assert codes("training", "c.toml") == []
    assert "did not see" not in card(drfl.load_model("training"))["Evaluation data"][0]
    assert codes("after", "c.toml", "--init-from", "training") == [SEEN]


def test_start_from_a_run_with_personal_models_gives_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared = ["run", "--clients", "4", "--rounds", "1", "--lr", "0.1"]
    assert call([*shared, "--algorithm", "LocalOnly", "--out", "alone"]) == 0
    start = ["--init-from", "alone", "--out", "new"]
    assert notice_codes([*shared, *start]) == ["global-start"]
    (warning,) = json.loads(Path("new/summary.json").read_text())["warnings"]
    assert "for each client" in warning
    # the new model was trained on the same rows, and has seen no test rows
    assert notice_codes([*shared, "--init-from", "new", "--out", "third"]) == []


@pytest.mark.long
def test_python_warns_of_an_initial_model_that_may_have_seen_test_rows(tmp_path):
    spec = drfl.data_spec(dataset="digits", partition="iid", clients=3)
    task = drfl.Task(drfl.models.linear(spec.for_seed(0).shape, 10))
    algorithms = {"FedAvg": drfl.FedAvg(m=3, local=drfl.LocalSGD(steps=2, lr=0.1))}
    shared = {"rounds": 1, "progress": None}
    drfl.compare(algorithms, spec, task, out=tmp_path / "a", seeds=1, **shared)
    start = {"init_from": tmp_path / "a/FedAvg-seed0/model.safetensors"}
    # all seeds of the clients of a single seed have the same test rows
    for result in (
        drfl.compare(algorithms, spec.for_seed(0), task, seeds=2, **shared, **start),
        drfl.compare(algorithms, spec, task, seeds=1, **shared, **start),
    ):
        assert result.notices == []
    with pytest.warns(RunWarning) as caught:
        result = drfl.compare(algorithms, spec, task, seeds=2, out=tmp_path / "b", **shared, **start)
    assert [(w.message.code, w.message.field) for w in caught] == [(SEEN, "init_from")]
    assert [notice.code for notice in result.notices] == [SEEN]
    assert "seed 1)" in result.notices[0]
    assert result.summary()["warnings"] == result.notices
    lines = []
    drfl.compare(algorithms, spec, task, seeds=[1], **{**shared, "progress": lines.append}, **start)
    assert [line.code for line in lines if hasattr(line, "code")] == [SEEN]
    same, other = (drfl.Simulation(spec.for_seed(seed), task) for seed in (0, 1))
    drfl.run(algorithms["FedAvg"], same, rounds=1, **start)
    with pytest.warns(RunWarning) as caught:
        drfl.run(algorithms["FedAvg"], other, rounds=1, **start)
    assert [w.message.code for w in caught] == [SEEN]
    drfl.run(algorithms["FedAvg"], other, rounds=1, check_data=False, **start)
    drfl.fit(spec, task, budget=1, progress=None, **start)
    with pytest.warns(RunWarning) as caught:
        drfl.fit(spec, task, budget=1, seed=1, progress=None, **start)
    assert [w.message.code for w in caught] == [SEEN]
    study = {"dataset": "digits", "partition": "iid", "clients": 3, "rounds": 1, "algorithm": "FedAvg"}
    study |= {"init_from": str(start["init_from"]), "grid": {"seed": [0, 1]}}
    with pytest.warns(RunWarning) as caught:
        drfl.sweep(study, out=tmp_path / "s", progress=None)
    assert [w.message.code for w in caught] == [SEEN]


@pytest.mark.long
def test_client_weights_are_reset_or_kept(old):
    own = ["run", *ROWS, "--rounds", "1", "--init-from", OLD]
    assert call([*own, "--out", "reset"]) == 0
    assert call([*own, "--out", "kept", "--keep-weights"]) == 0
    # the folder of the run is enough, as in drfl predict
    folder = [*own[:-1], "old", "--out", "folder", "--keep-weights"]
    assert call(folder) == 0
    assert rows("folder/lambda.csv") == rows("kept/lambda.csv")
    assert json.loads(Path("folder/summary.json").read_text())["init_from"]["path"] == OLD
    reset, kept, last = rows("reset/lambda.csv")[0], rows("kept/lambda.csv")[0], rows("old/lambda.csv")[-1]
    assert [float(reset[name]) for name in ("north", "south", "west")] == pytest.approx([1 / 3] * 3)
    assert [float(kept[name]) for name in last if name != "round"] == pytest.approx(
        [float(last[name]) for name in last if name != "round"], abs=1e-8
    )
    assert len({float(last[name]) for name in ("north", "south", "west")}) == 3
    assert call(["compare", *ROWS, "--algorithms", "FedAvg,DRFA", "--rounds", "1", "--seeds", "1", "--init-from", OLD,
                 "--keep-weights", "--out", "c"]) == 0  # fmt: skip
    assert json.loads(Path("c/FedAvg-seed0/summary.json").read_text())["init_from"]["path"] == OLD
    assert call(["fit", "t.csv", *ROWS[2:], "--budget", "1", "--init-from", OLD, "--out", "f"]) == 0
    assert json.loads(Path("f/summary.json").read_text())["init_from"]["path"] == OLD


def test_python_accepts_the_same_arguments(tmp_path):
    data = ClientData.from_frame(table(), schema=SCHEMA)
    task = drfl.Task(drfl.models.linear((7,), 2))
    first = {name: value.clone() for name, value in task.model.state_dict().items()}
    algorithms = {"DRFA": drfl.DRFA(m=3, local=drfl.LocalSGD(steps=2, lr=0.1))}
    shared = {"rounds": 1, "seeds": 1, "progress": None, "returned": "last"}
    drfl.compare(algorithms, data, task, out=tmp_path / "a", **shared)
    path = tmp_path / "a/DRFA-seed0/model.safetensors"
    drfl.compare(algorithms, data, task, out=tmp_path / "b", init_from=path, keep_weights=True, **shared)
    assert all(torch.equal(value, first[name]) for name, value in task.model.state_dict().items())
    histories = [rows(tmp_path / f"{name}/DRFA-seed0/history.csv") for name in "ab"]
    assert histories[1][0]["avg_loss"] == histories[0][-1]["avg_loss"]
    fitted = drfl.fit(data, task, budget=1, init_from=path, progress=None)
    assert fitted.finished.job.origin.start["path"] == str(path)


class Mirrored(torch.nn.Sequential):
    """A model whose layers do not see the columns as they are."""

    def forward(self, x):
        return super().forward(-x)


def test_first_layer_of_a_model_with_its_own_forward_pass_does_not_change(tmp_path):
    frame, task = table(), drfl.Task(Mirrored(torch.nn.Linear(7, 2)))
    data, moved = (
        ClientData.from_frame(rows, schema=SCHEMA) for rows in (frame, frame.assign(income=frame["income"] + 5))
    )
    options = {"rounds": 0, "seeds": 1, "progress": None}
    drfl.compare({"FedAvg": drfl.FedAvg(m=3)}, data, task, out=tmp_path / "a", **options)
    path = tmp_path / "a/FedAvg-seed0/model.safetensors"
    started = warm_start(task, moved, path).task.model.state_dict()
    assert all(torch.equal(value, started[name]) for name, value in task.model.state_dict().items())


def test_names_of_clients_are_read_as_they_were_written(tmp_path):
    names = ("NA", "007", "=1+1")
    data = ClientData.from_arrays({name: (torch.randn(20, 3), torch.arange(20) % 2) for name in names})
    options = {"rounds": 1, "seeds": 1, "progress": None, "returned": "last"}
    algorithms, task = (
        {"DRFA": drfl.DRFA(m=2, local=drfl.LocalSGD(steps=2, lr=0.1))},
        drfl.Task(drfl.models.linear((3,), 2)),
    )
    found = drfl.compare(algorithms, data, task, out=tmp_path / "a", **options)
    clients = found.to_clients()
    assert clients["client"].tolist() == list(names)
    assert clients["samples"].dtype.kind == "i"
    drfl.compare(
        algorithms, data, task, out=tmp_path / "b", init_from=tmp_path / "a/DRFA-seed0", keep_weights=True, **options
    )
    assert (tmp_path / "b/DRFA-seed0/summary.json").is_file()


@pytest.mark.long
def test_objects_start_from_a_file_like_the_command(old):
    data = drfl.data_spec(data=["t.csv"], target="ill", group="site").for_seed(0)
    before = drfl.load_model(OLD)
    fed = drfl.Simulation(data, drfl.Task(drfl.models.linear(data.shape, 2)))
    result = drfl.run(drfl.FedAvg(m=3), fed, rounds=0, init_from=OLD)
    weight, bias = result.model[:-2].view(2, -1), result.model[-2:]
    expected = before.predict_proba(pd.read_csv("t.csv"))
    np.testing.assert_allclose((data.inputs @ weight.T + bias).softmax(1), expected, atol=2e-6)
    assert not torch.equal(result.model, fed.w0)
    one, two = (drfl.run(drfl.FedAvg(m=3), fed, rounds=2, init_from=path) for path in (OLD, Path(OLD)))
    assert torch.equal(one.model, two.model)
    assert not torch.equal(one.model, drfl.run(drfl.FedAvg(m=3), fed, rounds=2).model)


@pytest.mark.long
def test_frozen_layers_must_equal_those_of_the_task(tmp_path):
    data = ClientData.from_frame(table(), schema=SCHEMA)

    def task(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(7, 3), torch.nn.Linear(3, 2))
        model[0].requires_grad_(False)
        return drfl.Task(model)

    drfl.compare({"FedAvg": drfl.FedAvg(m=3)}, data, task(0), rounds=1, seeds=1, out=tmp_path / "a", progress=None)
    path = tmp_path / "a/FedAvg-seed0/model.safetensors"
    own, other = (drfl.Simulation(data, task(seed)) for seed in (0, 1))
    result = drfl.run(drfl.FedAvg(m=3), own, rounds=0, init_from=path)
    assert result.model.tolist() == torch.cat([v.flatten() for n, v in drfl.load_model(path).module.state_dict().items()
                                               if n.startswith("1.")]).tolist()  # fmt: skip
    with refused("model-differs", "init_from"):
        drfl.run(drfl.FedAvg(m=3), other, rounds=0, init_from=path)
    elsewhere = QuadraticFederation(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2), torch.zeros(3))
    with refused("unsupported-combination", "init_from"):
        drfl.run(drfl.FedAvg(m=2), elsewhere, rounds=0, init_from=path)


def test_unsuitable_files_are_refused(tmp_path):
    frame, linear = table(), drfl.models.linear((7,), 2)
    data, task = ClientData.from_frame(frame, schema=SCHEMA), drfl.Task(linear)
    options = {"rounds": 0, "seeds": 1, "progress": None}
    drfl.compare({"FedAvg": drfl.FedAvg(m=3)}, data, task, out=tmp_path / "a", **options)
    path = tmp_path / "a/FedAvg-seed0/model.safetensors"
    warm_start(task, data, path)
    with refused("weights-mismatch", "init_from"):
        warm_start(drfl.Task(drfl.models.mlp((7,), 2)), data, path)
    columns = (SCHEMA.columns[3], *SCHEMA.columns[:3], *SCHEMA.columns[4:])
    other = ClientData.from_frame(frame, schema=type(SCHEMA)(columns, positive="yes"))
    with refused("schema-differs", "init_from"):
        warm_start(task, other, path)
    numbers = frame[["income", "site", "ill"]].assign(other=1.0, **{f"x{k}": float(k) for k in range(5)})
    with refused("model-differs", "init_from"):
        warm_start(task, ClientData.from_frame(numbers, group="site", target="ill"), path)
    with refused("model-differs", "init_from"):
        warm_start(task, ClientData.from_frame(numbers.drop(columns="x1"), group="site", target="ill"), path)
    with refused("unused-option", "keep_weights"):
        drfl.compare({"DRFA": drfl.DRFA()}, data, task, keep_weights=True, **options)
    Path(tmp_path / "m.safetensors").write_bytes(path.read_bytes())
    with refused("file-not-found"):
        drfl.compare(
            {"DRFA": drfl.DRFA()}, data, task, init_from=tmp_path / "m.safetensors", keep_weights=True, **options
        )
    half = ClientData.from_frame(frame[frame["site"] != "west"], schema=SCHEMA)
    with refused("clients-differ", "keep_weights"):
        drfl.compare({"DRFA": drfl.DRFA()}, half, task, init_from=path, keep_weights=True, **options)


def test_first_layer_without_a_bias_needs_the_means_of_its_columns(tmp_path):
    frame, task = table(), drfl.Task(torch.nn.Linear(7, 2, bias=False))
    data = ClientData.from_frame(frame, schema=SCHEMA)
    algorithms = {"FedAvg": drfl.FedAvg(m=3)}
    drfl.compare(algorithms, data, task, rounds=1, seeds=1, out=tmp_path, progress=None)
    path = tmp_path / "FedAvg-seed0/model.safetensors"
    old = drfl.load_model(path)
    assert torch.equal(warm_start(task, data, path).task.model.weight, old.weights["weight"])
    later = frame.assign(income=frame["income"] + 1e6)
    with refused("model-differs", "init_from"):
        warm_start(task, ClientData.from_frame(later, schema=SCHEMA), path)
    raw = ClientData.from_frame(later, schema=SCHEMA, standardise=False, dtype=torch.float64)
    started = warm_start(task, raw.standardised(old.standardisation), path)
    assert torch.equal(started.task.model.weight, old.weights["weight"])
    # other scales alone change only the weights
    scale = dataclasses.replace(old.standardisation, scale=2 * old.standardisation.scale)
    assert torch.equal(warm_start(task, raw.standardised(scale), path).task.model.weight, 2 * old.weights["weight"])


@pytest.mark.parametrize("lam0", [(0.5, 0.5), (0.2, 0.3, float("nan")), (-1.0, 1.0, 1.0), "even"])
def test_impossible_client_weights_are_refused(lam0):
    data = ClientData.from_frame(table(), schema=SCHEMA)
    fed = drfl.Simulation(data, drfl.Task(drfl.models.linear((7,), 2)))
    with refused("unknown-name" if lam0 == "even" else "invalid-value", "lam0"):
        drfl.DRFA(lam0=lam0).init(fed)
