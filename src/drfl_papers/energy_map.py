"""The number of local steps that reaches a target with the least energy: DRDM (Krouka et al. 2025), eq. 18, Figure 4.

Everything comes from the records: the ledger has the traffic and computation of a round, the history has the round in
which the target was reached.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from drfl.core.csv_cells import csv_text
from drfl.core.errors import InputError
from drfl.data import DATASETS
from drfl.task.measure import NOTHING
from drfl.task.models import LOSSES, MODELS
from drfl.task.task import Task
from drfl.training.history import LEDGER_COLUMNS
from drfl_papers.energy import (
    Channel,
    LinkConditions,
    LocalStepsPlan,
    Measurement,
    Payload,
    Processor,
    Radio,
    cost_of,
    plan,
    sample_flops,
)
from drfl_papers.energy.cost import CYCLES_PER_FLOP
from drfl_papers.energy.output import hertz, save_heatmap
from drfl_papers.plan import CollectedRuns
from drfl_papers.plan import Plan as Planned
from drfl_papers.plots import figure_names, title
from drfl_papers.records import Run, runs
from drfl_papers.rounds_to_target import energy_target, first_reached
from drfl_papers.specification import Energy
from drfl_papers.tables import ResultTable, TableEntry, sentence

COLUMNS = ("setting", "snr_db", "bandwidth_hz", "tau", "joules", "rounds", "runner_up_tau", "runner_up_joules")


def check(planned: Planned) -> None:
    """Make sure, before anything runs, that the map can be made.

    Raises:
        InputError: If the specification has no grid, or the model's operations cannot be counted without its data.
    """
    _grid(planned)
    for setting in planned.settings:
        processor_of(planned, setting)


def plans(collected: CollectedRuns) -> dict[str, LocalStepsPlan]:
    """Find the number of local steps with the least energy over the grid of SNRs and bandwidths, by setting.

    Channels do not fade. As in the paper, only sending and computing by clients counts.

    Raises:
        InputError: If the specification has no grid, two methods take the same number of local steps, or the model's
            operations cannot be counted without its data.
    """
    energy, run_groups = _grid(collected.plan), runs(collected)
    target = energy_target(energy)
    places = [LinkConditions(snr, bandwidth) for snr in energy.snr for bandwidth in energy.bandwidth]
    planned = {}
    for setting in collected.plan.settings:
        group = [run for (name, _), methods in run_groups.items() if name == setting for run in methods]
        payload, processor = payload_of(group), processor_of(collected.plan, setting)
        measurements = []
        for run in group:
            reached = first_reached(run, target)
            measurements.append(Measurement(run.steps, run.seed, None if reached is None else reached.round))
        channels = {place: Channel.uniform(1, place.bandwidth, place.snr_db) for place in places}
        costs = {place: cost_of(payload, processor, Radio(), channel) for place, channel in channels.items()}
        planned[setting] = plan(measurements, costs)
    return planned


def payload_of(group: Sequence[Run]) -> Payload:
    """Average the costs of a round, from the ledgers of runs that differ in τ and seed only.

    The ledgers do not record how the work was shared among clients, so the fields on which times depend are NaN. All
    counts are 0 if every run failed: then no τ reaches the target, and there is no energy to count.
    """
    ended = [run for run in group if run.has_ended and run.rounds]
    shares = [[run.final[name] / run.rounds for name in LEDGER_COLUMNS] + [float(run.steps)] for run in ended]
    return Payload(
        up=_mean([up for up, _, _, _ in shares]),
        down=_mean([down for _, down, _, _ in shares]),
        participants=math.nan,
        step_samples=_mean([gradients / steps for _, _, gradients, steps in shares]),
        other_samples=0.0,
        longest_up=math.nan,
        longest_down=math.nan,
    )


def processor_of(planned: Planned, setting: str) -> Processor:
    """Return every client's processor, with one cycle per floating-point operation of a sample's gradient.

    Raises:
        InputError: If the model learns from features, whose number depends on the data.
    """
    job = next(p.cell.job for p in planned.cells if p.setting == setting)
    if job.get("features") is not None:
        raise InputError(
            "features is not supported in an energy map, which needs a model on the raw data. Remove it from the job.",
            code="unsupported-combination",
            field="features",
        )
    return Processor(_cycles(str(job["dataset"]), str(job["model"]), str(job.get("loss", "cross-entropy"))))


@functools.lru_cache
def _cycles(dataset: str, model: str, loss: str) -> float:
    """Count the cycles of one sample's gradient in a pass through the model."""
    info = DATASETS[dataset].info
    with torch.random.fork_rng(devices=[]):  # drawing initial weights must not change the caller's random state
        task = Task(MODELS[model](info.shape, info.classes), LOSSES[loss])
    return CYCLES_PER_FLOP * sample_flops(task, torch.zeros(1, *info.shape), torch.zeros(1, dtype=torch.int64))


