"""Test the number of operations of a sample's gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drfl import Task
from drfl.task.models import cnn, linear, mlp
from drfl_papers.energy import Processor, sample_flops

IMAGES, LABELS = torch.zeros(3, 1, 8, 8), torch.zeros(3, dtype=torch.int64)


def test_linear_model_takes_four_operations_per_weight():
    # 2·64·10 forward, and the same for the weights' gradient. Inputs have no gradient, and the bias has no product.
    assert sample_flops(Task(linear((1, 8, 8), 10)), IMAGES, LABELS) == 4 * 640


def test_only_the_first_layer_needs_no_input_gradient():
    task = Task(mlp((1, 8, 8), 10, hidden=(20,)))
    assert sample_flops(task, IMAGES, LABELS) == 4 * 64 * 20 + 6 * 20 * 10


def test_convolutions_are_counted():
    first, second, third, last = 16 * 9 * 64, 32 * 16 * 9 * 16, 32 * 4 * 500, 5000
    expected = 4 * first + 6 * (second + third + last)
    assert sample_flops(Task(cnn((1, 8, 8), 10)), IMAGES, LABELS) == expected


def test_count_does_not_depend_on_batch_and_type():
    task = Task(linear((1, 8, 8), 10).double())
    assert sample_flops(task, IMAGES[:1], LABELS[:1]) == 4 * 640
    with torch.inference_mode():
        assert sample_flops(task, IMAGES, LABELS) == 4 * 640
    mse = Task(nn.Linear(4, 1), nn.MSELoss(), score=lambda outputs, y: torch.zeros(len(outputs)))
    assert sample_flops(mse, torch.zeros(2, 4), torch.zeros(2, 1, dtype=torch.float64)) == 4 * 4


def test_counting_leaves_the_model_unchanged():
    task = Task(linear((1, 8, 8), 10))
    before = task.w0
    sample_flops(task, IMAGES, LABELS)
    assert torch.equal(task.w0, before)
    assert all(parameter.grad is None for parameter in task.model.parameters())


def test_energy_and_time_scale_with_the_frequency():
    slow, fast = Processor(1e4), Processor(1e4, frequency=2e9)
    samples, steps = torch.tensor(320.0, dtype=torch.float64), torch.tensor(10)
    assert float(slow.joules(steps, samples)) == pytest.approx(320 * 1e4 * 1e-28 * 1e18, rel=1e-12)
    assert float(fast.joules(steps, samples)) == pytest.approx(4 * float(slow.joules(steps, samples)), rel=1e-12)
    assert float(slow.seconds(samples)) == pytest.approx(3.2e-3, rel=1e-12)
    assert float(fast.seconds(samples)) == pytest.approx(1.6e-3, rel=1e-12)
