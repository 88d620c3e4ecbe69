"""The number of local steps with the least energy, per seed: DRDM (Krouka et al. 2025), Figure 4.

`energy.csv` of a result has this number for the mean rounds only, and a single number cannot be tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import cast

from drfl_papers.claims.results import StoredResults
from drfl_papers.energy import Channel, Payload, Processor, Radio, cost_of

Rounds = Callable[[StoredResults, str, str, str], dict[int, float]]
"""A function that returns the rounds to the target per seed, given the results, a result, a setting and a method."""


def least_energy_steps(
    stored: StoredResults, result: str, rounds: Rounds, snr_db: float, bandwidth: float
) -> dict[int, float]:
    """Find the τ with the least energy for each seed of a result; the smaller τ wins a tie.

    The result has one setting, and its methods differ in τ. The energy is infinite if a seed never reaches the target
    with a τ. A seed that reaches the target with no τ is missing from the answer.

    Args:
        stored: The stored results.
        result: Name of the result of an energy map. The answer is empty if there is no such result.
        rounds: Returns the rounds to the target.
        snr_db: Signal-to-noise ratio of every client's channel, in dB.
        bandwidth: Bandwidth of every client's channel, in Hz.
    """
    rows = stored.rows(result, "cells.csv")
    if not rows:
        return {}
    setting, steps = rows[0]["setting"], steps_of(stored, result)
    constants = cast("Mapping[str, Mapping[str, float]]", stored.summary(result)["energy"])[setting]
    processor = Processor(constants["cycles_per_sample"], constants["frequency"], constants["capacitance"])
    channel = Channel.uniform(1, bandwidth, snr_db)
    # The average cost of a round comes from the ledgers, as in the energy map.
    ended = [row for row in rows if row["bytes_up"] and int(row["rounds"])]

    def mean(column: str, per_step: bool = False) -> float:
        shares = (int(row[column]) / int(row["rounds"]) / (steps[row["method"]] if per_step else 1) for row in ended)
        return fmean(shares) if ended else 0.0

    samples = mean("gradient_evaluations", per_step=True)
    payload = Payload(mean("bytes_up"), mean("bytes_down"), 0.0, samples, 0.0, 0.0, 0.0)
    cost = cost_of(payload, processor, Radio(constants["power"]), channel)
    joules: dict[int, list[tuple[float, int]]] = {}
    for method, tau in steps.items():
        for seed, needed in rounds(stored, result, setting, method).items():
            joules.setdefault(seed, []).append((cost.joules(tau, needed), tau))
    least = {seed: min(candidates) for seed, candidates in joules.items()}
    return {seed: float(tau) for seed, (energy, tau) in least.items() if math.isfinite(energy)}


def steps_of(stored: StoredResults, result: str) -> dict[str, int]:
    """Return τ by method."""
    methods = cast("Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]", stored.summary(result)["methods"])
    return {name: next(iter(about["parameters"].values())).get("steps") or 1 for name, about in methods.items()}
