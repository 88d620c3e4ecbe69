"""The number of local steps with the least energy, seed by seed: DRDM (Krouka et al. 2025), Figure 4.

`energy.csv` of a result has it for the mean rounds alone, from which nothing can be tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import cast

from drfl_papers.claims.results import StoredResults
from drfl_papers.energy import Channel, Payload, Processor, Radio, cost_of

Rounds = Callable[[StoredResults, str, str, str], dict[int, float]]
"""Rounds to the target by seed, of a result, a setting and a method."""


def least_energy_steps(
    stored: StoredResults, result: str, rounds: Rounds, snr_db: float, bandwidth: float
) -> dict[int, float]:
    """τ of the least energy by seed, of a result with one setting whose methods differ in τ; the smaller among equals.

    A τ with which a seed never reaches the target costs that seed infinitely much; a seed that no τ brings there has
    none.

    Args:
        stored: where results are.
        result: name of an energy map's result; without it nothing is found.
        rounds: to the target.
        snr_db: of every client's channel, in dB.
        bandwidth: of every client's channel, in Hz.
    """
    rows = stored.rows(result, "cells.csv")
    if not rows:
        return {}
    setting, steps = rows[0]["setting"], steps_of(stored, result)
    about = cast("Mapping[str, Mapping[str, float]]", stored.summary(result)["energy"])[setting]
    processor = Processor(about["cycles_per_sample"], about["frequency"], about["capacitance"])
    channel = Channel.uniform(1, bandwidth, snr_db)
    # Average cost of a round by the ledgers, as in the energy map.
    ended = [row for row in rows if row["bytes_up"] and int(row["rounds"])]

    def mean(column: str, per_step: bool = False) -> float:
        shares = (int(row[column]) / int(row["rounds"]) / (steps[row["method"]] if per_step else 1) for row in ended)
        return fmean(shares) if ended else 0.0

    samples = mean("gradient_evaluations", per_step=True)
    payload = Payload(mean("bytes_up"), mean("bytes_down"), 0.0, samples, 0.0, 0.0, 0.0)
    cost = cost_of(payload, processor, Radio(about["power"]), channel)
    joules: dict[int, list[tuple[float, int]]] = {}
    for method, tau in steps.items():
        for seed, needed in rounds(stored, result, setting, method).items():
            joules.setdefault(seed, []).append((cost.joules(tau, needed), tau))
    least = {seed: min(found) for seed, found in joules.items()}
    return {seed: float(tau) for seed, (energy, tau) in least.items() if math.isfinite(energy)}


def steps_of(stored: StoredResults, result: str) -> dict[str, int]:
    """τ by method."""
    methods = cast("Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]", stored.summary(result)["methods"])
    return {name: next(iter(about["parameters"].values())).get("steps") or 1 for name, about in methods.items()}
