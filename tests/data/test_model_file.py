"""Test that model files load strictly into the user's module, whose outputs are then the evaluated ones."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.support.marks import long_except
from tests.support.refusals import refused
from tests.task.test_models_as_they_come import LoRA
from torch import nn

import drfl
from drfl.data.model_file import KEY


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(self.b(torch.tanh(self.a(x))))


class Buffers(nn.Module):
    """One buffer that is saved, and one that is not."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)
        self.register_buffer("place", torch.linspace(0, 1, 4))
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0, 1.0]), persistent=False)

    def forward(self, x):
        return self.out((x + self.place) * self.mask)


def frozen():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    return model


def lora():
    return nn.Sequential(LoRA(nn.Linear(4, 6), 2), nn.ReLU(), LoRA(nn.Linear(6, 2), 1))


def batch_norm():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[1].running_mean.uniform_()
    return model.eval()


def nested():
    inner = nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4))
    return nn.Sequential(nn.ModuleDict({"inner": inner})["inner"], nn.Dropout(0.5), nn.Linear(4, 2))


def images():
    model = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 2))
    return model.to(memory_format=torch.channels_last)


MODELS = {
    "tied": Tied,
    "buffers": Buffers,
    "frozen": frozen,
    "LoRA": lora,
    "BatchNorm": batch_norm,
    "nested": nested,
    "images": images,
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))),
    "compiled": lambda: torch.compile(nn.Linear(4, 2), backend="eager"),
    "a compiled part": lambda: nn.Sequential(torch.compile(nn.Linear(4, 3), backend="eager"), nn.Linear(3, 2)),
    "float64": lambda: nn.Linear(4, 2).double(),
}


def made(kind, seed):
    with drfl.Key(seed).torch_scope():
        return MODELS[kind]()


def saved(path, model, standardise=False):
    """Return the data, the task and the model (d,) of a comparison's model file."""
    generator = torch.Generator().manual_seed(1)
    x = {name: torch.randn(30, 4, generator=generator) * torch.tensor([1, 9, 0.1, 1]) + 3 for name in "abc"}
    data = drfl.ClientData.from_arrays(
        {name: (rows, (rows[:, 0] > 3).long()) for name, rows in x.items()}, standardise=standardise
    )
    task = drfl.Task(model)
    algorithm = drfl.FedAvg(m=3, local=drfl.LocalSGD(steps=3, lr=0.1))
    drfl.compare({"FedAvg": algorithm}, data, task, rounds=2, seeds=1, out=path, progress=None, returned="last")
    result = drfl.run(algorithm, drfl.Simulation(data, task), rounds=2, returned="last", check_data=False)
    return data, task, result.model


