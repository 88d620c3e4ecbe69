"""The cost of a round for a client, in joules and seconds, for computing and sending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core import checks
from drfl.federation.algorithm import Algorithm
from drfl.federation.federation import Federation
from drfl.resilience.wrappers import S
from drfl.task.task import Task
from drfl.training.loop import run
from drfl_papers.energy.channel import Link, OverChannel, Rayleigh
from drfl_papers.energy.usage import Metered, Usage

CAPACITANCE = 1e-28
"""κ, effective switched capacitance in J·s² per cycle.

The usual value in mobile edge computing: Mao, Zhang and Letaief 2016 (IEEE JSAC 34(12), κ = 1e-28); Tran et al. 2019
(IEEE INFOCOM, α/2 with α = 2e-28); Yang et al. 2021 (IEEE TWC 20(3), κ = 1e-28).
"""

FREQUENCY = 1e9
"""f, CPU frequency in Hz: the low end of the 1–2 GHz of Tran et al. 2019; Mao et al. 2016 allow up to 1.5 GHz."""

CYCLES_PER_FLOP = 1.0
"""Cycles per floating-point operation. This is our assumption: a scalar unit with one operation per cycle.

The linear model on 28×28 images then takes 3.1e4 cycles per sample; Yang et al. 2021 take 1e4 to 3e4.
"""


@dataclass(frozen=True)
class Processor:
    """Dynamic CMOS power: a cycle costs κ·f² and takes 1/f (Mao et al. 2017, IEEE COMST 19(4)).

    Args:
        cycles_per_sample: Cycles for one sample's gradient.
        frequency: f in Hz.
        capacitance: κ in J·s² per cycle.
        joules_per_step: Measured energy of a local step in J, used instead of κ·f²·cycles. Time stays cycles/f.
            Gradients outside local steps then cost nothing.

    Raises:
        InputError: If a value is negative or not finite, or the frequency is 0.
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
        """Return the energy in J of local steps that computed the gradients of a number of samples; any shape."""
        if self.joules_per_step is not None:
            return steps * self.joules_per_step
        return samples * (self.cycles_per_sample * self.capacitance * self.frequency**2)

    def seconds(self, samples: Tensor) -> Tensor:
        """Return the time in s to compute the gradients of a number of samples; any shape."""
        return samples * (self.cycles_per_sample / self.frequency)


