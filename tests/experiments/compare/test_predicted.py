"""Test predictions of other tools as rows of a comparison, on the same test rows as its runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest
from tests.data.test_model import table
from tests.support.refusals import check_refusal, refused

import drfl
from drfl.cli.app import call

OWN = ["--data", "t.csv", "--target", "ill", "--group", "site", "--rounds", "2", "--param", "lr=0.1",
       "--algorithms", "FedAvg,DRFA"]  # fmt: skip


@pytest.fixture
def frame(tmp_path, monkeypatch):
    """Return the rows of t.csv, which is in the working directory."""
    monkeypatch.chdir(tmp_path)
    frame = table().drop(columns=["note", "seen"]).dropna()
    frame.to_csv("t.csv", index=False)
    return frame


def rows(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


class Killed(BaseException):
    """End a comparison like a signal that cannot be handled, so that no results are written."""


def kill_after_one_run(monkeypatch, call):
    """Call a function that makes a comparison, and end it after its first run."""
    from drfl.experiments.compare import run_comparison

    def one_run(*args):
        yield next(iter(whole(*args)))
        raise Killed

    whole = run_comparison.compare
    with monkeypatch.context() as patch:
        patch.setattr(run_comparison, "compare", one_run)
        with pytest.raises(Killed):
            call()


@pytest.mark.long
def test_killed_comparison_resumes_with_its_predictions(frame, monkeypatch, capsys):
    good = pd.DataFrame({"row": range(1, len(frame) + 1), "client": frame["site"], "prediction": frame["ill"]})
    good.to_csv("p.csv", index=False)
    shared = ["compare", *OWN, "--seeds", "2", "--predictions", "p.csv", "--out"]
    assert call([*shared, "whole"]) == 0
    kill_after_one_run(monkeypatch, lambda: call([*shared, "c"]))
    assert not Path("c/summary.json").exists()
    Path("p.csv").unlink()
    assert call(["compare", "--resume", "--out", "c"]) == 0
    assert Path("c/compare.csv").read_bytes() == Path("whole/compare.csv").read_bytes()
    assert Path("c/predictions.safetensors").read_bytes() == Path("whole/predictions.safetensors").read_bytes()
    assert "predictions-removed" not in capsys.readouterr().err
    assert not Path("c/checkpoint").exists()


@pytest.mark.long
@pytest.mark.parametrize("damage", ["cut", "table", "size"])
def test_predictions_that_cannot_be_read_again_must_be_given(damage, frame, monkeypatch):
    from drfl.experiments.compare import predicted

    good = pd.DataFrame({"row": range(1, len(frame) + 1), "prediction": frame["ill"]})
    for name in ("p", "q"):
        good.to_csv(f"{name}.csv", index=False)
    shared = ["compare", *OWN, "--seeds", "1", "--out", "c", "--predictions", "p.csv", "--predictions", "q.csv"]
    if damage == "size":
        monkeypatch.setattr(predicted, "TEXT_LIMIT", 100)
    kill_after_one_run(monkeypatch, lambda: call(shared))
    path = Path("c/checkpoint/predictions.json")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "table":
        content = json.loads(path.read_text())
        content["predictions"]["p"]["row"].pop()
        path.write_text(json.dumps(content))
    refused_with = ("damaged-file", str(path)) if damage == "table" else ("missing-option", "predictions", "c")
    check_refusal(["compare", "--resume", "--out", "c"], *refused_with)
    if damage == "size":
        check_refusal(["compare", "--resume", "--out", "c", "--predictions", "p.csv"], *refused_with, "p, q")
    assert call([*shared, "--resume"]) == 0
    assert {row["algorithm"] for row in rows("c/compare.csv")} == {"FedAvg", "DRFA", "p", "q"}


@pytest.mark.long
def test_new_predictions_replace_those_of_the_same_name_in_python(frame, monkeypatch):
    data = drfl.ClientData.from_frame(frame.drop(columns="stage"), group="site", target="ill")
    task = drfl.Task(drfl.models.linear(data.shape, 2))
    right = pd.DataFrame({"row": range(1, len(frame) + 1), "prediction": frame["ill"].to_numpy()})
    wrong = right.assign(prediction=right["prediction"].map({"no": "yes", "yes": "no"}))

    def compare(**more):
        algorithms = {"A": drfl.FedAvg(m=3), "B": drfl.FedAvg(m=2)}
        return drfl.compare(algorithms, data, task, rounds=1, seeds=1, out="c", progress=None, **more)

    kill_after_one_run(monkeypatch, lambda: compare(predictions={"x": right, "y": right}))
    found = compare(resume=True, predictions={"y": wrong}).to_frame()
    assert found.set_index("algorithm")["worst_accuracy"][["x", "y"]].tolist() == [1, 0]


@pytest.mark.long
def test_own_predictions_get_the_row_of_the_model(frame, capsys):
    """Each seed's predictions come from its FedAvg model, so both rows must be equal."""
    shared = ["compare", *OWN, "--metric", "auc", "--seeds", "2", "--out", "c"]
    assert call(shared) == 0
    parts = []
    for seed in range(2):
        assert call(["predict", f"c/FedAvg-seed{seed}/model.safetensors", "t.csv", "--out", f"p{seed}.csv"]) == 0
        parts.append(pd.read_csv(f"p{seed}.csv").rename(columns={"site": "client"}).assign(seed=seed))
    pd.concat(parts).to_csv("other.csv", index=False)
    before = {path.name: path.read_bytes() for path in Path("c/DRFA-seed1").iterdir() if path.is_file()}
    # A finished comparison gets the row without another run, and a new comparison has the same table.
    assert call([*shared, "--resume", "--predictions", "other.csv"]) == 0
    assert {path.name: path.read_bytes() for path in Path("c/DRFA-seed1").iterdir() if path.is_file()} == before
    assert call([*shared[:-1], "d", "--predictions", "other.csv"]) == 0
    assert Path("c/compare.csv").read_bytes() == Path("d/compare.csv").read_bytes()
    found = rows("c/compare.csv")
    assert [(row["algorithm"], row["seed"]) for row in found[-2:]] == [("other", "0"), ("other", "1")]
    for own in found[:4]:
        other = found[4 + int(own["seed"])]
        same = own["algorithm"] == "FedAvg"
        for name in ("avg_accuracy", "worst_accuracy", "worst_accuracy_low", "worst_accuracy_high", "worst_auc"):
            assert not same or float(other[name]) == pytest.approx(float(own[name]), abs=1e-6)
    summary = json.loads(Path("c/summary.json").read_text())
    assert list(summary["algorithms"]) == ["FedAvg", "DRFA", "other"]
    assert "other" in Path("c/table.md").read_text()
    assert "other" in Path("c/report.html").read_text()
    assert "redrawn-test-rows" not in capsys.readouterr().err
    # without the option, the folder compares only the two algorithms
    assert call([*shared[:-2], "--resume", "--out", "c", "--seeds", "3"]) == 0
    assert {row["algorithm"] for row in rows("c/compare.csv")} == {"FedAvg", "DRFA"}


