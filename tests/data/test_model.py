"""Test that loaded models predict the evaluated values from raw columns, without further arguments, in another
process.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.refusals import quotes, refused
from torch import nn

import drfl
from drfl.cli.app import call
from drfl.core.errors import InputError
from drfl.data.model_card import card
from drfl.data.tables.columns import frame_row
from drfl.data.tables.conform import encode_features
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.table import Table

LOCAL = drfl.LocalSGD(steps=3, lr=0.1)


def table(seed=0, n=240):
    """Return rows of three sites: numbers of very different sizes, words, dates in time zones, blanks."""
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2021-03-01", tz="Europe/Helsinki") + pd.to_timedelta(rng.integers(0, 400, n), "h")
    frame = pd.DataFrame(
        {
            "site": rng.choice(["north", "south", "west"], n),
            "income": rng.normal(4e6, 2e5, n).round(),
            "crp": rng.gamma(2.0, 3.0, n).round(1),
            "stage": rng.choice(["I", "II", "III"], n),
            "seen": [day.isoformat() for day in days],
            "note": [f"row {k}" for k in range(n)],
        }
    )
    risk = (frame["income"] - 4e6) / 2e5 + (frame["stage"] == "III") * 2 + rng.normal(0, 0.5, n)
    frame["ill"] = np.where(risk > 0.7, "yes", "no")
    frame.loc[rng.choice(n, 9, replace=False), "crp"] = np.nan
    return frame


SCHEMA = TableSchema(
    (
        Column("crp", "number", missing=("", "-9"), range=(0, 500)),
        Column("stage", "category", levels=("I", "II", "III"), other=True),
        Column("seen", "date"),
        Column("income", "number"),
        Column("note", "text"),
        Column("site", "text", role="client"),
        Column("ill", "yes/no", levels=("no", "yes"), role="target"),
    ),
    positive="yes",
)


def compared(out, data, model, dtype=torch.float32, **options):
    """Return the model of a comparison's run, and the task."""
    task = drfl.Task(model.to(dtype), **options)
    drfl.compare({"FedAvg": drfl.FedAvg(m=data.n, local=LOCAL)}, data, task, rounds=3, seeds=1, out=out, progress=None)
    return drfl.load_model(out / "FedAvg-seed0/model.safetensors"), task


def expected(model, data, rows):
    """Return the module's evaluated outputs for rows of the data."""
    module = model.module
    with torch.no_grad():
        return module(data.inputs[rows].to(next(module.parameters()).dtype)).double()


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.long)], ids=str)
def test_predictions_from_raw_columns_equal_the_evaluation(dtype, tmp_path):
    frame = table()
    data = drfl.ClientData.from_frame(frame, schema=SCHEMA, dtype=dtype)
    model, _ = compared(tmp_path / "r", data, drfl.models.mlp((7,), 2, (5,)), dtype)
    evaluated = expected(model, data, torch.arange(len(frame))).softmax(1).numpy()
    shown = frame.sample(frac=1, random_state=1, axis=1).drop(columns=["ill", "site"]).assign(extra=1)
    found = model.predict_proba(shown)
    np.testing.assert_allclose(found, evaluated, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-6)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.feature_names_in_.tolist() == ["crp", "stage", "seen", "income"]
    assert model.predict(shown).tolist() == [["no", "yes"][k] for k in (found[:, 1] > 0.5).astype(int)]
    scored = np.mean([(model.predict(f) == f["ill"]).mean() for _, f in frame.iloc[data.test[0]].groupby("site")])
    assert scored == pytest.approx(float(drfl.Simulation(data, drfl.Task(model.module)).evaluate(
        drfl.Task(model.module).w0).score[0]), abs=1e-6)  # fmt: skip
    # Codes for missing values, other levels, and the same time in another time zone.
    row = frame.iloc[[0]].assign(crp=np.nan, stage="IV")
    coded = row.assign(crp=-9, seen=pd.to_datetime(row["seen"], utc=True), stage="V")
    assert model.predict_proba(row).tolist() == model.predict_proba(coded).tolist()


