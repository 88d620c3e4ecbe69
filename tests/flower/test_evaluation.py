"""Test finished models evaluated at the sites, without training."""

import csv
import json

import msgspec
import pytest
import torch
from tests.support.refusals import refused

from drfl.assessment.assess_evaluation import client_intervals
from drfl.core.errors import DrflError
from drfl.data import ClientData
from drfl.data.model_file import model_bytes
from drfl.data.standardisation import Standardisation
from drfl.engine import Loop, Simulation
from drfl.experiments.assess.assess_runs import gain_of_models
from drfl.flower import server_app
from drfl.flower.client_app import Site, client_app
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import AnswerTests
from drfl.flower.records import read, write
from drfl.flower.server_tasks import carry_out
from drfl.task.models import MODELS
from drfl.task.task import Task

from .conftest import arrays, clients, grid_of
from .test_delivery import model, request
from .test_server_app import settings


def random_model(path, seed, standardisation=None, kind="linear"):
    torch.manual_seed(seed)
    module = MODELS[kind]((6,), 3)
    about = {"module": {"class": f"drfl.models.{kind}", "arguments": {"shape": [6], "classes": 3}}}
    about["inputs"] = {"shape": [6], "dtype": "float32"}
    about["task"] = {"kind": "classification", "loss": "cross-entropy", "score": "accuracy"}
    path.write_bytes(model_bytes(module.state_dict(), about, standardisation=standardisation))
    return module


def results_of(folder):
    return json.loads((folder / "evaluation.json").read_text())


def test_models_of_other_architectures_are_evaluated_as_in_a_simulation(tmp_path):
    scale = Standardisation(torch.full((6,), 1.5, dtype=torch.float64), torch.full((6,), 2.0, dtype=torch.float64))
    modules = random_model(tmp_path / "old.safetensors", 0), random_model(tmp_path / "new.safetensors", 1, scale, "mlp")
    place = request(tmp_path, "evaluate", tmp_path / "old.safetensors", tmp_path / "new.safetensors")
    path = settings(tmp_path, more='metrics = ["log_loss"]')
    carry_out(grid_of(), path, place)
    found = results_of(place)
    data = ClientData.from_arrays(*clients())
    for each, module, prepared in zip(found["models"], modules, (data, data.standardised(scale)), strict=True):
        fed = Simulation(prepared, Task(module, metrics=("log_loss",)), engine=Loop())
        evaluation = fed.evaluate(fed.w0)
        ends = client_intervals(evaluation, fed.measures[0])
        for i, row in enumerate(each["sites"]):
            assert (row["site"], row["samples"]) == ("abcd"[i], 15)
            own = [float(x[i]) for x in (evaluation.score, evaluation.loss, evaluation.others[0], *ends)]
            assert [row[x] for x in ("accuracy", "loss", "log_loss", "low", "high")] == pytest.approx(own, abs=1e-6)
        assert each["worst_accuracy"] == pytest.approx(float(evaluation.score.min()))
    with (place / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["site"]) for row in rows[3:5]] == [("old.safetensors", "d"), ("new.safetensors", "a")]
    assert int(rows[0]["accuracy_count"]) == round(15 * float(rows[0]["accuracy"]))


def test_two_models_are_compared_by_counts(tmp_path):
    modules = [random_model(tmp_path / f"{i}.safetensors", i) for i in range(2)]
    place = request(tmp_path, "evaluate", tmp_path / "0.safetensors", tmp_path / "1.safetensors")
    carry_out(grid_of(), settings(tmp_path), place)
    fed = Simulation(ClientData.from_arrays(*clients()), Task(modules[0]), engine=Loop())
    w = [torch.cat([p.detach().flatten() for p in module.parameters()]) for module in modules]
    gain = gain_of_models(fed, *w)
    (found,) = results_of(place)["gains"]
    assert (found["model"], found["over"]) == ("1.safetensors", "0.safetensors")
    for i, row in enumerate(found["sites"]):
        expected = [gain.values[i], gain.low[i], gain.high[i], gain.p_holm[i]]
        assert [row[x] for x in ("gain", "low", "high", "p_holm")] == pytest.approx(expected)
    assert found["worst"]["low"] == pytest.approx(gain.worst.low)
    right = [fed.row_scores(each).scores["accuracy"].view(4, 15).bool() for each in w]
    with (place / "paired.csv").open(newline="") as file:
        for i, row in enumerate(csv.DictReader(file)):
            a, b = right[0][i], right[1][i]
            counts = [int(x.sum()) for x in (a & b, b & ~a, a & ~b, ~a & ~b)]
            assert [int(row[x]) for x in ("both", "only_model", "only_over", "neither")] == counts


def binary(n, seed):
    x, _ = arrays(n, seed)
    return x, (x[:, 0] > seed).long()