@pytest.mark.parametrize("kind", long_except(["LoRA", "tied", "BatchNorm"], MODELS))
def test_fresh_module_gives_the_evaluated_outputs(kind, tmp_path):
    model = made(kind, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data, task, w = saved(tmp_path / "r", model)
    path, fresh = tmp_path / "r/FedAvg-seed0/model.safetensors", made(kind, 1)
    inside = getattr(fresh, "_orig_mod", fresh)
    if "compiled" not in kind:
        inside.load_state_dict(load_file(path), strict=True)
    assert not any("_orig_mod" in name for name in load_file(path))
    served = drfl.load_model(path, fresh).to_torch()
    assert served is fresh
    x = data.test_inputs.to(task.layout.dtype)
    with torch.no_grad():
        # Keep the module's strides, because other strides may change the last bit of a convolution.
        own, views = dict(task.model.named_parameters()), task.layout.views(w)
        parameters = {name: torch.empty_like(own[name]).copy_(view) for name, view in views.items()}
        assert torch.equal(served.eval()(x), task.outputs(parameters, x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_raw_rows_are_prepared_as_in_training(tmp_path):
    model = nn.Linear(4, 2)
    data, task, w = saved(tmp_path / "r", model, standardise=True)
    found = drfl.load_model(tmp_path / "r/FedAvg-seed0/model.safetensors")
    assert found.weights.keys() == {"weight", "bias"}
    assert torch.equal(found.standardisation.scale, data.standardisation.scale)
    assert torch.equal(found.standardisation.mean, data.standardisation.mean)
    raw = (data.inputs.double() * data.standardisation.scale + data.standardisation.mean).float()
    served = found.to_torch()
    expected = task.outputs(task.layout.views(w), data.standardisation.apply(raw))
    assert torch.equal(served(raw), expected)
    assert found.about["preparation"]["standardisation"]["mean"] == data.standardisation.mean.tolist()


def test_metadata_contain_the_known_facts(tmp_path):
    saved(tmp_path / "r", Tied())
    about = drfl.load_model(tmp_path / "r/FedAvg-seed0/model.safetensors").about
    assert about["format_version"] == 1
    assert about["module"]["class"].endswith("test_model_file.Tied")
    assert len(about["module"]["sha256"]) == 64
    loss = "torch.nn.modules.loss.CrossEntropyLoss"
    assert about["task"] == {"kind": "classification", "loss": loss, "score": "accuracy", "outputs": 2}
    assert about["inputs"] == {"shape": [4], "dtype": "float32"}
    assert len(about["training"].pop("test_rows")) == 32
    assert about["training"] | {"rows": 0} == {
        "algorithm": "FedAvg", "rounds": 2, "seed": 0, "data": "own data", "clients": 3, "rows": 0,
    }  # fmt: skip
    assert about["metrics"]["worst_accuracy_low"] <= about["metrics"]["worst_accuracy"]
    assert about["metrics"]["worst_accuracy"] <= about["metrics"]["worst_accuracy_high"]
    assert (about["metrics"]["clients"], about["metrics"]["undefined"]) == (3, 0)
    assert about["preparation"] == {}
    assert len(about["run"]) == 32
    with safe_open(tmp_path / "r/FedAvg-seed0/model.safetensors", "pt") as file:
        assert file.metadata().keys() == {KEY}


LINEAR = {"class": "torch.nn.Linear", "arguments": {"in_features": 4, "out_features": 2, "bias": True}}
ABOUT = {
    "format_version": 1,
    "architecture": LINEAR,
    "task": {"kind": "classification"},
    "inputs": {"shape": [4], "dtype": "float32"},
    "preparation": {},
}


def written(path, **changes):
    """Write a file with changes in its document, and return its path."""
    save_file({"weight": torch.ones(2, 4), "bias": torch.ones(2)}, path, {KEY: json.dumps(ABOUT | changes)})
    return path


@pytest.mark.parametrize(
    "changes", [{"format_version": 2}, {"format_version": "1"}, {"preparation": {"imputation": {}}}]
)
def test_file_of_a_newer_format_is_refused(changes, tmp_path):
    drfl.load_model(written(tmp_path / "a.safetensors"))
    with refused("unsupported-file"):
        drfl.load_model(written(tmp_path / "b.safetensors", **changes))


def scaled(mean, scale):
    return {"preparation": {"standardisation": {"mean": mean, "scale": scale}}}


def layers(**arguments):
    return {"architecture": {"class": "torch.nn.Linear", "arguments": LINEAR["arguments"] | arguments}}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"preparation": None}, "damaged-file"),
        ({"preparation": {"standardisation": {"mean": [0.0]}}}, "damaged-file"),
        (scaled(["x"], [1.0]), "damaged-file"),
        (scaled([0.0], [1.0]), "damaged-file"),
        (scaled([0.0] * 4, [0.0] * 4), "invalid-statistics"),
        (scaled([float("nan")] * 4, [1.0] * 4), "invalid-statistics"),
        (scaled([0.0], [1.0, 2.0]), "wrong-type"),
        ({"inputs": {"shape": [-4], "dtype": "float32"}}, "damaged-file"),
        ({"inputs": {"shape": [2**40], "dtype": "float32"}}, "damaged-file"),
        ({"inputs": {"shape": [4.0], "dtype": "float32"}}, "damaged-file"),
        ({"inputs": {"shape": [4], "dtype": "object"}}, "damaged-file"),
        ({"inputs": {"shape": [5], "dtype": "float32"}}, "damaged-model"),
        ({"task": {"kind": "clustering"}}, "damaged-file"),
        ({"task": None}, "damaged-file"),
        ({"columns": ["a", "a", "b", "c"]}, "damaged-file"),
        ({"columns": ["a"]}, "damaged-file"),
        ({"classes": [1, 2]}, "damaged-file"),
        ({"threshold": {"log_odds": float("inf"), "chosen_on": None}}, "damaged-file"),
        ({"threshold": 0.5}, "damaged-file"),
        ({"schema": "../x"}, "damaged-file"),
        ({"preparation": {"schema": {"columns": {"a": {"type": "number"}}}}}, "missing-option"),
        ({"preparation": {"schema": 3}}, "damaged-file"),
        ({"metrics": []}, "damaged-file"),
        ({"architecture": {"class": "os.system", "arguments": {"command": "true"}}}, "damaged-model"),
        ({"architecture": {"class": "torch.nn.Sequential", "layers": {"a.b": LINEAR}}}, "damaged-model"),
        ({"architecture": {"class": "torch.nn.Sequential", "layers": {"0": 3}}}, "damaged-model"),
        ({"architecture": []}, "damaged-model"),
        (layers(in_features=2**60), "damaged-model"),
        (layers(in_features=2**30), "damaged-model"),
        (layers(out_features=3), "weights-mismatch"),
        (layers(device="cuda"), "damaged-model"),
        (layers(in_features={"x": 1}), "damaged-model"),
    ],
)
def test_damaged_document_is_refused(changes, code, tmp_path):
    with refused(code):
        drfl.load_model(written(tmp_path / "a.safetensors", **changes))


def test_layer_that_would_fill_the_memory_is_refused(tmp_path):
    pad = {"class": "torch.nn.ZeroPad2d", "arguments": {"padding": [10**6, 10**6, 10**6, 10**6]}}
    hostile = {"class": "torch.nn.Sequential", "layers": {"0": pad, "1": {"class": "torch.nn.Flatten"}}}
    document = ABOUT | {"architecture": hostile, "inputs": {"shape": [1, 4, 4], "dtype": "float32"}}
    save_file({}, tmp_path / "a.safetensors", {KEY: json.dumps(document)})
    with refused("damaged-model"):
        drfl.load_model(tmp_path / "a.safetensors")


def test_foreign_files_and_modules_are_refused(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "plain.safetensors")
    with refused("unsupported-file"):
        drfl.load_model(tmp_path / "plain.safetensors")
    save_file({"weight": torch.ones(2)}, tmp_path / "odd.safetensors", {KEY: "[" * 100_000})
    with refused("damaged-file"):
        drfl.load_model(tmp_path / "odd.safetensors")
    path = written(tmp_path / "a.safetensors")
    for module, name in (
        (nn.Linear(4, 2, bias=False), "bias"),
        (nn.Sequential(nn.Linear(4, 2)), "0.bias"),
        (nn.Linear(3, 2), "weight"),
        (nn.Linear(4, 2).double(), "weight"),
    ):
        with refused("weights-mismatch", name):
            drfl.load_model(path, module)