def test_wrong_tables_are_refused(tmp_path):
    frame = table()
    model, _ = compared(tmp_path / "r", drfl.ClientData.from_frame(frame, schema=SCHEMA), drfl.models.linear((7,), 2))
    with refused("missing-column", "crp"):
        model.predict(frame.drop(columns="crp").assign(CRP=1))
    with refused("duplicate-column", "crp"):
        model.predict_proba(pd.concat([frame, frame[["crp"]]], axis=1))
    with refused("not-a-number", "income"):
        model.predict(frame.assign(income="many"))
    with refused("out-of-range", "crp"):
        model.predict(frame.assign(crp=501))
    with refused("missing-values", "income"):
        model.predict(frame.assign(income=np.nan))
    with refused("not-a-date", "seen"):
        model.predict(frame.assign(seen="yesterday"))
    with refused("wrong-shape", "rows"):
        model.predict(np.zeros((2, 7)))
    array = frame[model.feature_names_in_].to_numpy()
    assert model.predict_proba(array).tolist() == model.predict_proba(frame).tolist()


@pytest.mark.long
def test_tables_without_a_schema_are_encoded_as_in_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = table().drop(columns=["note", "seen"]).dropna().assign(smoker=lambda f: f["crp"] > 6)
    frame["ill"] = (frame["ill"] == "yes").astype(int)
    frame.to_csv("t.csv", index=False)
    assert call(["run", "--data", "t.csv", "--target", "ill", "--group", "site", "--rounds", "3", "--out", "r"]) == 0
    assert call(["fit", "t.csv", "--target", "ill", "--group", "site", "--budget", "2", "--out", "f"]) == 0
    assert call(["compare", "--data", "t.csv", "--target", "ill", "--group", "site", "--rounds", "2", "--algorithms",
                 "FedAvg,DRFA", "--seeds", "1", "--out", "c"]) == 0  # fmt: skip
    code = (
        "import sys, drfl, pandas as pd\n"
        "frame = pd.read_csv('t.csv')\n"
        "for path in sys.argv[1:]:\n"
        "    model = drfl.load_model(path)\n"
        "    print(*model.classes_, *(model.predict(frame[model.feature_names_in_]) == frame['ill']))\n"
    )
    paths = [str(path) for path in Path().rglob("model.safetensors") if "checkpoint" not in path.parts]
    assert len(paths) == 4
    told = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True).stdout
    for line in told.splitlines():
        assert line.startswith("0 1 ")
        assert line.count("True") > 0.6 * len(frame)
    model = drfl.load_model("r/model.safetensors")
    assert model.schema.inferred
    with refused("unknown-level", "stage"):
        model.predict(frame.assign(stage="IV"))


MISSING = "trained without missing values"


@pytest.mark.parametrize(
    ("column", "value", "code", "remedy"),
    [
        ("income", "", "missing-values", MISSING),
        ("income", "many", "not-a-number", MISSING),
        ("stage", "", "missing-values", MISSING),
        ("stage", "4", "unknown-level", "trained without this value"),
        ("crp", "many", "not-a-number", "leave it blank"),
        ("crp", "501", "out-of-range", "leave it blank"),
        ("lactate", "", "missing-values", "write '-9'"),
        ("lactate", "?", "not-a-number", "write '-9'"),
        ("seen", "3/4/2021", "ambiguous-date", "2021-03-31"),
        ("seen", "now", "not-a-date", MISSING),
    ],
)
def test_remedies_do_not_change_the_schema_of_a_trained_model(column, value, code, remedy):
    columns = (*SCHEMA.columns, Column("lactate", "number", missing=("-9",)))
    columns = [dataclasses.replace(each, other=False) for each in columns]
    names = [each.name for each in columns if each.is_feature]
    frame = table().head(3).assign(lactate=1.0).astype(str).assign(**{"crp": "1", column: value})[names]
    with pytest.raises(InputError) as refusal:
        encode_features(columns, Table("the table", frame, frame_row))
    assert (refusal.value.code, refusal.value.field) == (code, column)
    assert quotes(str(refusal.value), remedy)
    assert "schema" not in str(refusal.value)


