"""Test which models and losses are known to be convex, and which are refused."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from drfl.task.convexity import convexity
from drfl.task.models import cnn, linear, mlp
from drfl.task.task import Task
from drfl.training.certificate import Certifier


def frozen(module):
    for p in module.parameters():
        p.requires_grad_(False)
    return module


class Affine(nn.Linear):
    """A layer with unknown convexity."""


def hooked():
    layer = nn.Linear(4, 3)
    layer.register_forward_hook(lambda module, args, output: output**2)
    return layer


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


CONVEX_MODELS = {
    "linear": linear((4,), 3),
    "one layer": nn.Linear(4, 3),
    "no bias": nn.Linear(4, 3, bias=False),
    "nested": nn.Sequential(nn.Sequential(nn.Flatten(), nn.Identity()), nn.Linear(4, 3), nn.Unflatten(1, (1, 3))),
    "frozen features": nn.Sequential(frozen(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 3)),
}
OTHER_MODELS = {
    "mlp": (mlp((4,), 3), "trains 2 layers"),
    "cnn": (cnn((1, 8, 8), 3), "trains Conv2d"),
    "deep linear": (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), "trains 2 layers"),
    "shared": (shared(), "trains 2 layers"),
    "relu on top": (nn.Sequential(nn.Linear(4, 3), nn.ReLU()), "has ReLU after"),
    "frozen on top": (nn.Sequential(nn.Linear(4, 4), frozen(nn.Linear(4, 3))), "has Linear after"),
    "norm": (nn.Sequential(nn.GroupNorm(2, 4), nn.Flatten(), frozen(nn.Linear(4, 3))), "trains GroupNorm"),
    "subclass": (Affine(4, 3), "trains Affine"),
    "hook": (hooked(), "hooks"),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), "trains Parametrized"),
}
CONVEX_LOSSES = {
    "cross-entropy": nn.CrossEntropyLoss(),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.tensor([1.0, 0.0, 2.0])),
    "function": F.cross_entropy,
    "partial": functools.partial(F.cross_entropy, label_smoothing=0.1),
    "binary": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0])),
    "binary function": F.binary_cross_entropy_with_logits,
    "squares": nn.MSELoss(),
    "squares function": F.mse_loss,
    "absolute": nn.L1Loss(),
    "huber": nn.HuberLoss(),
    "smooth": F.smooth_l1_loss,
}


def own_loss(outputs, targets):
    return outputs.sin().sum(1)


OTHER_LOSSES = {
    "own": (own_loss, "loss own_loss is not known"),
    "lambda": (lambda outputs, targets: outputs.sum(1), "loss <lambda> is not known"),
    "module": (nn.MultiLabelSoftMarginLoss(), "MultiLabelSoftMarginLoss is not known"),
    "subclass": (type("Mine", (nn.CrossEntropyLoss,), {})(), "loss Mine is not known"),
    "weights": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, -1.0, 1.0])), "negative weights"),
    "partial": (functools.partial(F.cross_entropy, weight=torch.tensor([1.0, -1.0, 1.0])), "negative weights"),
    "positional": (functools.partial(own_loss), "loss own_loss is not known"),
}


@pytest.mark.parametrize("name", CONVEX_MODELS)
def test_convex_models_are_recognised(name):
    assert convexity(Task(CONVEX_MODELS[name])) is None
    assert Certifier(Task(CONVEX_MODELS[name])).method.iterations > 1


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_other_models_are_refused(name):
    model, reason = OTHER_MODELS[name]
    assert reason in convexity(Task(model))


@pytest.mark.parametrize("name", CONVEX_LOSSES)
def test_convex_losses_are_recognised(name):
    assert convexity(Task(nn.Linear(4, 3), loss=CONVEX_LOSSES[name])) is None


@pytest.mark.parametrize("name", OTHER_LOSSES)
def test_other_losses_are_refused(name):
    loss, reason = OTHER_LOSSES[name]
    assert reason in convexity(Task(nn.Linear(4, 3), loss=loss))


@pytest.mark.parametrize("name", CONVEX_LOSSES)
def test_losses_are_convex_along_lines(name):
    """Midpoints are below chords, also for the model with frozen features."""
    task = Task(nn.Sequential(frozen(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3)).double(), loss=CONVEX_LOSSES[name])
    task = task.to("cpu", torch.float64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    classes = torch.randint(0, 3, (20,), generator=generator)
    y = classes if "cross" in name or name in ("smoothed", "function", "partial") else F.one_hot(classes, 3).double()

    def mean_loss(w):
        return float(task.sample_losses(task.outputs(task.layout.views(w), x), y).mean())

    for _ in range(20):
        a, b = (3 * torch.randn(task.layout.d, generator=generator, dtype=torch.float64) for _ in range(2))
        assert mean_loss((a + b) / 2) <= (mean_loss(a) + mean_loss(b)) / 2 + 1e-12