def test_site_evaluates_its_own_score_column(tmp_path):
    train = {name: binary(20, seed) for seed, name in enumerate("abcd")}
    test = {name: binary(15, 10 + seed) for seed, name in enumerate("abcd")}
    # Site a's scores are confident and right on all rows. Site b's are unusable; c and d have none.
    perfect = test["a"][1].double() * 0.98 + 0.01
    sites = {
        name: Site(
            name,
            ClientData.from_arrays({name: train[name]}, {name: test[name]}),
            own_scores={"a": lambda: perfect, "b": lambda: perfect * 100}.get(name),
        )
        for name in "abcd"
    }
    grid = InProcessGrid(client_app(lambda c: sites[c.node_config["name"]]), [{"name": name} for name in "abcd"])
    (tmp_path / "m.safetensors").write_bytes(model(classes=2))
    place = request(tmp_path, "evaluate", tmp_path / "m.safetensors")
    carry_out(grid, settings(tmp_path, more='metrics = ["auc", "log_loss"]'), place)
    found = results_of(place)
    # The values of the site's table stay there.
    assert list(found["missing"]) == ["b"]
    assert "out-of-range" in found["missing"]["b"]
    assert "values are not in" not in found["missing"]["b"]
    assert [row["site"] for row in found["models"][0]["sites"]] == ["a", "c", "d"]
    (own,) = found["models"][1]["sites"]
    assert (own["site"], own["accuracy"], own["auc"]) == ("a", 1.0, 1.0 if test["a"][1].any() else "nan")
    assert own["log_loss"] == pytest.approx(-torch.tensor(0.99).log().item(), rel=1e-5)
    (gain,) = found["gains"]
    assert gain["sites"][0]["gain"] == pytest.approx(1 - found["models"][0]["sites"][0]["accuracy"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", 14),
        pytest.param("score", 0.95, marks=pytest.mark.long),
        ("sums", ((15.0, 16.0, 16.0, 0.0, 0.0),)),
        pytest.param("loss", float("nan"), marks=pytest.mark.long),
    ],
)
def test_impossible_counts_are_not_used(tmp_path, name, value):
    class Lying(InProcessGrid):
        def answer(self, message, context):
            reply = super().answer(message, context)
            if message.metadata.message_type == "query.tests" and context.node_config["name"] == "c":
                answer = read(reply.content, AnswerTests)
                lie = msgspec.structs.replace(answer.tests[0], **{name: value})
                changed = write(msgspec.structs.replace(answer, tests=(lie, *answer.tests[1:])))
                reply.content["message"] = changed["message"]
            return reply

    for i in range(2):
        random_model(tmp_path / f"{i}.safetensors", i)
    place = request(tmp_path, "evaluate", tmp_path / "0.safetensors", tmp_path / "1.safetensors")
    carry_out(grid_of(grid=Lying), settings(tmp_path), place)
    found = results_of(place)
    assert list(found["missing"]) == ["c"]
    assert [row["site"] for row in found["models"][0]["sites"]] == ["a", "b", "d"]


def test_unsuitable_models_are_refused_before_any_evaluation(tmp_path):
    random_model(tmp_path / "ok.safetensors", 0)
    (tmp_path / "two.safetensors").write_bytes(model(classes=2))
    (tmp_path / "nan.safetensors").write_bytes(model(float("inf")))
    (tmp_path / "mse.safetensors").write_bytes(model(task={"kind": "regression", "loss": "mse", "score": "mae"}))
    path, grid = settings(tmp_path), grid_of()
    for i, (names, code) in enumerate(
        [(["two"], "model-mismatch"), (["ok", "nan"], "not-finite"), (["ok", "mse"], "model-mismatch")]
    ):
        folder = tmp_path / str(i)
        folder.mkdir()
        with refused(code):
            carry_out(grid, path, request(folder, "evaluate", *(tmp_path / f"{n}.safetensors" for n in names)))
        assert [p.name for p in (folder / "evaluate").iterdir()] == ["request.toml"]


def test_no_usable_answer_gives_no_results(tmp_path):
    class Broken(InProcessGrid):
        def answer(self, message, context):
            reply = super().answer(message, context)
            if message.metadata.message_type == "query.tests":
                reply.content["message"]["fields"] = b"nonsense"
            return reply

    random_model(tmp_path / "ok.safetensors", 0)
    with refused("site-untested", kind=DrflError):
        carry_out(grid_of(grid=Broken), settings(tmp_path), request(tmp_path, "evaluate", tmp_path / "ok.safetensors"))


def test_model_of_a_run_gets_the_scores_of_the_run(tmp_path):
    path = settings(tmp_path)
    out = server_app.serve(grid_of(), path)
    place = request(tmp_path, "evaluate", out / "model.safetensors")
    carry_out(grid_of(), path, place)
    with (out / "clients.csv").open(newline="") as file:
        run = list(csv.DictReader(file))
    for row, site_row in zip(run, results_of(place)["models"][0]["sites"], strict=True):
        assert float(row["accuracy"]) == pytest.approx(site_row["accuracy"], abs=1e-6)
        assert float(row["accuracy_low"]) == pytest.approx(site_row["low"], abs=1e-6)


@pytest.mark.parametrize("text", ["", 'task = "train"\nmodels = ["a"]', 'task = "evaluate"\nmodels = []'])
def test_folder_without_a_request_is_refused(tmp_path, text):
    (tmp_path / "request.toml").write_text(text)
    with refused("damaged-file"):
        carry_out(grid_of(), settings(tmp_path), tmp_path)