def test_model_of_numbers_names_the_row_of_a_wrong_value(tmp_path):
    frame = table()[["site", "income", "crp", "ill"]].dropna()
    data = drfl.ClientData.from_frame(frame, group="site", target="ill")
    model, _ = compared(tmp_path / "r", data, drfl.models.linear((2,), 2))
    expected = model.predict_proba(frame)
    assert model.predict_proba(frame.astype({"crp": str})).tolist() == expected.tolist()
    frame["crp"] = frame["crp"].astype(object)
    for value, code in (("", "missing-values"), ("high", "not-a-number"), (np.inf, "not-finite")):
        wrong = frame.copy()
        wrong.iloc[2, 2] = value
        with pytest.raises(InputError) as refusal:
            model.predict(wrong)
        assert (refusal.value.code, refusal.value.field) == (code, "crp")
        assert "row 2" in str(refusal.value)
    with refused("missing-column", "crp"):
        model.predict(frame.rename(columns={"crp": "CRP"}))


def test_predictions_for_regression_labels_and_images(tmp_path):
    frame = table().dropna()
    numbers = frame[["income", "crp"]].assign(site=frame["site"], dose=frame["crp"] * 2.0 + 1)
    data = drfl.ClientData.from_frame(numbers, group="site", target="dose")
    model, _ = compared(tmp_path / "a", data, drfl.models.linear((2,), 1), loss=nn.MSELoss())
    assert model.predict(numbers).shape == (len(frame),)
    assert model.predict(numbers[["income", "crp"]].to_numpy()).tolist() == model.predict(numbers).tolist()
    with refused("wrong-task", "task"):
        model.predict_proba(numbers)
    assert not hasattr(model, "classes_")

    labels = numbers.assign(a=(frame["crp"] > 5) * 1.0, b=(frame["income"] > 4e6) * 1.0).drop(columns="dose")
    data = drfl.ClientData.from_frame(labels, group="site", target=["a", "b"])
    model, _ = compared(tmp_path / "b", data, drfl.models.linear((2,), 2), loss=nn.BCEWithLogitsLoss())
    assert model.predict_proba(labels).shape == model.predict(labels).shape == (len(frame), 2)
    one = drfl.ClientData.from_frame(labels.drop(columns="b"), group="site", target="a")
    model, _ = compared(tmp_path / "c", one, drfl.models.linear((2,), 1), loss=nn.BCEWithLogitsLoss())
    assert model.predict_proba(labels).sum(1) == pytest.approx(np.ones(len(frame)))
    assert set(model.predict(labels)) <= {0, 1}

    images = drfl.ClientData.from_dataset(drfl.load("digits"), drfl.IID(clients=3))
    model, _ = compared(tmp_path / "d", images, drfl.models.cnn((1, 8, 8), 10))
    x = images.test_inputs[:5]
    assert model.predict_proba(x).shape == (5, 10)
    np.testing.assert_allclose(model.outputs(x.numpy()), model.module(x).detach(), atol=1e-6)
    with refused("wrong-shape", "rows"):
        model.predict(x[0])
    with refused("not-finite", "rows"):
        model.predict(x * np.nan)


@pytest.mark.parametrize("labels", [[-10, -1, 0, 10], ["01", "1"], ["-1", "unknown"]])
def test_predictions_are_the_labels_of_the_table(labels, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat([*"ab"], 60), "x": rng.normal(size=120), "y": np.resize(labels, 120)})
    frame["x"] += 8.0 * (frame["y"] == labels[-1])
    data = drfl.ClientData.from_frame(frame, group="site", target="y")
    model, _ = compared(tmp_path, data, drfl.models.linear((1,), len(labels)))
    assert sorted(model.classes_.tolist()) == sorted(labels)
    predicted = model.predict(frame[["x"]])
    assert {*predicted.tolist()} <= {*labels}
    assert len(labels) > 2 or (predicted == frame["y"]).all()


