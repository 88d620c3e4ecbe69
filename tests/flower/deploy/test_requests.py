"""Test the commands that evaluate and deliver models without a SuperLink, and the commands at a site."""

import json
import shutil
import tomllib

import pytest
from tests.flower.test_delivery import model
from tests.support.refusals import check_refusal

import drfl
from drfl.cli.app import call
from drfl.data.model_store import ModelStore
from drfl.experiments.run.manifest import Manifest
from drfl.flower.deploy import flower_cli, runs

TIMES = "2026-11-26T10:00:00.000+00:00", "2026-11-27T10:00:00.000+00:00"


@pytest.fixture
def answered(monkeypatch):
    """Return the requests of the commands; each is answered with the files in ``answered.files``."""
    requests = []

    def submit(folder, wait=None, request=None):
        requests.append({"folder": request, **tomllib.loads((request / "request.toml").read_text())})
        for name, content in answer.files.items():
            (request / name).write_text(json.dumps(content))
        return "7"

    def answer():
        return requests

    answer.files = {}
    monkeypatch.setattr(flower_cli, "require_flower", lambda: None)
    monkeypatch.setattr(runs, "check_no_run", lambda folder: None)
    monkeypatch.setattr(runs, "submit", submit)
    monkeypatch.setattr(runs, "follow", lambda folder, number, show: runs.Status(runs.COMPLETED, ""))
    return answer


def site_row(name, accuracy, low, high):
    return {"site": name, "samples": 40, "accuracy": accuracy, "low": low, "high": high, "loss": 0.5}


RESULTS = {
    "measures": [{"name": "accuracy", "more_is_better": True, "percent": True, "rows": "binary"}],
    "models": [
        {"label": "old", "worst_accuracy": 0.7, "worst_interval": [0.5, 0.8], "sites": [site_row("a", 0.7, 0.5, 0.8)]},
        {
            "label": "new",
            "worst_accuracy": "nan",
            "worst_interval": None,
            "sites": [site_row("a", "nan", "nan", "nan")],
        },
    ],
    "gains": [{"model": "new", "over": "old", "worst": {"low": -0.1, "high": 0.2}, "better": ["a"], "worse": []}],
    "missing": {"b": "it is offline"},
}


