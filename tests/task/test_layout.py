"""Test modules as flat vectors."""

from __future__ import annotations

import pytest
import torch
from tests.support.refusals import refused
from torch import nn

from drfl.core.key import Key
from drfl.task import models
from drfl.task.layout import Layout


def net(seed=0):
    with Key(seed).torch_scope():
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_flatten_and_unflatten_are_inverse():
    a, b = net(0), net(1)
    layout = Layout.of(a)
    w = layout.flatten(a)
    assert layout.d == len(w) == 3 * 4 + 4 + 4 * 2 + 2
    assert torch.equal(w[:12], a[0].weight.detach().flatten())
    assert torch.equal(w[-2:], a[2].bias.detach())
    layout.load(b, w)
    assert torch.equal(layout.flatten(b), w)
    x = torch.ones(5, 3)
    assert torch.equal(a(x), b(x))


def test_flatten_copies_parameters():
    module = net()
    w = Layout.of(module).flatten(module)
    w += 1
    assert not torch.equal(w, Layout.of(module).flatten(module))
    assert not w.requires_grad


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_views_share_memory(batch):
    layout = Layout.of(net())
    w = torch.arange(float(torch.tensor([*batch, layout.d]).prod())).view(*batch, layout.d)
    views = layout.views(w)
    assert {name: tuple(v.shape) for name, v in views.items()} == {
        "0.weight": (*batch, 4, 3),
        "0.bias": (*batch, 4),
        "2.weight": (*batch, 2, 4),
        "2.bias": (*batch, 2),
    }
    assert torch.equal(torch.cat([v.reshape(*batch, -1) for v in views.values()], dim=-1), w)
    views["2.bias"].fill_(-1)
    assert (w[..., -2:] == -1).all()
    assert (w[..., :-2] >= 0).all()


def test_frozen_parameters_are_excluded():
    module = net()
    module[0].weight.requires_grad_(False)
    layout = Layout.of(module)
    assert layout.names == ("0.bias", "2.weight", "2.bias")
    before = module[0].weight.clone()
    layout.load(module, torch.zeros(layout.d))
    assert torch.equal(module[0].weight, before)


def test_tied_parameters_count_once():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    assert Layout.of(module).names == ("0.weight", "0.bias", "1.bias")


def test_scalar_parameters_are_supported():
    module = nn.Linear(2, 1)
    module.temperature = nn.Parameter(torch.tensor(3.0))
    layout = Layout.of(module)
    assert layout.views(layout.flatten(module))["temperature"].shape == ()


@pytest.mark.parametrize("length", [0, 25, 27])
def test_wrong_length_is_refused(length):
    with refused("wrong-shape", "w", "26"):
        Layout.of(net()).load(net(), torch.zeros(length))


def test_model_without_trainable_parameters_is_refused():
    with refused("unsupported-model", "model", "trainable parameter"):
        Layout.of(nn.Flatten())
    with refused("unsupported-model", "model", "trainable parameter"):
        Layout.of(net().requires_grad_(False))


def test_mixed_types_are_refused():
    with refused("unsupported-model", "model", "float32", "float64"):
        Layout.of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
    frozen = nn.Linear(2, 2).double().requires_grad_(False)
    assert Layout.of(nn.Sequential(nn.Linear(2, 2), frozen)).dtype == torch.float32
    assert Layout.of(net().double()).dtype == torch.float64


NORMS = [nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.InstanceNorm2d(3, affine=True, track_running_stats=True)]


@pytest.mark.parametrize("norm", NORMS, ids=lambda layer: type(layer).__name__)
def test_running_statistics_are_refused(norm):
    module = nn.Sequential(nn.Linear(3, 3), norm)
    with refused("unsupported-model", "model", f"1 ({type(norm).__name__})", "running statistics", "eval()") as raised:
        Layout.of(module)
    assert "\n" not in str(raised.value)
    # only BatchNorm has a replacement among drfl's models
    assert ("without_batch_norm" in str(raised.value)) == isinstance(norm, nn.modules.batchnorm._BatchNorm)
    module.eval()
    assert Layout.of(module).d > 0


def test_batch_norm_without_running_statistics_is_refused():
    """BatchNorm then mixes the samples of a batch, in eval() mode as well."""
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False))
    for mode in (True, False):
        with refused("unsupported-model", "model", "nn.GroupNorm"):
            Layout.of(module.train(mode))


@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.1), nn.FeatureAlphaDropout(0.1), nn.RReLU()])
def test_random_layers_are_refused(layer):
    module = nn.Sequential(nn.Linear(3, 3), layer)
    with refused("unsupported-model", "model", f"1 ({type(layer).__name__})", "global generator"):
        Layout.of(module)
    assert Layout.of(module.eval()).d == 12


def test_dropout_with_p_0_is_accepted():
    assert Layout.of(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0))).d == 12


@pytest.mark.parametrize("norm", [nn.GroupNorm(1, 3), nn.LayerNorm(3), nn.InstanceNorm1d(3, affine=True)])
def test_stateless_norms_are_accepted(norm):
    assert Layout.of(nn.Sequential(nn.Linear(3, 3), norm)).d == 18


def test_papers_models_have_their_sizes():
    """Kuzushiji-MNIST's CNN has 32·7·7 features before its 500 units."""
    image = (1, 28, 28)
    assert Layout.of(models.linear(image, 10)).d == 7850
    assert Layout.of(models.mlp(image, 10, (200, 100))).d == 785 * 200 + 201 * 100 + 1010
    assert Layout.of(models.cnn(image, 10)).d == 160 + 4640 + (1568 * 500 + 500) + 5010