@pytest.mark.long
def test_card_of_labels_and_missing_values(tmp_path):
    columns = (
        Column("crp", "number", missing=("",)),
        Column("stage", "category", missing=("",), levels=("I", "II", "III")),
        Column("sex", "yes/no", levels=("f", "m"), role="sensitive"),
        Column("site", "text", role="client"),
        Column("ill", "yes/no", levels=("no", "yes"), role="target"),
        Column("sepsis", "yes/no", levels=("no", "yes"), role="target"),
    )
    frame = table()
    frame["sepsis"], frame["sex"] = frame["ill"], "f"
    frame.loc[:9, "stage"] = None
    frame = frame[[column.name for column in columns]]
    data = drfl.ClientData.from_frame(frame, schema=TableSchema(columns, "multi-label"))
    model, _ = compared(tmp_path / "a", data, drfl.models.linear((5,), 2), loss=nn.BCEWithLogitsLoss())
    encoded = model.encode(frame.head(10))
    assert encoded[:, 2:].tolist() == [[0.0, 0.0, 1.0]] * 10  # stage_II, stage_III, and the indicator
    found = card(model)
    assert found["Intended use"][0] == "Multi-label of ill, sepsis from crp, stage."
    missing = [line for line in found["Training data"] if line.startswith("Missing")]
    assert [("mean" in line, "crp" in line, "stage" in line) for line in missing] == [
        (True, True, False),
        (False, False, True),
    ]
    assert "sex" in found["Factors"][0]
    plain = frame[["crp", "site"]].dropna()
    plain = plain.assign(a=(plain["crp"] > 5) * 1.0, b=(plain["crp"] > 3) * 1.0, c=1.0)
    data = drfl.ClientData.from_frame(plain, group="site", target=["a", "b", "c"])
    model, _ = compared(tmp_path / "b", data, drfl.models.linear((1,), 3), loss=nn.BCEWithLogitsLoss())
    assert card(model)["Intended use"][0] == "Multi-label of a, b, c from crp."


def test_code_named_in_a_file_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "import torch\nopen('ran', 'w').close()\nclass Net(torch.nn.Linear):\n    pass\ndef net(shape, classes):\n"
    Path("mine.py").write_text(text + "    return Net(*shape, classes)\n")
    own = ["--dataset", "heart-disease", "--model", "mine.py:net"]
    assert call(["run", *own, "--rounds", "2", "--out", "r"]) == 0

    def forget():
        """Forget the code that has been executed, as in a new process."""
        Path("ran").unlink()
        for name in [name for name in sys.modules if name.startswith("drfl_user_")]:
            del sys.modules[name]

    forget()
    path, x = "r/model.safetensors", [[63, 1, 145, 233, 1, 150, 0, 2.3, 1, 2]] * 5
    model = drfl.load_model(path)
    with refused("untrusted-code", "module"):
        model.predict(x)
    (digest,) = model.about["module"]["sha256"].values()
    with refused("untrusted-code", "module"):
        drfl.load_model(path, trusted=["0" * 64]).predict(x)
    assert not Path("ran").exists()
    named = drfl.load_model(path, "mine.py:net").predict(x).tolist()
    forget()  # fails unless the code was executed
    assert drfl.load_model(path, trusted=[digest]).predict(x).tolist() == named
    forget()
    Path("mine.py").write_text(text + "    return Net(*shape, classes)  # changed\n")
    with refused("untrusted-code", "model"):
        drfl.load_model(path, trusted=[digest])


