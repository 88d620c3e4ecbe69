"""Test that a comparison stores the predictions of other tools, and reports of its folder show the same rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tests.data.test_model import table
from tests.support.refusals import check_refusal, notices, quotes, refusal

import drfl
from drfl.cli.app import call
from drfl.experiments.compare.comparison_results import verdict_lines
from drfl.experiments.run.manifest import PREDICTIONS, read_manifest

SHARED = [
    *("compare", "--data", "t.csv", "--target", "ill", "--group", "site", "--rounds", "2", "--metric", "auc"),
    *("--algorithms", "FedAvg,DRFA"),
]
GIVEN = ["--predictions", "other.csv", "--predictions", "2nd.csv"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a folder with a table, two files of predictions, and a comparison with them at two seeds."""
    folder = tmp_path_factory.mktemp("made")
    rows = table().drop(columns=["note", "seen"]).dropna()
    score = ((rows["crp"] - rows["crp"].min()) / (rows["crp"].max() - rows["crp"].min())).round(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        rows.to_csv("t.csv", index=False)
        numbers = range(1, len(rows) + 1)
        pd.DataFrame({"row": numbers, "client": rows["site"], "probability": score}).to_csv("other.csv", index=False)
        halves = [
            pd.DataFrame({"row": numbers, "probability": 1 - score / (2 + seed), "seed": seed}) for seed in (0, 1)
        ]
        pd.concat(halves).to_csv("2nd.csv", index=False)
        assert call([*SHARED, "--seeds", "2", "--out", "c", *GIVEN, "--latex", "c.tex"]) == 0
    return folder


@pytest.fixture(autouse=True)
def place(made, monkeypatch, capsys):
    monkeypatch.chdir(made)
    capsys.readouterr()
    yield
    for path in made.iterdir():
        if path.name.startswith("new") and path.is_file():
            path.unlink()


@pytest.mark.long
def test_report_of_the_folder_equals_that_of_the_comparison(capsys):
    assert call(["report", "c", "--title", "c", "--out", "new.html", "--latex", "new.tex"]) == 0
    assert Path("new.html").read_bytes() == Path("c/report.html").read_bytes()
    assert Path("new.tex").read_bytes() == Path("c.tex").read_bytes()
    page = Path("new.html").read_text()
    assert "Predictions of other, 2nd" in page or "Predictions of other and 2nd" in page
    comparison = drfl.load_comparison("c")
    assert comparison.to_markdown() == Path("c/table.md").read_text()
    assert (
        comparison.to_frame().to_csv() == pd.read_csv("c/compare.csv", keep_default_na=False, na_values=[""]).to_csv()
    )
    assert [row.outcome.algorithm for row in comparison.predicted] == ["other", "other", "2nd", "2nd"]
    # predictions are not runs
    assert set(drfl.load_runs("c")["algorithm"]) == {"FedAvg", "DRFA"}
    lines = verdict_lines(comparison)
    assert lines
    capsys.readouterr()
    assert call([*SHARED, "--seeds", "2", "--out", "z/c", *GIVEN]) == 0
    printed = " ".join(capsys.readouterr().out.split())  # without the line breaks of a narrow terminal
    assert all(" ".join(line.split()) in printed for line in lines)


@pytest.mark.long
def test_pdf_has_the_rows():
    pytest.importorskip("typst")
    from tests.support.pdf_text import texts

    assert call(["report", "c", "--pdf", "new.pdf"]) == 0
    text = " ".join(texts(Path("new.pdf")))
    assert "Predictions of other" in text
    assert "2nd" in text


@pytest.mark.long
def test_assess_shows_stored_predictions_and_replaces_those_given_again(capsys):
    def rows(*more):
        assert call(["assess", "c", "--json", *more]) == 0
        return {run["run"]: run["worst"] for run in json.loads(capsys.readouterr().out)["runs"]}

    stored = rows()
    assert list(stored)[-4:] == ["other-seed0", "other-seed1", "2nd-seed0", "2nd-seed1"]
    given = rows("--predictions", "other.csv")
    assert list(given)[-4:] == ["2nd-seed0", "2nd-seed1", "other-seed0", "other-seed1"]
    assert given == stored
    assert list(rows("--measure", "accuracy")) == list(stored)


@pytest.mark.long
def test_extended_or_resumed_comparison_stores_the_same_as_an_uninterrupted_one():
    names = ("compare.csv", "table.md", PREDICTIONS, "report.html")
    assert call([*SHARED, "--seeds", "1", "--out", "x/c", *GIVEN[:2]]) == 0
    assert call([*SHARED, "--seeds", "2", "--out", "x/c", "--resume", *GIVEN]) == 0
    # reports contain times, which differ
    assert [Path("x/c", name).read_bytes() for name in names[:3]] == [
        Path("c", name).read_bytes() for name in names[:3]
    ]
    data = drfl.ClientData.from_frame(pd.read_csv("t.csv").drop(columns="stage"), group="site", target="ill")
    task = drfl.Task(drfl.models.linear(data.shape, 2))
    algorithms, frame = {"FedAvg": drfl.FedAvg(m=3), "DRFA": drfl.DRFA(m=3)}, pd.read_csv("other.csv")

    def compare(out, **more):
        more = {"progress": None, "predictions": {"a tool": frame}, **more}
        return drfl.compare(algorithms, data, task, rounds=1, seeds=2, out=out, **more)

    whole = compare("x/whole")
    part = compare("x/part", progress=lambda line: os.kill(os.getpid(), signal.SIGINT) if "seed 0" in line else None)
    assert not part.is_complete
    assert call(["report", "x/part", "--out", "new-part.html"]) == 0
    assert "a tool" in Path("new-part.html").read_text()
    compare("x/part", resume=True)
    assert Path("x/part", PREDICTIONS).read_bytes() == Path("x/whole", PREDICTIONS).read_bytes()
    again = compare("x/part", resume=True, predictions=None)
    assert again.to_markdown() == whole.to_markdown()


@pytest.mark.long
def test_without_the_option_an_extension_removes_the_rows():
    assert call([*SHARED, "--seeds", "1", "--out", "y", *GIVEN[:2]]) == 0
    assert Path("y", PREDICTIONS).is_file()
    found = notices([*SHARED, "--seeds", "2", "--out", "y", "--resume"])
    (removed,) = [notice for notice in found if notice.code == "predictions-removed"]
    assert removed.field == "predictions"
    assert quotes(removed, "other")
    manifest = read_manifest(Path("y"))
    assert manifest is not None
    assert PREDICTIONS not in manifest.files
    assert not Path("y", PREDICTIONS).exists()
    assert call(["report", "y", "--out", "new-y.html"]) == 0
    assert "other" not in drfl.load_comparison("y").to_markdown()


def test_damaged_file_is_a_one_line_error():
    path = Path("c", PREDICTIONS)
    whole = path.read_bytes()
    with safe_open(path, framework="pt") as file:
        tensors, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    stored = json.loads(about["drfl"])["predictions"]
    wrong = [
        ({name: values for name, values in tensors.items() if name != "0.score"}, about),
        ({**tensors, "0.score": torch.zeros(2, dtype=torch.float64)}, about),
        ({**tensors, "0.score": tensors["0.score"].float()}, about),
        ({**tensors, "0.rows.starts": tensors["0.rows.starts"] - 1}, about),
        ({**tensors, "0.accuracy_count": tensors["0.accuracy_count"] + 1}, about),
        (tensors, {"drfl": json.dumps({"predictions": [{**stored[0], "seed": "no"}]})}),
        (tensors, {"drfl": json.dumps({"predictions": [{**stored[0], "data": "no"}]})}),
        (tensors, {"drfl": "no"}),
        (tensors, {}),
    ]
    try:
        for content, metadata in wrong:
            save_file(content, path, metadata)
            assert refusal(["report", "c", "--out", "new.html"]).code in ("damaged-file", "damaged-run")
        path.write_bytes(whole[:100])
        check_refusal(["report", "c", "--out", "new.html"], "damaged-file", str(path))
        assert not Path("new.html").exists()
    finally:
        path.write_bytes(whole)


def test_predictions_with_the_name_of_a_run_or_of_others_are_refused(made):
    for folder in ("new-a", "new-b"):
        Path(folder).mkdir(exist_ok=True)
        for name in ("tool.csv", "DRFA.csv"):
            shutil.copy("other.csv", Path(folder, name))
    twice = ["--predictions", "new-a/tool.csv", "--predictions", "new-b/tool.csv"]
    check_refusal(["assess", "c", *twice], "duplicate-name", "predictions", "tool")
    check_refusal(["assess", "c", "--predictions", "new-a/DRFA.csv"], "duplicate-name", "predictions", "DRFA")
