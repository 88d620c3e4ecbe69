"""The memory that a step stores per sample, and how it limits the stacks of a CUDA device."""

from __future__ import annotations

import pytest
import torch
from tests.support.problems import federation, group_norm_net
from torch import nn

import drfl
from drfl import Key, LocalSGD
from drfl.engine import Stacked, stacked
from drfl.engine.step_cost import activation_bytes

SIZES = (20,) * 12


def wide(shape, classes):
    return nn.Sequential(nn.Linear(4, 500), nn.ReLU(), nn.Linear(500, classes))


def noisy(shape, classes):
    return nn.Sequential(nn.Linear(4, 500), nn.Dropout(0.5), nn.Linear(500, classes))


def pool(model, **options):
    return federation(SIZES, model=model, **options)._train


def test_hidden_layers_count_and_parameters_do_not():
    found = activation_bytes(pool(wide))
    # The hidden layer after ReLU, float64, and a few numbers for the loss.
    assert 500 * 8 <= found <= 500 * 8 + 200
    assert activation_bytes(pool(wide, dtype=torch.float32)) <= found / 2 + 100
    assert activation_bytes(pool(noisy)) > 500 * 8
    assert activation_bytes(pool(drfl.models.linear)) < 200


def test_images_count_each_map():
    net = pool(group_norm_net, shape=(1, 6, 6))
    # The outputs of the convolution and of ReLU: 4 maps of 6 × 6 each.
    assert activation_bytes(net) >= 2 * 4 * 36 * 8


def test_bf16_stores_less():
    full, half = (pool(wide, dtype=torch.float32, precision=name) for name in ("full", "bf16"))
    assert activation_bytes(half) < activation_bytes(full)


def test_it_draws_nothing():
    before = torch.get_rng_state()
    activation_bytes(pool(noisy))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("graphs", [False, True])
def test_activations_limit_the_stacks_of_a_cuda_device(graphs, monkeypatch):
    """12 clients × 8 samples with 4 kB of activations are 384 kB, and their models with gradients 0.9 MB."""
    made, train = [], stacked._train_stack

    def train_stack(problem, batches, request):
        made.append(len(request.cohort))
        return train(problem, batches, request)

    monkeypatch.setattr(stacked, "uses_graphs", lambda w: graphs)
    monkeypatch.setattr(stacked, "capture", lambda function, arguments: function)
    monkeypatch.setattr(stacked, "_train_stack", train_stack)
    fed = federation(SIZES, model=wide, engine=Stacked(megabytes=1.2))
    reply = fed.train(torch.arange(12), fed.w0, LocalSGD(steps=2, lr=0.1, batch=8), Key(0))
    assert made == ([9, 3] if graphs else [12])
    plain = federation(SIZES, model=wide).train(torch.arange(12), fed.w0, LocalSGD(steps=2, lr=0.1, batch=8), Key(0))
    assert torch.allclose(reply.w, plain.w, rtol=1e-12, atol=1e-13)