def test_file_with_only_a_digest_requires_its_schema(tmp_path):
    import json

    from safetensors.torch import save_file

    frame = table()
    whole, _ = compared(tmp_path / "r", drfl.ClientData.from_frame(frame, schema=SCHEMA), drfl.models.linear((7,), 2))
    about = dict(whole.about)
    about["preparation"] = {"standardisation": about["preparation"]["standardisation"]}
    save_file(whole.weights, tmp_path / "a.safetensors", {"drfl": json.dumps(about)})
    with refused("needs-schema", "schema"):
        drfl.load_model(tmp_path / "a.safetensors").predict(frame)
    with refused("schema-differs", "schema"):
        drfl.load_model(tmp_path / "a.safetensors", schema=TableSchema(SCHEMA.columns))
    SCHEMA.write(tmp_path / "s.toml")
    for schema in (SCHEMA, tmp_path / "s.toml"):
        model = drfl.load_model(tmp_path / "a.safetensors", schema=schema)
        assert model.predict_proba(frame).tolist() == whole.predict_proba(frame).tolist()


@pytest.mark.parametrize("options", [(), ("--missing", "")])
def test_truth_values_of_the_training_file_match_other_spellings(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for site in "ac":
        truths = rng.integers(0, 2, 40).astype(bool)
        frame = pd.DataFrame({"dose": rng.normal(size=40), "flag": np.where(truths, "TRUE", "FALSE"), "ill": truths})
        # One site has a word next to the truth values, or a blank cell.
        frame.loc[[3] if site == "c" else [], "flag"] = "" if options else "unknown"
        frame.to_csv(f"{site}.csv", index=False)
    files = [part for site in "ac" for part in ("--data", f"{site}.csv")]
    assert call(["run", *files, "--target", "ill", "--rounds", "2", "--out", "r", *options]) == 0
    model = drfl.load_model("r/model.safetensors")
    for site in "ac":
        assert call(["predict", "r", f"{site}.csv", "--out", f"{site}.p.csv"]) == 0
        predictions = pd.read_csv(f"{site}.p.csv")["prediction"].astype(str).tolist()
        # pandas reads the column as truth values or as texts.
        for form in ({}, {"dtype": str}):
            frame = pd.read_csv(f"{site}.csv", keep_default_na=False, na_values=[""], **form)
            assert [*map(str, model.predict(frame))] == predictions


class Tied(torch.nn.Module):
    """Two layers with the same weight, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (torch.nn.Linear(4, 4) for _ in range(3))
        self.second.weight = self.first.weight
        self.last.weight.requires_grad_(False)

    def forward(self, x):
        return self.last(self.second(self.first(x).tanh()))[:, :2]


@pytest.mark.parametrize("algorithm", [drfl.LocalOnly(), drfl.Ditto(m=2), drfl.FedRep(m=2), drfl.FineTuned(m=2)])
def test_run_stores_the_own_models_of_its_clients(tmp_path, caplog, algorithm):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    data = drfl.ClientData.from_arrays({"a/b": (x, (x[:, 0] > 0).long()), "south": (x, (x[:, 1] > 0).long())})
    algorithms = {"own": algorithm, "one": drfl.FedAvg(m=2)}
    drfl.compare(algorithms, data, drfl.Task(Tied()), rounds=3, seeds=1, out=tmp_path / "c", progress=None)
    caplog.clear()
    drfl.load_model(tmp_path / "c" / "one-seed0")
    assert not caplog.records
    run = tmp_path / "c" / "own-seed0"
    drfl.load_model(run)
    assert [record.msg.code for record in caplog.records] == ["no-personal-models"]
    tests = pd.read_csv(run / "clients.csv")
    for i, client in enumerate(data.names):
        logits = drfl.load_model(run, Tied(), client=client).to_torch()(data.test_inputs[data.test[i]])
        targets = data.test_targets[data.test[i]]
        assert (logits.argmax(1) == targets).double().mean() == pytest.approx(tests["accuracy"][i])
        assert torch.nn.functional.cross_entropy(logits, targets).item() == pytest.approx(tests["loss"][i], rel=1e-4)
    with refused("unknown-name", "client", "south"):
        drfl.load_model(run, client="sout")
    with refused("no-personal-models", "client", "south", "Fit with"):
        drfl.load_model(tmp_path / "c" / "one-seed0", client="south")
    (run / "personal.safetensors").unlink()
    with refused("no-personal-models", "client", "south", "write_into"):
        drfl.load_model(run, client="south")


class Slashed(torch.nn.Module):
    """Layers whose names contain slashes and percent signs."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleDict({"a/b": torch.nn.Linear(4, 4), "c%2F": torch.nn.Linear(4, 2)})

    def forward(self, x):
        return self.layers["c%2F"](self.layers["a/b"](x).tanh())


def test_own_models_of_layers_with_slashes_belong_to_their_clients(tmp_path):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    data = drfl.ClientData.from_arrays({"a": (x, (x[:, 0] > 0).long()), "a/b": (x, (x[:, 1] > 0).long())})
    algorithms = {"own": drfl.LocalOnly()}
    drfl.compare(algorithms, data, drfl.Task(Slashed()), rounds=3, seeds=1, out=tmp_path / "c", progress=None)
    tests = pd.read_csv(tmp_path / "c" / "own-seed0" / "clients.csv")
    for i, client in enumerate(data.names):
        logits = drfl.load_model(tmp_path / "c", Slashed(), client=client).to_torch()(data.test_inputs[data.test[i]])
        loss = torch.nn.functional.cross_entropy(logits, data.test_targets[data.test[i]])
        assert loss.item() == pytest.approx(tests["loss"][i], rel=1e-4)


def test_own_models_predict_at_the_threshold_of_their_run(tmp_path):
    frame = table().dropna()
    data = drfl.ClientData.from_frame(frame.drop(columns=["seen", "note"]), group="site", target="ill")
    task = drfl.Task(drfl.models.linear(tuple(data.inputs.shape[1:]), 2), score="sensitivity")
    drfl.compare(
        {"own": drfl.LocalOnly(), "one": drfl.FedAvg(m=3)}, data.with_validation(0.3), task, rounds=3, seeds=1,
        out=tmp_path / "c", progress=None,
    )  # fmt: skip
    own = drfl.load_model(tmp_path / "c" / "own-seed0", client="north")
    stored = json.loads((tmp_path / "c" / "own-seed0" / "summary.json").read_text())["threshold"]
    assert own.threshold.probability == pytest.approx(stored["probability"])
    assert own.threshold.chosen_on == "validation"
    # Results of own models are not those of a global model.
    for name in ("model", "model-last"):
        path = f"own-seed0/{name}.safetensors"
        assert "metrics" not in drfl.load_model(tmp_path / "c" / path).about
    assert "metrics" in drfl.load_model(tmp_path / "c" / "one-seed0" / "model-last.safetensors").about


@pytest.mark.parametrize(("limit", "value"), [("MOST_BYTES", 79), ("MOST_TENSORS", 3)])
def test_run_does_not_store_own_models_that_are_too_large(limit, value, tmp_path, monkeypatch):
    monkeypatch.setattr(f"drfl.experiments.run.artifacts.{limit}", value)
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    data = drfl.ClientData.from_arrays({"a": (x, (x[:, 0] > 0).long()), "b": (x, (x[:, 1] > 0).long())})
    task = drfl.Task(torch.nn.Linear(4, 2))  # 10 parameters in 2 tensors, so 80 bytes for two clients
    drfl.compare({"LocalOnly": drfl.LocalOnly()}, data, task, rounds=1, seeds=1, out=tmp_path / "c", progress=None)
    assert not (tmp_path / "c" / "LocalOnly-seed0" / "personal.safetensors").exists()
    with refused("no-personal-models", "client", "b", "MiB"):
        drfl.load_model(tmp_path / "c", client="b")
