"""Test the output, files and refusals of ``drfl predict`` and ``drfl model``."""

from __future__ import annotations

import csv
import json
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from tests.data.test_model import SCHEMA
from tests.support.refusals import check_refusal, logged, notices, quotes, refused

import drfl
from drfl.cli.app import call


def read(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_kept_columns_do_not_change(trained):
    words = ["1.0", "1", "true", "TRUE", "2.", "007"]
    new = trained.iloc[:6].drop(columns=["ill"]).assign(site=words[::-1], bed=words, visit=[1.0, 2, 3, np.nan, 5, 6])
    new.to_csv("new.csv", index=False)
    new.to_parquet("new.parquet")
    for place, visits in (("new.csv", [*new["visit"]]), ("new.parquet", ["1", "2", "3", "", "5", "6"])):
        keep = ["--keep", "bed", "--keep", "visit"]
        assert call(["predict", "r/model.safetensors", place, *keep, "--out", f"{place}.p.csv"]) == 0
        found = read(f"{place}.p.csv")
        assert [row["bed"] for row in found] == words
        assert [row["site"] for row in found] == words[::-1]
        assert [row["visit"] for row in found] == ["" if x != x else str(x) for x in visits]


def test_each_row_gets_a_prediction(trained, capsys):
    new = trained.iloc[:5].drop(columns=["ill"]).assign(bed=["=1+1", "B", "C", "D", "E\nF"])
    new.to_csv("new.csv", index=False)
    assert call(["predict", "r/model.safetensors", "new.csv", "--keep", "bed", "--out", "p.csv"]) == 0
    assert "5 rows" in "".join(capsys.readouterr())
    found = read("p.csv")
    assert list(found[0]) == ["row", "site", "bed", "prediction", "probability_no", "probability_yes"]
    assert [row["row"] for row in found] == ["1", "2", "3", "4", "5"]
    assert [row["site"] for row in found] == new["site"].tolist()
    assert found[0]["bed"] == "'=1+1"
    model = drfl.load_model("r/model.safetensors")
    expected = model.predict_proba(new)
    assert [[float(row[f"probability_{name}"]) for name in ("no", "yes")] for row in found] == expected.tolist()
    assert [row["prediction"] for row in found] == model.predict(new).tolist()
    assert stat.S_IMODE(Path("p.csv").stat().st_mode) == 0o600
    before = Path("p.csv").read_bytes()
    assert call(["predict", "r/model.safetensors", "new.csv", "--out", "p.csv"]) == 2
    assert Path("p.csv").read_bytes() == before
    capsys.readouterr()
    new.assign(crp=["1", "2", "x", "4", "5"]).to_csv("new.csv", index=False)
    assert call(["predict", "r/model.safetensors", "new.csv", "--out", "q.csv"]) == 2
    assert "new.csv, line 4, column 'crp'" in capsys.readouterr().err
    assert not Path("q.csv").exists()


def test_cells_that_count_as_other_are_reported(trained):
    new = trained.iloc[:5].drop(columns=["ill"])
    new["stage"] = ["I", "II", "IV", "VI", "III"]
    new.to_csv("new.csv", index=False)
    arguments = ["predict", "r/model.safetensors", "new.csv", "--overwrite", "--out", "p.csv"]
    (notice,) = notices(arguments)
    assert (notice.code, notice.field) == ("unknown-level", "stage")
    assert quotes(notice, "new.csv", "'stage'", "2", "5")
    new.assign(stage=["I", "II", "II", "I", "III"]).to_csv("new.csv", index=False)
    assert notices(arguments) == []
    new.assign(stage=["I", "ii", "II", "I", "III"]).to_csv("new.csv", index=False)
    check_refusal(arguments, "similar-values", "stage", "line 3", "'ii'", "'II'")


def test_columns_in_another_unit_are_reported(trained):
    arguments = ["predict", "r", "new.csv", "--overwrite", "--out", "p.csv"]
    trained.to_csv("new.csv", index=False)
    assert notices(arguments) == []
    other = trained.assign(income=trained["income"] * 88.4)
    other.to_csv("new.csv", index=False)
    (notice,) = notices(arguments)
    assert (notice.code, notice.field) == ("unit-mismatch", "income")
    medians = other.groupby("site")["income"].median()
    assert quotes(notice, *(f"{medians[name]:.4g} at {name}" for name in medians.index))
    other.drop(columns="site").to_csv("new.csv", index=False)
    (notice,) = notices(arguments)
    assert quotes(notice, f"{other['income'].median():.4g} in new.csv")
    # a few rows may be unusual
    other.iloc[:5].to_csv("new.csv", index=False)
    assert notices(arguments) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["r/model.safetensors", "none.csv"], "file-not-found"),
        (["t.csv", "t.csv"], "damaged-file"),
        (["r/model.safetensors", "t.docx"], "unsupported-file"),
        (["r/model.safetensors", "t.csv", "--keep", "beds"], "unknown-name"),
        (["r/model.safetensors", "t.csv", "--out", "none/p.csv"], "folder-not-found"),
        (["r/model.safetensors", "t.csv", "--out", "p.xlsx"], "unsupported-file"),
        (["r/model.safetensors", "t.csv", "--out", "/proc/p.csv"], "cannot-write"),
        (["r/model.safetensors", "t.csv", "--schema", "other.toml"], "schema-differs"),
        (["images.safetensors", "t.csv"], "unsupported-data"),
    ],
)
def test_invalid_rows_are_refused(arguments, code, trained, capsys):
    type(SCHEMA)(SCHEMA.columns).write("other.toml")
    Path("t.docx").touch()
    if "images.safetensors" in arguments:
        assert call(["run", "--rounds", "1", "--out", "i"]) == 0
        os.rename("i/model.safetensors", "images.safetensors")
    capsys.readouterr()
    assert call(["predict", *arguments]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    with refused(code):
        from drfl.cli.model import predict_command

        path, place, *more = arguments
        options = dict(zip(more[::2], more[1::2], strict=True))
        schema = Path(options["--schema"]) if "--schema" in options else None
        keep = [options["--keep"]] if "--keep" in options else []
        predict_command(
            Path(path), Path(place), Path(options.get("--out", "p.csv")), schema, None, keep, drfl.ReadOptions(), False
        )


def test_files_that_a_command_reads_are_not_replaced(trained):
    SCHEMA.write("s.toml")
    before = {name: Path(name).read_bytes() for name in ("t.csv", "r/model.safetensors", "s.toml")}
    for name in before:
        for command in (
            ["predict", "r", "t.csv", "--schema", "s.toml", "--overwrite"],
            *([["model", "export", "r", "--overwrite"]] if name.startswith("r") else []),
            *([["data", "describe", ".", "--target", "ill", "--force"]] if name.endswith(".csv") else []),
        ):
            check_refusal([*command, "--out", f"./{name}"], "already-exists", name)
    assert {name: Path(name).read_bytes() for name in before} == before


def test_damaged_model_is_refused_in_one_line(trained):
    with safe_open("r/model.safetensors", framework="pt") as file:
        weights, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    name = next(iter(weights))
    save_file({**weights, name: weights[name] * float("nan")}, "nan.safetensors", about)
    document = json.loads(about["drfl"])
    save_file(weights, "classes.safetensors", {"drfl": json.dumps({**document, "classes": ["no"]})})
    run = ["run", "--data", "t.csv", "--schema", "s.toml", "--rounds", "1", "--out", "n", "--init-from"]
    for command in (["predict", "nan.safetensors", "t.csv"], ["model", "show", "nan.safetensors"],
                    [*run, "nan.safetensors"]):  # fmt: skip
        check_refusal(command, "damaged-file", "nan.safetensors", name)
    check_refusal(["predict", "classes.safetensors", "t.csv"], "damaged-file", "classes.safetensors", "1", "2")
    assert not Path("predictions.csv").exists()
    assert not Path("n").exists()


def test_misspelt_or_repeated_column_is_named(trained):
    trained.rename(columns={"crp": "CRP"}).to_csv("upper.csv", index=False)
    check_refusal(["predict", "r", "upper.csv"], "missing-column", "crp", "CRP")
    pd.concat([trained, trained["crp"]], axis=1).to_csv("twice.csv", index=False)
    check_refusal(["predict", "r", "twice.csv"], "duplicate-column", "crp")
    check_refusal(["run", "--data", "twice.csv", "--target", "ill", "--out", "n"], "duplicate-column", "crp")


def as_fit(*clients):
    """Turn the run "r" into a fit whose first client has a personal model, the opposite of the global one."""
    whole = drfl.load_model("r")
    about = {"drfl": json.dumps({**whole.about, "own_models": True})}
    save_file({name: value.clone() for name, value in whole.weights.items()}, "r/model.safetensors", about)
    Path("r/fit.json").write_text(json.dumps({"personal": {name: {} for name in clients}}))
    own = {f"{clients[0]}/{name}": -value.clone() for name, value in whole.weights.items()}
    save_file(own, "r/personal.safetensors")
    return whole


def test_personal_model_of_a_client_predicts_its_rows(trained, capsys, caplog):
    """Client "A/1" has a personal model, and "B" has none."""
    whole = as_fit("A/1", "B")
    new = trained.iloc[:8].drop(columns=["ill"])
    new.to_csv("new.csv", index=False)
    answers = {}
    for client, line in (
        (None, "8 rows"),
        ("A/1", "the personal model for client 'A/1'"),
        ("B", "the global model for client 'B'"),
    ):
        options = ["--client", client] if client else []
        caplog.clear()
        assert call(["predict", "r", "new.csv", "--out", f"{len(answers)}.csv", *options]) == 0
        assert [code for code, _ in logged(caplog)] == ([] if client else ["no-personal-models"])
        assert line in capsys.readouterr().out
        answers[client] = [float(row["probability_yes"]) for row in read(f"{len(answers)}.csv")]
    assert answers["B"] == answers[None]
    np.testing.assert_allclose(np.array(answers["A/1"]), 1 - np.array(answers[None]), atol=1e-6)
    assert drfl.load_model("r", client="A/1").predict_proba(new)[:, 1].tolist() == answers["A/1"]
    caplog.clear()
    assert call(["model", "show", "r"]) == 0
    assert [code for code, _ in logged(caplog)] == ["no-personal-models"]
    trained.to_csv("labelled.csv", index=False)
    assert call(["evaluate", "r", "labelled.csv"]) == 0
    assert "--personal" in capsys.readouterr().out
    accuracies = {}
    for client in ("A/1", "B"):
        assert call(["evaluate", "r", "labelled.csv", "--measure", "accuracy", "--client", client, "--json"]) == 0
        accuracies[client] = [row["accuracy"] for row in json.loads(capsys.readouterr().out)["clients"]]
    assert accuracies["A/1"] == pytest.approx([1 - value for value in accuracies["B"]])
    check_refusal(["evaluate", "r", "labelled.csv", "--client", "B", "--personal"], "conflicting-options", "personal")
    check_refusal(["predict", "r", "new.csv", "--client", "C"], "unknown-name", "client", "C")
    check_refusal(
        ["predict", "r/personal.safetensors", "new.csv"], "unsupported-file", "r/personal.safetensors", "client"
    )
    for damage in (lambda value: value[:1], lambda value: value / 0):
        damaged = {f"A/1/{name}": damage(value).clone() for name, value in whole.weights.items()}
        save_file(damaged, "r/personal.safetensors")
        check_refusal(["predict", "r", "new.csv", "--client", "A/1"], "damaged-file", "client", "A/1")
    Path("r/personal.safetensors").write_bytes(b"damaged")
    for option in (["--personal"], ["--client", "A/1"]):
        check_refusal(["predict", "r", "new.csv", *option], "damaged-file", "r/personal.safetensors")
    # The global model does not need this file.
    assert call(["predict", "r", "new.csv", "--out", "global.csv"]) == 0
    Path("r/personal.safetensors").unlink()
    check_refusal(["predict", "r", "new.csv", "--client", "A/1"], "no-personal-models", "client", "A/1")


def test_rows_of_several_clients_get_their_personal_models(trained):
    new = trained.drop(columns=["ill"])
    new.to_csv("new.csv", index=False)
    check_refusal(["predict", "r", "new.csv", "--personal"], "no-personal-models", "personal", "personalise")
    whole = as_fit("south", "west")
    expected = whole.predict_proba(new)[:, 1]
    expected = np.where(new["site"] == "south", 1 - expected, expected)
    (notice,) = notices(["predict", "r", "new.csv", "--personal"])
    assert notice.code == "no-personal-models"
    assert quotes(str(notice), "'north'", "'west'")
    np.testing.assert_allclose([float(row["probability_yes"]) for row in read("predictions.csv")], expected, atol=1e-6)
    new.drop(columns=["site"]).to_csv("one.csv", index=False)
    check_refusal(["predict", "r", "one.csv", "--personal", "--out", "p.csv"], "missing-column", "personal", "site")
    both = ["--personal", "--client", "south", "--out", "p.csv"]
    check_refusal(["predict", "r", "new.csv", *both], "conflicting-options", "personal", "client")
    assert not Path("p.csv").exists()


def test_card_shows_the_threshold_and_its_origin(trained, capsys):
    capsys.readouterr()
    assert call(["model", "show", "r/model.safetensors"]) == 0
    text = capsys.readouterr().out
    assert call(["model", "show", "r/model.safetensors", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    sections = [
        "Model details", "Intended use", "Factors", "Metrics", "Evaluation data", "Training data",
        "Quantitative analyses", "Ethical considerations", "Caveats and recommendations",
    ]  # fmt: skip
    assert list(found["card"]) == sections
    assert [line for line in text.splitlines() if not line.startswith(" ")] == sections
    cut = found["about"]["threshold"]
    assert cut["chosen_on"] == "validation"
    assert f"'yes' is predicted above a probability of {cut['probability']:.4g}" in text
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["threshold"]["probability"] == pytest.approx(cut["probability"])
    model = drfl.load_model("r/model.safetensors")
    positive = model.predict_proba(trained)[:, 1]
    assert (model.predict(trained) == "yes").tolist() == (positive > cut["probability"]).tolist()
    ill = trained["ill"] == "yes"
    assert 0 < np.mean(model.predict(trained)[ill] == "yes") <= 1


def test_card_of_a_model_with_little_metadata(trained, capsys):
    from safetensors.torch import save_file
    from tests.data.test_model_file import ABOUT

    whole = drfl.load_model("r/model.safetensors")
    about = {**ABOUT, "inputs": whole.about["inputs"]}
    del about["architecture"]
    save_file(whole.weights, "a.safetensors", {"drfl": json.dumps(about)})
    capsys.readouterr()
    assert call(["model", "show", "a.safetensors"]) == 0
    assert "no test results" in capsys.readouterr().out


def test_tables_in_other_formats(trained):
    pd.read_csv("t.csv").to_parquet("t.parquet")
    for name in ("t.csv", "t.parquet"):
        assert call(["predict", "r/model.safetensors", name, "--out", f"{name}.csv"]) == 0
    assert Path("t.csv.csv").read_bytes() == Path("t.parquet.csv").read_bytes()


def test_folder_with_one_model_needs_no_name(trained, capsys):
    shared = ["compare", "--data", "t.csv", "--schema", "s.toml", "--rounds", "1", "--seeds", "1", "--algorithms"]
    assert call([*shared, "FedAvg", "--out", "one"]) == 0
    capsys.readouterr()
    assert call(["model", "show", "one", "--json"]) == 0
    found = capsys.readouterr().out
    assert call(["model", "show", "one/FedAvg-seed0", "--json"]) == 0
    assert capsys.readouterr().out == found
    assert call([*shared, "FedAvg,DRFA", "--out", "two"]) == 0
    # the folder of a deployment has dated folders of runs and fits
    for name in ("runs/20260101T000000.000000", "fits/20260102T000000.000000"):
        shutil.copytree("r", Path("deployed") / name)
    run = ["run", "--data", "t.csv", "--schema", "s.toml", "--rounds", "1", "--out", "n", "--init-from"]
    for folder, names in (("two", ["DRFA-seed0", "FedAvg-seed0"]), ("deployed", ["fits", "runs"])):
        for command in (["model", "show"], ["model", "export"], ["predict"], run):
            table = ["t.csv"] if command == ["predict"] else []
            check_refusal([*command, folder, *table], "several-models", folder, *names)
    with refused("several-models", "two", "2"):
        drfl.load_model("two")
    assert not Path("n").exists()


def test_folder_without_a_model_is_refused(trained):
    Path("empty").mkdir()
    Path("begun/checkpoint").mkdir(parents=True)
    for command in (["model", "show"], ["model", "export"], ["predict"]):
        for folder in ("empty", "begun"):
            table = ["t.csv"] if command == ["predict"] else []
            check_refusal([*command, folder, *table], "no-model", folder)