def test_python_accepts_data_frames_and_files(frame):
    data = drfl.ClientData.from_frame(frame.drop(columns="stage"), group="site", target="ill")
    task = drfl.Task(drfl.models.linear(data.shape, 2))
    right = pd.DataFrame({"row": range(1, len(frame) + 1), "prediction": frame["ill"].to_numpy()})
    right.to_csv("right.csv", index=False)
    algorithms = {"FedAvg": drfl.FedAvg(m=3), "DRFA": drfl.DRFA(m=3)}
    lines = []
    found = drfl.compare(algorithms, data, task, rounds=1, seeds=2, progress=lines.append,
                         predictions={"right": right, "=file": "right.csv"})  # fmt: skip
    assert found.to_frame()["worst_accuracy"].tolist()[-4:] == [1, 1, 1, 1]
    assert list(found.to_frame()["algorithm"].unique()) == ["FedAvg", "DRFA", "right", "=file"]
    assert list(found.differences().index) == ["DRFA", "right", "=file"]
    clients = found.to_clients()
    assert clients[clients["algorithm"] == "right"]["accuracy"].tolist() == [1] * 6
    assert "right" in found.to_markdown()
    assert "right" in found.to_latex(target="worst_accuracy=0.99")
    assert found.is_complete
    # the rows of the data are the same at both seeds, so there is no warning
    assert not any("test rows" in line and "right" in line for line in lines)