def tables(collected: CollectedRuns) -> tuple[ResultTable, ...]:
    """Make one table per setting with τ and its energy, bandwidths down and SNRs across."""
    energy = _grid(collected.plan)
    header = ("bandwidth", *(f"{snr:g} dB" for snr in energy.snr))
    result = []
    for setting, planned in plans(collected).items():
        cells = {(cell.place.snr_db, cell.place.bandwidth): cell.best for cell in planned.cells}
        rows = []
        for hz in energy.bandwidth:
            best = [cells[snr, hz] for snr in energy.snr]
            texts = [NOTHING if b is None else f"{b.tau} ({b.joules:.3g} J)" for b in best]
            rows.append((TableEntry(hertz(hz)), *map(TableEntry, texts)))
        notes = tuple(f"{sentence(note)}." for note in planned.notes)
        suffix = f", {setting}" if len(collected.plan.settings) > 1 else ""
        text = f"Local steps with the least energy, and this energy, summed over clients{suffix}"
        processor, radio = processor_of(collected.plan, setting), Radio()
        constants = (
            f"A client transmits at {radio.power:g} W and computes at {processor.frequency / 1e9:g} GHz with "
            f"{processor.cycles_per_sample / 1e6:.3g} million cycles per sample and κ = {processor.capacitance:g}. "
            "Channels do not fade, and receiving costs nothing. The paper gives no constants."
        )
        result.append(ResultTable(text, header, tuple(rows), (constants, *notes)))
    return tuple(result)


def to_csv(collected: CollectedRuns) -> str:
    """Format the grid as CSV text, one row per cell; empty fields if no number of local steps reaches the target."""
    lines = []
    for setting, planned in plans(collected).items():
        for place, best, second in planned.cells:
            chosen = ("", "", "") if best is None else (best.tau, f"{best.joules:.6g}", f"{best.rounds:.6g}")
            other = ("", "") if second is None else (second.tau, f"{second.joules:.6g}")
            lines.append([setting, f"{place.snr_db:g}", f"{place.bandwidth:g}", *chosen, *other])
    return csv_text(COLUMNS, lines)


def summary(collected: CollectedRuns) -> dict[str, object]:
    """Return the constants behind the energies, by setting."""
    radio = Radio()
    constants: dict[str, object] = {}
    for setting in collected.plan.settings:
        processor = processor_of(collected.plan, setting)
        constants[setting] = {
            "cycles_per_sample": processor.cycles_per_sample,
            "frequency": processor.frequency,
            "capacitance": processor.capacitance,
            "power": radio.power,
        }
    return constants


def draw(collected: CollectedRuns, folder: Path) -> list[str]:
    """Draw one heat map per setting.

    Returns:
        The figures' names, without file extension.

    Raises:
        InputError: If matplotlib is not installed.
    """
    names = figure_names(collected)
    for name, (setting, planned) in zip(names, plans(collected).items(), strict=True):
        save_heatmap(planned, [folder / f"{name}.png", folder / f"{name}.svg"], title(collected, setting))
    return names


def _grid(planned: Planned) -> Energy:
    energy = planned.spec.energy
    if energy is None:
        raise InputError(
            f"the energy map {planned.spec.name} has no [energy] table. Add one with target, snr and bandwidth.",
            code="missing-option",
            field="energy",
        )
    return energy


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