def test_evaluation_prints_scores_intervals_and_missing_sites(copy, tmp_path, answered, capsys):
    paths = [tmp_path / "old.safetensors", tmp_path / "new.safetensors"]
    for i, path in enumerate(paths):
        path.write_bytes(model(float(i)))
    answered.files = {"evaluation.json": RESULTS}
    assert call(["deploy", "evaluate", str(copy), *map(str, paths)]) == 1  # b is missing
    (request,) = answered()
    assert (request["task"], request["models"]) == ("evaluate", [str(path.resolve()) for path in paths])
    assert request["folder"].parent == copy / "evaluations"
    printed = capsys.readouterr()
    assert all(text in printed.out for text in ("70.0 [50.0, 80.0]", "–", "-10.0", "+20.0", str(request["folder"])))
    assert "worst of 1 tested" in printed.out
    assert "b" in printed.err
    assert call(["deploy", "evaluate", str(copy), str(paths[0]), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["missing"] == {"b": "it is offline"}
    answered.files = {"evaluation.json": {**RESULTS, "missing": {}}}
    assert call(["deploy", "evaluate", str(copy), str(paths[0])]) == 0
    assert "worst site" in capsys.readouterr().out


def test_code_is_named_by_path_and_sent_by_path(copy, tmp_path, answered, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").write_bytes(model())
    (tmp_path / "net.py").write_text("")
    answered.files = {"evaluation.json": {**RESULTS, "missing": {}}}
    assert call(["deploy", "evaluate", str(copy), "m", "--model", "net.py:net"]) == 0
    (request,) = answered()
    assert request["code"] == [f"{(tmp_path / 'net.py').resolve()}:net"]
    check_refusal(["deploy", "evaluate", str(copy), "m", "--model", "other.py:net"], "invalid-reference", "--model")
    check_refusal(["deploy", "evaluate", str(copy), "m", "--model", "net"], "invalid-reference", "model")
    assert len(list((copy / "evaluations").iterdir())) == 1


def test_other_files_are_refused_before_submitting(copy, tmp_path, answered):
    (tmp_path / "no.safetensors").write_bytes(b"no model")
    check_refusal(["deploy", "evaluate", str(copy), str(tmp_path / "no.safetensors")], "damaged-file")
    check_refusal(["deploy", "evaluate", str(copy), str(tmp_path / "missing")], "file-not-found")
    (tmp_path / "m").write_bytes(model())
    check_refusal(["deploy", "evaluate", str(copy), *[str(tmp_path / "m")] * 2], "duplicate-name", "MODEL")
    assert answered() == []
    assert not (copy / "evaluations").exists()


def finished_run(root):
    run = root / "runs/20261127T090000.000000"
    run.mkdir(parents=True, exist_ok=True)
    (run / "model.safetensors").write_bytes(model())
    (run / "summary.json").write_text('{"stopped": "rounds"}')
    Manifest(kind="run", drfl="0").write(run)
    return run


@pytest.mark.parametrize(("outcome", "code"), [("received", 0), ("it is offline", 1)])
def test_delivery_sends_the_runs_model_by_default(copy, tmp_path, answered, capsys, outcome, code):
    run = finished_run(copy)
    answered.files = {"delivery.json": {"sites": {"a": "received", "b": outcome}}}
    assert call(["deploy", "deliver", str(copy)]) == code
    assert f"b: {outcome}" in capsys.readouterr().out
    (tmp_path / "other").write_bytes(model(1.0))
    assert call(["deploy", "deliver", str(copy), str(tmp_path / "other")]) == code
    first, second = (request["models"] for request in answered())
    assert (first, second) == (
        [str((run / "model.safetensors").resolve())],
        [str((tmp_path / "other").resolve())],
    )


def test_delivery_needs_a_run_that_has_ended(copy, answered):
    check_refusal(["deploy", "deliver", str(copy)], "no-model", "MODEL", f"drfl deploy run {copy}")
    for name in ("20261127T090000.000000", "20261128T090000.000000"):
        (copy / "runs" / name / "checkpoint").mkdir(parents=True)
    assert not (copy / "deliveries").exists()
    (copy / "runs/20261128T090000.000000/model.safetensors").write_bytes(model())
    check_refusal(["deploy", "deliver", str(copy)], "no-model", "MODEL")
    finished_run(copy)
    answered.files = {"delivery.json": {"sites": {"a": "received"}}}
    assert call(["deploy", "deliver", str(copy)]) == 0
    assert "20261127T090000.000000" in answered()[0]["models"][0]


@pytest.mark.parametrize("policy", ["", '[policy]\nmodels = "received"\n'])
def test_site_loads_its_current_model_and_rolls_back(tmp_path, capsys, policy):
    site = tmp_path / "site"
    site.mkdir()
    (site / "site.toml").write_text(f'name = "a"\n[data]\nnpz = "data.npz"\n{policy}')
    check_refusal(["model", "rollback", str(site)], "no-model")
    store = ModelStore(site / ("received" if policy else "models"))
    for time, value in zip(TIMES, (1.0, 2.0), strict=True):
        store.add(model(value), time)
    assert float(drfl.load_model(site).weights["1.weight"][0, 0]) == 2.0
    assert call(["model", "rollback", str(site)]) == 0
    assert TIMES[0] in capsys.readouterr().out.splitlines()[0]
    assert float(drfl.load_model(site).weights["1.weight"][0, 0]) == 1.0
    assert float(drfl.load_model(store.folder).weights["1.weight"][0, 0]) == 1.0
    shutil.rmtree(store.folder)
    check_refusal(["model", "show", str(site)], "no-model")
    check_refusal(["model", "rollback", str(tmp_path)], "file-not-found")
