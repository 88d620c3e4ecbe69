"""Run the Python blocks of the pages that no other test runs."""

from __future__ import annotations

import functools
import re

import numpy as np
import pandas as pd
import pytest
from tests.data.test_model import table
from tests.pages.test_pages import PRINTING
from tests.report.conftest import write_directory
from tests.support.refusals import refused
from tests.support.scripts import ROOT

import drfl
from drfl.experiments.fit.fitted import Fitted

DOCS = ROOT / "docs"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)

RUN_BY = {
    **dict.fromkeys((*PRINTING, "scale"), "test_pages.py"),
    "algorithms/client-side/fedbn": "test_client_side_page.py",
    "client-side": "test_client_side_page.py",
    "data": "test_pages.py",
    "data-sets": "here",
    "energy": "test_energy_page.py",
    "fit": "here",
    "index": "test_site.py",
    "library": "here",
    "report": "here",
    "use-model": "here",
    "problems": "tests/testing/test_problems.py",
    "contributing/add-an-algorithm": "test_recipes.py",
    "contributing/add-an-ambiguity-set": "test_recipes.py",
    "contributing/add-an-engine": "test_recipes.py",
    "reference/errors": "tests/core/test_messages.py",
}
"""Page → the test that runs its blocks."""


def blocks(page: str) -> list[str]:
    return BLOCK.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))


def test_every_page_with_code_is_tested():
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert {page for page in pages if blocks(page)} == set(RUN_BY)
    for page, where in RUN_BY.items():
        file = where.split(",")[0]
        if file != "here":
            text = (ROOT / file if "/" in file else ROOT / "tests" / "pages" / file).read_text(encoding="utf-8")
            assert page.split("/")[0] in text, f"{file} does not name {page}"


@pytest.mark.long
def test_examples_of_the_library_page_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, resumable = blocks("library")
    names: dict[str, object] = {}
    exec(first, names)
    exec(resumable, names)
    assert isinstance(result := names["result"], drfl.Result)
    assert result.rounds == 500
    exec(resumable, names)
    assert isinstance(again := names["result"], drfl.Result)
    assert again.model.equal(result.model)


@pytest.mark.long
def test_fit_examples_run_in_order(capsys):
    names: dict[str, object] = {}
    classes, numbers = blocks("fit")
    exec(classes.replace("budget=20", "budget=2"), names)
    assert isinstance(fitted := names["fitted"], Fitted)
    assert f"{fitted.chosen.name} because {fitted.reason}" in capsys.readouterr().out
    exec(numbers.replace("budget=20", "budget=2"), names)
    assert "worst MAE" in capsys.readouterr().out
    with refused("unsupported-metric", "rmse"):
        _ = names["fitted"].assessment  # pyright: ignore[reportAttributeAccessIssue]


def test_report_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, algorithm in (("fedavg", "FedAvg"), ("drfa", "DRFA")):
        write_directory(tmp_path / "runs", name, algorithm, clients=3, rounds=1)
    (code,) = blocks("report")
    exec(code, {})
    assert "FedAvg" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.long
def test_pixels_example_runs(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    record = np.zeros((10_000, 3073), np.uint8)
    record[:, 0] = np.arange(10_000) % 10
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        record.tofile(folder / f"{name}.bin")
    monkeypatch.setenv("DRFL_DATA", str(tmp_path))
    (code,) = blocks("data-sets")
    names: dict[str, object] = {"network": lambda batch: batch.flatten(1).mean(1)}
    exec(code, names)
    shape, dtype = code.split("# (")[1].split("\n")[0].rsplit("), ", 1)
    pixels = names["pixels"]
    assert (f"{tuple(pixels.inputs.shape)}", f"{pixels.inputs.dtype}") == (f"({shape})", dtype)  # pyright: ignore
    assert sum(map(len, names["features"])) == len(pixels.inputs)  # pyright: ignore


@pytest.mark.long
def test_trained_model_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    predicting, own_code, comparing = blocks("use-model")
    frame = table().dropna()[["income", "crp", "site", "ill"]]
    data = drfl.ClientData.from_frame(frame, group="site", target="ill")
    task = drfl.Task(drfl.models.linear((2,), 2))
    drfl.compare({"FedAvg": drfl.FedAvg(m=3)}, data, task, rounds=1, seeds=1, out="runs", progress=None)
    (tmp_path / "runs" / "FedAvg-seed0").rename(tmp_path / "runs" / "a")
    frame.to_csv("new.csv", index=False)
    code = "import drfl\n\ndef net(shape, classes):\n    return drfl.models.linear(shape, classes)\n"
    (tmp_path / "mine.py").write_text(code)
    names: dict[str, object] = {"drfl": drfl, "Net": lambda: drfl.models.linear((2,), 2)}
    exec(predicting, names)
    exec(own_code, names)
    model = names["model"]
    assert isinstance(model, drfl.data.Model)
    fed = drfl.Simulation(data, task)
    rows = range(1, len(frame) + 1)
    names["frame"] = pd.DataFrame({"row": rows, "probability": model.predict_proba(frame)[:, 1]})
    names |= {"fed": fed, "data": data, "task": task, "algorithms": {"FedAvg": drfl.FedAvg(m=3)}}
    names["result"] = drfl.run(drfl.FedAvg(m=3), fed, rounds=1, check_data=False)
    monkeypatch.setattr(drfl, "compare", functools.partial(drfl.compare, rounds=1, seeds=1, progress=None))
    exec(comparing, names)
