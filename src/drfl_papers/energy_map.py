"""How many local steps reach a target with the least energy: DRDM (Krouka et al. 2025), equation 18 and Figure 4.

All from the records: the ledger says what a round sent and computed, the history when the target was reached.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from drfl.core.errors import InputError
from drfl.data import DATASETS
from drfl.task.measure import NOTHING
from drfl.task.models import LOSSES, MODELS
from drfl.task.task import Task
from drfl.training.history import LEDGER_COLUMNS, csv_text
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
from drfl_papers.plan import Collected
from drfl_papers.plan import Plan as Planned
from drfl_papers.plots import numbered, title
from drfl_papers.records import Run, runs
from drfl_papers.rounds_to_target import first, needed
from drfl_papers.specification import Energy
from drfl_papers.tables import ResultTable, TableEntry, sentence

COLUMNS = ("setting", "snr_db", "bandwidth_hz", "tau", "joules", "rounds", "runner_up_tau", "runner_up_joules")


def check(planned: Planned) -> None:
    """Make sure before anything runs that the map can be made.

    Raises:
        InputError: the specification has no grid, or the model's operations cannot be counted without its data.
    """
    _grid(planned)
    for setting in planned.settings:
        processor_of(planned, setting)


def plans(collected: Collected) -> dict[str, LocalStepsPlan]:
    """The number of local steps with the least energy over the grid of SNRs and bandwidths, by setting.

    Channels without fading; only what clients send and compute counts, as in the paper.

    Raises:
        InputError: the specification has no grid, two methods take the same number of local steps, or the model's
            operations cannot be counted without its data.
    """
    energy, found = _grid(collected.plan), runs(collected)
    target = needed(energy)
    places = [LinkConditions(snr, bandwidth) for snr in energy.snr for bandwidth in energy.bandwidth]
    planned = {}
    for setting in collected.plan.settings:
        group = [run for (where, _), methods in found.items() if where == setting for run in methods]
        payload, processor = payload_of(group), processor_of(collected.plan, setting)
        measurements = []
        for run in group:
            at = first(run, target)
            measurements.append(Measurement(run.steps, run.seed, None if at is None else at.round))
        channels = {place: Channel.uniform(1, place.bandwidth, place.snr_db) for place in places}
        costs = {place: cost_of(payload, processor, Radio(), channel) for place, channel in channels.items()}
        planned[setting] = plan(measurements, costs)
    return planned


def payload_of(group: Sequence[Run]) -> Payload:
    """What a round took on average, by the ledgers of runs that differ in τ and seed only.

    Only what the energy depends on: how it was shared among clients, on which times depend, no ledger says. Nothing
    where every run failed: then no τ reaches the target, and there is no energy to count.
    """
    ended = [run for run in group if run.ended and run.rounds]
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
    """Every client's processor: the operations of a sample's gradient counted on the model, one a cycle.

    Raises:
        InputError: the model learns from features, whose number only their data tell.
    """
    job = next(p.cell.job for p in planned.cells if p.setting == setting)
    if job.get("features") is not None:
        raise InputError(
            "an energy map needs a model on the data themselves: leave features out of its job",
            code="unsupported-combination",
            field="features",
        )
    return Processor(_cycles(str(job["dataset"]), str(job["model"]), str(job.get("loss", "cross-entropy"))))


@functools.lru_cache
def _cycles(dataset: str, model: str, loss: str) -> float:
    """Cycles of one sample's gradient, counted in a pass through the model."""
    info = DATASETS[dataset].info
    with torch.random.fork_rng(devices=[]):  # drawing initial weights must not change the caller's random state
        task = Task(MODELS[model](info.shape, info.classes), LOSSES[loss])
    return CYCLES_PER_FLOP * sample_flops(task, torch.zeros(1, *info.shape), torch.zeros(1, dtype=torch.int64))


def tables(collected: Collected) -> tuple[ResultTable, ...]:
    """A table a setting: τ and its energy, bandwidths down and SNRs across."""
    energy = _grid(collected.plan)
    header = ("bandwidth", *(f"{snr:g} dB" for snr in energy.snr))
    found = []
    for setting, planned in plans(collected).items():
        cells = {(cell.place.snr_db, cell.place.bandwidth): cell.best for cell in planned.cells}
        rows = []
        for hz in energy.bandwidth:
            best = [cells[snr, hz] for snr in energy.snr]
            texts = [NOTHING if b is None else f"{b.tau} ({b.joules:.3g} J)" for b in best]
            rows.append((TableEntry(hertz(hz)), *map(TableEntry, texts)))
        notes = tuple(f"{sentence(note)}." for note in planned.notes)
        where = f", {setting}" if len(collected.plan.settings) > 1 else ""
        text = f"Local steps with the least energy, and that energy of all clients together{where}"
        processor, radio = processor_of(collected.plan, setting), Radio()
        constants = (
            f"A client sends at {radio.power:g} W and computes at {processor.frequency / 1e9:g} GHz with "
            f"{processor.cycles_per_sample / 1e6:.3g} million cycles a sample and κ = {processor.capacitance:g}; "
            "channels do not fade, and receiving costs nothing. The paper gives no constants."
        )
        found.append(ResultTable(text, header, tuple(rows), (constants, *notes)))
    return tuple(found)


def to_csv(collected: Collected) -> str:
    """A row a cell of the grid as CSV text; empty where no number of local steps reaches the target."""
    lines = []
    for setting, planned in plans(collected).items():
        for place, best, second in planned.cells:
            chosen = ("", "", "") if best is None else (best.tau, f"{best.joules:.6g}", f"{best.rounds:.6g}")
            other = ("", "") if second is None else (second.tau, f"{second.joules:.6g}")
            lines.append([setting, f"{place.snr_db:g}", f"{place.bandwidth:g}", *chosen, *other])
    return csv_text(COLUMNS, lines)


def summary(collected: Collected) -> dict[str, object]:
    """The constants behind the energies, by setting."""
    radio = Radio()
    found: dict[str, object] = {}
    for setting in collected.plan.settings:
        processor = processor_of(collected.plan, setting)
        found[setting] = {
            "cycles_per_sample": processor.cycles_per_sample,
            "frequency": processor.frequency,
            "capacitance": processor.capacitance,
            "power": radio.power,
        }
    return found


def draw(collected: Collected, folder: Path) -> list[str]:
    """A heat map a setting.

    Returns:
        the figures' names, without ending.

    Raises:
        InputError: matplotlib is not installed.
    """
    names = numbered(collected)
    for name, (setting, planned) in zip(names, plans(collected).items(), strict=True):
        save_heatmap(planned, [folder / f"{name}.png", folder / f"{name}.svg"], title(collected, setting))
    return names


def _grid(planned: Planned) -> Energy:
    energy = planned.spec.energy
    if energy is None:
        raise InputError(
            f"{planned.spec.name} is an energy map without [energy]: give target, snr and bandwidth",
            code="missing-option",
            field="energy",
        )
    return energy


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
