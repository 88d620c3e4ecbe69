"""Test the estimated work of a step: memory, which limits the stacks of a CUDA device, and products."""

from __future__ import annotations

import pytest
import torch
from tests.support.problems import federation, group_norm_net
from torch import nn

import drfl
from drfl import Key, LocalSGD
from drfl.engine import Stacked, stacked
from drfl.engine.step_cost import multiplications_per_row, step_cost

SIZES = (20,) * 12


def wide(shape, classes):
    return nn.Sequential(nn.Linear(4, 500), nn.ReLU(), nn.Linear(500, classes))


def noisy(shape, classes):
    return nn.Sequential(nn.Linear(4, 500), nn.Dropout(0.5), nn.Linear(500, classes))


def pool(model, **options):
    return federation(SIZES, model=model, **options)._train


def test_memory_counts_hidden_layers_not_parameters():
    found = step_cost(pool(wide)).stored
    # The hidden layer after ReLU, float64, and a few numbers for the loss.
    assert 500 * 8 <= found <= 500 * 8 + 200
    assert step_cost(pool(wide, dtype=torch.float32)).stored <= found / 2 + 100
    assert step_cost(pool(noisy)).stored > 500 * 8
    assert step_cost(pool(drfl.models.linear)).stored < 200


def test_memory_counts_each_feature_map():
    net = pool(group_norm_net, shape=(1, 6, 6))
    # The outputs of the convolution and of ReLU: 4 maps of 6 × 6 each.
    assert step_cost(net).stored >= 2 * 4 * 36 * 8


def test_bf16_stores_less():
    full, half = (pool(wide, dtype=torch.float32, precision=name) for name in ("full", "bf16"))
    assert step_cost(half).stored < step_cost(full).stored


def test_estimate_draws_no_random_numbers():
    before = torch.get_rng_state()
    assert step_cost(pool(noisy)).operations
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("graphs", [False, pytest.param(True, marks=pytest.mark.long)])
def test_activations_limit_the_stacks_of_a_cuda_device(graphs, monkeypatch):
    """12 clients × 8 samples with 4 kB of activations take 384 kB, and their models with gradients 0.9 MB."""
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


def test_products_and_convolutions_are_counted():
    linear = step_cost(pool(drfl.models.linear))
    # One product for the outputs, and one for the gradient of the weight.
    assert (linear.products, linear.convolutions) == (2 * 4 * 3, 0)
    net = step_cost(pool(group_norm_net, shape=(1, 6, 6), dtype=torch.float32))
    assert net.convolutions > net.products > 0
    assert net.operations > linear.operations > 10


def test_recurrent_layers_are_counted():
    """Each weight has three products per position: forward, and for both gradients."""
    model = drfl.models.LSTM(11, embedding=3, hidden=5)
    weights = sum(w.numel() for name, w in model.named_parameters() if name.startswith("recurrent.weight"))
    tokens = torch.randint(11, (8, 6))
    data = drfl.ClientData.from_arrays([(tokens, tokens[:, 0])], test_fraction=0.5)
    found = step_cost(drfl.Simulation(data, drfl.Task(model))._train)
    assert found.products == pytest.approx(3 * 6 * weights + 2 * 5 * 11 + 5 * 11, rel=0.2)


def test_shared_weights_count_for_each_position():
    tokens = federation(SIZES, model=lambda *_: nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Linear(1, 3), nn.Flatten()))
    assert multiplications_per_row(pool(drfl.models.linear)) == 15
    assert multiplications_per_row(tokens._train) >= 6
