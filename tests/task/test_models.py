"""Test the papers' models."""

from __future__ import annotations

import pytest
import torch
from tests.support.refusals import refused

from drfl.task import models


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 6)])
def test_output_shapes_of_the_papers_models(name, shape):
    module = models.MODELS[name](shape, 7)
    assert module(torch.zeros(5, *shape)).shape == (5, 7)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_initial_vectors_are_seeded(name):
    assert models.MODELS[name]((6,), 2)(torch.zeros(3, 6)).shape == (3, 2)


def test_linear_model_is_linear():
    module = models.linear((2, 3), 4)
    x = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(module(x), x.flatten(1) @ module[1].weight.T + module[1].bias)


def test_mlp_without_hidden_layers_is_linear():
    assert [type(layer).__name__ for layer in models.mlp((4,), 2, ())] == ["Flatten", "Linear"]


def test_cnn_is_that_of_the_paper():
    names = [type(layer).__name__ for layer in models.cnn((1, 28, 28), 10)]
    assert names == ["Conv2d", "MaxPool2d", "Conv2d", "MaxPool2d", "Flatten", "Linear", "ReLU", "Linear"]


@pytest.mark.parametrize("shape", [(784,), (28, 28), (1, 3, 28), (1, 28, 3)])
def test_cnn_needs_images(shape):
    with refused("unsupported-data", "model", "'mlp'"):
        models.cnn(shape, 10)


def test_lstm_predicts_the_next_token():
    module = models.lstm((12,), 9)
    text = torch.randint(9, (5, 12), generator=torch.Generator().manual_seed(0))
    assert module(text).shape == (5, 9)
    later = text.clone()
    later[:, -1] = (later[:, -1] + 1) % 9
    assert not torch.equal(module(text), module(later))
    with refused("unsupported-data", "model"):
        models.lstm((1, 28, 28), 10)
