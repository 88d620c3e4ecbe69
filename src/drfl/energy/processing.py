"""What a local step costs the client's processor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl import checks
from drfl.task import Task

CAPACITANCE = 1e-28
"""κ, effective switched capacitance in J·s² per cycle.

The convention of mobile edge computing: Mao, Zhang and Letaief 2016 (IEEE JSAC 34(12), κ = 1e-28); Tran et al. 2019
(IEEE INFOCOM, α/2 with α = 2e-28); Yang et al. 2021 (IEEE TWC 20(3), κ = 1e-28).
"""

FREQUENCY = 1e9
"""f, CPU frequency in Hz: the low end of the 1–2 GHz of Tran et al. 2019; Mao et al. 2016 allow up to 1.5 GHz."""

CYCLES_PER_FLOP = 1.0
"""Cycles per floating-point operation. Our assumption, not the literature's: a scalar unit that does one a cycle.

The linear model on 28×28 images then takes 3.1e4 cycles per sample; Yang et al. 2021 take 1e4 to 3e4.
"""


@dataclass(frozen=True)
class Processor:
    """Dynamic CMOS power: a cycle costs κ·f² and takes 1/f (Mao et al. 2017, IEEE COMST 19(4)).

    Args:
        cycles_per_sample: cycles for one sample's gradient.
        frequency: f in Hz.
        capacitance: κ in J·s² per cycle.
        joules_per_step: measured energy of a local step, which then takes the place of κ·f²·cycles; time stays
            cycles/f. Gradients outside local steps then cost nothing.

    Raises:
        InputError: a value is negative, not finite, or the frequency is 0.
    """

    cycles_per_sample: float
    frequency: float = FREQUENCY
    capacitance: float = CAPACITANCE
    joules_per_step: float | None = None

    def __post_init__(self) -> None:
        checks.non_negative("cycles_per_sample", self.cycles_per_sample)
        checks.positive("frequency", self.frequency)
        checks.non_negative("capacitance", self.capacitance)
        if self.joules_per_step is not None:
            checks.non_negative("joules_per_step", self.joules_per_step)

    def joules(self, steps: Tensor, samples: Tensor) -> Tensor:
        """Energy in J of so many local steps, in which the gradients of so many samples were computed; any shape."""
        if self.joules_per_step is not None:
            return steps * self.joules_per_step
        return samples * (self.cycles_per_sample * self.capacitance * self.frequency**2)

    def seconds(self, samples: Tensor) -> Tensor:
        """Time in s to compute the gradients of so many samples; any shape."""
        return samples * (self.cycles_per_sample / self.frequency)


def sample_flops(task: Task, inputs: Tensor, targets: Tensor) -> float:
    """Floating-point operations of one sample's forward and backward pass, counted by torch on the real model.

    Torch counts matrix products and convolutions, a multiplication and an addition as two. A layer that sees the inputs
    needs no gradient with respect to them: a linear model with d parameters takes 4d, not 6d.

    Args:
        task: the model and its loss.
        inputs: (B, …) a few samples.
        targets: (B, …) theirs.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with torch.inference_mode(False), torch.enable_grad(), FlopCounterMode(display=False) as counter:
        x, y = (t.to(task.layout.dtype) if t.is_floating_point() else t for t in (inputs, targets))
        w = task.w0.detach().requires_grad_()
        loss = task.sample_losses(task.outputs(task.layout.views(w), x), y).mean()
        torch.autograd.grad(loss, w)
    return counter.get_total_flops() / len(x)
