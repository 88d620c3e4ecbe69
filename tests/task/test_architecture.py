"""Test descriptions of modules: rebuilt modules compute the same, and other modules are not described."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from drfl import models
from drfl.task.architecture import build, describe, load_weights
from drfl.task.task import Task

IMAGES = (2, 8, 8)

MODELS = {
    "linear": lambda: models.linear((5,), 3),
    "mlp": lambda: models.mlp((5,), 3, (7, 6)),
    "one layer": lambda: nn.Linear(5, 1, bias=False),
    "norms": lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU("tanh"), nn.Dropout(0.3), nn.Linear(6, 2)),
    "cnn": lambda: models.cnn(IMAGES, 3),
    "other images": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=(2, 1), padding="valid", bias=False), nn.GroupNorm(2, 4, affine=False), nn.Hardtanh(),
        nn.AdaptiveAvgPool2d((None, 2)), nn.Flatten(), nn.LazyLinear(2),
    ),
    "vectors as images": lambda: nn.Sequential(nn.Linear(5, 8), nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 1, 1)),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(5, 4), nn.Softmax(1)), nn.Sequential()),
    "lstm": lambda: models.lstm((6,), 9),
}  # fmt: skip


def rows(name):
    if name == "lstm":
        return torch.randint(0, 9, (4, 6))
    return torch.randn(4, *(IMAGES if ("images" in name and name != "vectors as images") or name == "cnn" else (5,)))


@pytest.mark.parametrize("name", MODELS)
def test_described_module_is_rebuilt(name):
    model, x = MODELS[name](), rows(name)
    model(x)  # so that lazy layers know their sizes
    model = Task(model).model  # replaces dropout by drfl's
    again = build(json.loads(json.dumps(describe(model))))
    assert all(value.is_meta for value in again.state_dict().values())
    load_weights(again, model.state_dict())
    assert torch.equal(again.eval()(x), model.eval()(x))


def test_shared_layer_is_built_twice():
    shared = nn.ReLU()
    model = nn.Sequential(nn.Linear(3, 3), shared, nn.Linear(3, 2), shared)
    again = build(describe(model))
    load_weights(again, model.state_dict())
    assert torch.equal(again(x := torch.randn(5, 3)), model(x))


class Own(nn.Linear):
    """A class of the user's."""


def hooked():
    model = nn.Linear(3, 2)
    model.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    "model",
    [
        Own(3, 2),
        nn.Sequential(nn.Linear(3, 3), Own(3, 2)),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
        hooked(),
        nn.ModuleList([nn.Linear(3, 2)]),
        nn.TransformerEncoderLayer(4, 2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_modules_are_not_described(model):
    assert describe(model) is None