def sample_flops(task: Task, inputs: Tensor, targets: Tensor) -> float:
    """Count the floating-point operations of one sample's forward and backward pass, with torch on the real model.

    Torch counts matrix products and convolutions; a multiplication and an addition count as two operations. A layer
    that sees the inputs needs no gradient with respect to them, so a linear model with d parameters takes 4d, not 6d.

    Args:
        task: The model and its loss.
        inputs: (B, …) a few samples.
        targets: (B, …) their targets.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with torch.inference_mode(False), torch.enable_grad(), FlopCounterMode(display=False) as counter:
        x, y = (t.to(task.layout.dtype) if t.is_floating_point() else t for t in (inputs, targets))
        w = task.w0.detach().requires_grad_()
        loss = task.sample_losses(task.outputs(task.layout.views(w), x), y).mean()
        torch.autograd.grad(loss, w)
    return counter.get_total_flops() / len(x)


POWER = 0.2
"""Transmit power in W: 23 dBm, the maximum of a handset of power class 3 (3GPP TS 36.101, §6.2.2)."""

PROBE = 10
"""Rounds for measuring a payload, because the number of distinct clients that train varies from round to round."""


@dataclass(frozen=True)
class Radio:
    """The power that a client's radio draws.

    Args:
        power: Transmit power in W.
        receive: Power in W while receiving. If None, the downlink counts neither in energy nor in time, as in the
            paper.

    Raises:
        InputError: If a value is negative or not finite.
    """

    power: float = POWER
    receive: float | None = None

    def __post_init__(self) -> None:
        checks.non_negative("power", self.power)
        if self.receive is not None:
            checks.non_negative("downlink", self.receive)


class Bill(NamedTuple):
    """Energy in J of every client, each (N,) float64.

    Args:
        processing: Σ_rounds τ·E_i^p, over the rounds in which client i was asked to train.
        transmission: Σ_rounds E_i^t = P·bits/R_i.
        reception: The same for received bits; zeros if the downlink does not count.
    """

    processing: Tensor
    transmission: Tensor
    reception: Tensor

    @property
    def clients(self) -> Tensor:
        """(N,) the sum of all three."""
        return self.processing + self.transmission + self.reception

    @property
    def total(self) -> float:
        """The sum over clients, equation 18."""
        return float(self.clients.sum())


def bill(rounds: Sequence[Usage], n: int, processor: Processor, radio: Radio, link: Link) -> Bill:
    """Compute the cost of rounds for each of n clients (Krouka et al. 2025, eq. 18).

    Args:
        rounds: Usage of the rounds, from :class:`drfl_papers.energy.usage.Metered`.
        n: Number of clients N.
        processor: Processor of every client.
        radio: Radio of every client.
        link: The N channels, the same in both directions.
    """
    total = Bill(*(torch.zeros(n, dtype=torch.float64) for _ in Bill._fields))
    for usage in rounds:
        i, every = usage.clients, torch.zeros(n, dtype=torch.float64)
        total.processing[i] += processor.joules(usage.steps, usage.samples)
        total.transmission[i] += radio.power * link.seconds(every.index_add(0, i, 8 * usage.up))[i]
        if radio.receive is not None:
            total.reception[i] += radio.receive * link.seconds(every.index_add(0, i, 8 * usage.down))[i]
    return total


def round_seconds(usage: Usage, n: int, processor: Processor, radio: Radio, link: Link) -> float:
    """Compute the time in s of one round, in which the server waits for the slowest client of the cohort.

    With fading every client takes its expected time, so the true mean of the slowest is somewhat larger.

    Args:
        usage: Usage of the round.
        n: Number of clients N.
        processor: Processor of every client.
        radio: Radio of every client; it defines whether the downlink counts.
        link: The N channels, the same in both directions.
    """
    if not len(usage.clients):
        return 0.0
    sent = usage.up + (usage.down if radio.receive is not None else 0)
    bits = torch.zeros(n, dtype=torch.float64).index_add(0, usage.clients, 8 * sent)
    return float((processor.seconds(usage.samples) + link.seconds(bits)[usage.clients]).max())


class Payload(NamedTuple):
    """The average traffic and computation of one round, all clients together.

    Args:
        up: Bytes sent.
        down: Bytes received.
        participants: Clients that train.
        step_samples: Samples whose gradient is computed in one local step.
        other_samples: Samples for reports outside local steps, such as SCAFF-PD's.
        longest_up: Bytes sent by the client that sends the most.
        longest_down: Bytes received by the client that receives the most.
    """

    up: float
    down: float
    participants: float
    step_samples: float
    other_samples: float
    longest_up: float
    longest_down: float


def payload_of(
    algorithm: Algorithm[S], fed: Federation, fading: Rayleigh | None = None, *, rounds: int = PROBE, seed: int = 0
) -> Payload:
    """Measure the payload of an algorithm's round on the federation; its ledger does not change.

    Args:
        algorithm: The algorithm.
        fed: The clients.
        fading: Their channels, if some clients may be in outage.
        rounds: Number of rounds to measure, starting at the initial model.
        seed: Seed of these rounds.

    Raises:
        InputError: If the algorithm does not fit the federation.
        DivergedError: If it diverges.
    """
    checks.integer("rounds", rounds)
    # Measured rather than derived, so that an algorithm of the user needs no formula.
    metered = Metered(algorithm)
    # Measuring is not part of the run whose cost is planned.
    with fed.ledger.paused():
        run(
            metered if fading is None else OverChannel(metered, fading),
            fed,
            rounds=rounds,
            seed=seed,
            safeguard="start",
            check_data=False,
        )
    return mean_payload(metered.log)


def mean_payload(rounds: Sequence[Usage]) -> Payload:
    """Average the usage of at least one round."""

    def largest(part: Tensor) -> float:
        return float(part.max()) if len(part) else 0.0

    return Payload(
        up=fmean(float(u.up.sum()) for u in rounds),
        down=fmean(float(u.down.sum()) for u in rounds),
        participants=fmean(int((u.steps > 0).sum()) for u in rounds),
        step_samples=fmean(float((u.local_samples / u.steps.clamp(min=1)).sum()) for u in rounds),
        other_samples=fmean(float((u.samples - u.local_samples).sum()) for u in rounds),
        longest_up=fmean(largest(u.up) for u in rounds),
        longest_down=fmean(largest(u.down) for u in rounds),
    )


class Cost(NamedTuple):
    """The cost of a round: a part proportional to τ, and a part that does not depend on τ.

    Args:
        step_joules: J of one local step, all participants together.
        round_joules: J of all traffic in a round, and of gradients outside local steps.
        step_seconds: s of one local step.
        round_seconds: s of sending, for the slowest client, and of gradients outside local steps.
    """

    step_joules: float
    round_joules: float
    step_seconds: float
    round_seconds: float

    def joules(self, tau: int, rounds: float) -> float:
        """Return equation 18 with T = rounds: T·τ·Σ_i E_i^p + T·Σ_i E_i^t."""
        return rounds * (tau * self.step_joules + self.round_joules)

    def seconds(self, tau: int, rounds: float) -> float:
        """Return the time in s of a number of rounds with τ local steps."""
        return rounds * (tau * self.step_seconds + self.round_seconds)


def cost_of(payload: Payload, processor: Processor, radio: Radio, link: Link) -> Cost:
    """Compute the cost of a round if all clients have the same processor, radio and channel.

    Args:
        payload: Payload of a round.
        processor: Processor of every client.
        radio: Radio of every client.
        link: The channel of one client.
    """
    bit = float(link.seconds(torch.ones(1, dtype=torch.float64))[0])  # seconds per bit
    none, clients = torch.zeros((), dtype=torch.float64), torch.tensor(payload.participants, dtype=torch.float64)
    samples, others = (torch.tensor(x, dtype=torch.float64) for x in (payload.step_samples, payload.other_samples))
    # Clients compute side by side, so a step takes the time of the samples of one client. If no client trains, both are
    # 0.
    each = max(payload.participants, 1.0)
    reception = 0.0 if radio.receive is None else radio.receive * 8 * payload.down * bit
    # The server waits for the client that sends the most.
    longest = payload.longest_up + (0.0 if radio.receive is None else payload.longest_down)
    return Cost(
        step_joules=float(processor.joules(clients, samples)),
        round_joules=float(processor.joules(none, others)) + radio.power * 8 * payload.up * bit + reception,
        step_seconds=float(processor.seconds(samples)) / each,
        round_seconds=float(processor.seconds(others)) / each + 8 * longest * bit,
    )