@pytest.mark.long
def test_one_set_of_predictions_for_several_splits_gives_a_warning(frame, capsys):
    pd.DataFrame({"row": range(1, len(frame) + 1), "prediction": frame["ill"]}).to_csv("p.csv", index=False)
    assert call(["compare", *OWN, "--seeds", "2", "--out", "c", "--predictions", "p.csv", "--json"]) == 0
    assert "p: the seeds" in capsys.readouterr().err


def test_wrong_predictions_are_refused_before_the_first_run(frame, capsys):
    good = pd.DataFrame({"row": range(1, len(frame) + 1), "prediction": frame["ill"]})
    Path("x").mkdir()
    for name, wrong in (
        ("missing-column", good.drop(columns="row")),
        ("missing-rows", good.iloc[:5]),
        ("missing-rows", good.assign(seed=0)),
        ("invalid-value", good.assign(prediction="maybe")),
    ):
        wrong.to_csv("p.csv", index=False)
        capsys.readouterr()
        assert call(["compare", *OWN, "--seeds", "2", "--out", "c", "--predictions", "p.csv", "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["error"]["code"] == name
        assert not Path("c").exists()
    for path in ("DRFA.csv", "x/p.csv", "p.csv"):
        good.to_csv(path, index=False)
    for given, code in ((["DRFA.csv"], "duplicate-name"), (["p.csv", "x/p.csv"], "duplicate-name"),
                        (["none.csv"], "file-not-found")):  # fmt: skip
        more = [word for path in given for word in ("--predictions", path)]
        capsys.readouterr()
        assert call(["compare", *OWN, "--seeds", "1", "--out", "c", *more, "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code
        assert not Path("c").exists()
    data = drfl.ClientData.from_frame(frame.drop(columns="stage"), group="site", target="ill")
    task = drfl.Task(drfl.models.linear(data.shape, 2))
    with refused("missing-column", "row"):
        drfl.compare({"A": drfl.FedAvg(m=3)}, data, task, rounds=1, seeds=1, predictions={"x": frame}, progress=None)


@pytest.mark.long
def test_other_table_formats_and_misspelt_columns(frame, capsys):
    half = pd.DataFrame({"row": range(1, len(frame) + 1), "probability": 0.25})
    half.to_csv("semicolons.csv", index=False, sep=";", decimal=",")
    half.to_parquet("typed.parquet")
    given = ["--predictions", "semicolons.csv", "--predictions", "typed.parquet"]
    assert call(["compare", *OWN, "--seeds", "1", "--out", "c", *given]) == 0
    first, second = [row for row in rows("c/compare.csv") if row["algorithm"] in ("semicolons", "typed")]
    assert {**first, "algorithm": "typed"} == second
    half.rename(columns={"row": "Row"}).to_csv("upper.csv", index=False)
    check_refusal(
        ["compare", *OWN, "--out", "d", "--predictions", "upper.csv"], "missing-column", "row", "upper", "Row"
    )


@pytest.mark.long
def test_missing_test_rows_of_another_seed_are_refused_before_the_first_run(frame):
    data = ["--data", "t.csv", "--target", "ill", "--group", "site"]
    assert call(["run", *data, "--rounds", "0", "--seed", "0", "--out", "r"]) == 0
    from drfl.report.test_rows import read

    tested = (read(Path("r/test-rows.safetensors")).rows + 1).tolist()
    pd.DataFrame({"row": tested, "probability": 0.5}).to_csv("p.csv", index=False)
    given = ["compare", *OWN, "--predictions", "p.csv", "--out", "c"]
    check_refusal([*given, "--seeds", "2"], "missing-rows", "row", "p")
    assert not Path("c").exists()
    assert call([*given, "--seeds", "1"]) == 0
