"""``drfl energy``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from rich.table import Table

from drfl.algorithms import ALGORITHMS
from drfl.cli import screen
from drfl.cli.energy_runs import Study, measure, with_steps
from drfl.cli.overrides import overrides
from drfl.energy import figures, measurements, tables
from drfl.energy.account import POWER, Cost, Payload, Radio, cost_of
from drfl.energy.channel import Place, check
from drfl.energy.planner import Candidate, Measurement, Plan, check_complete, plan
from drfl.energy.processing import CAPACITANCE, CYCLES_PER_FLOP, FREQUENCY, Processor
from drfl.errors import InputError
from drfl.experiments.claim import claimed, filled
from drfl.experiments.config import Config, load_config
from drfl.experiments.parameters import canonical
from drfl.experiments.place import check_free
from drfl.experiments.rundir import json_text, versions
from drfl.experiments.runner import parse_seeds

TARGET, SEEDS, ROUNDS = 0.8, "3", 300
STEPS = (1, 5, 10, 15, 20, 25, 30)
SNRS = (0.0, 5.0, 10.0, 15.0, 20.0)
BANDWIDTHS = (1e5, 1e6, 1e7)

OF_THE_JOB = (
    "algorithm", "dataset", "partition", "clients", "alpha", "sigma", "model", "cohort", "batch", "lr", "param",
    "dtype",
)  # fmt: skip
"""Options that say which job runs; runs that are there already say so themselves."""

OF_THE_MACHINE = ("data_dir", "engine", "device", "threads")
"""Options that say where it runs."""


class Devices(NamedTuple):
    """What every client has.

    Args:
        processor: its processor.
        radio: its radio.
    """

    processor: Processor
    radio: Radio


class Found(NamedTuple):
    """What the plan is made from.

    Args:
        study: the job.
        runs: rounds until the target.
        notes: on these.
        source: where they are from: "runs", "file" or "here".
    """

    study: Study
    runs: list[Measurement]
    notes: list[str]
    source: str


def energy_command(given: Mapping[str, object]) -> int:
    """Measure or read rounds until the target, plan, write, print; gives the exit code."""
    _check_contradictions(given)
    places, target = _places(given), _target(given)
    radio, quiet = Radio(_number(given, "power", POWER), _option(given, "downlink")), bool(given["as_json"])
    _processor(given, 0.0)  # its numbers are checked before anything runs
    figures.require()
    config = _config(given, target)
    name = f"energy-{config.algorithm}-{config.dataset}".lower()
    out, overwrite = cast("Path | None", given["out"]), bool(given["overwrite"])
    if out is not None:
        check_free(out, "plan", overwrite=overwrite)

    place = out or Path("runs") / name
    with claimed(place, "plan", overwrite=overwrite, anew=out is None, tell=screen.warn) as claim:
        found = _found(given, config, places, target, quiet)
        cycles = _option(given, "cycles_per_sample")
        processor = _processor(given, CYCLES_PER_FLOP * found.study.flops() if cycles is None else cycles)
        payloads = found.study.payloads(min(run.tau for run in found.runs), places)
        devices = Devices(processor, radio)
        costs = {place: cost_of(payloads[place.outage], processor, radio, place.link()) for place in places}
        made = plan(found.runs, costs)
        made = made._replace(notes=(*found.notes, *made.notes))
        content = _summary(found, target, devices, payloads, costs, made)
        with filled(claim) as folder:
            _write(folder, found.runs, made, content, f"{_job(config)}: {100 * target:g} % worst accuracy")
        claim.finished = True
    if quiet:
        print(json_text({**content, "directory": str(claim.directory)}))
    else:
        _print(made, f"{_job(config)}: local steps with the least energy to {100 * target:g} % worst", claim.directory)
    return 0


def _check_contradictions(given: Mapping[str, object]) -> None:
    """Refuse options that would be lost to others."""

    def refuse(names: Sequence[str], why: str) -> None:
        for name in names:
            if given[name] is not None and given[name] != []:
                option = "a configuration" if name == "config" else f"--{name.replace('_', '-')}"
                raise InputError(f"{option} has no effect beside {why}: leave one of them out")

    if given["runs"]:
        refuse(("measurements", "config", "steps", "seeds", "rounds", *OF_THE_JOB), "--runs")
    if given["measurements"] is not None:
        refuse(("steps", "seeds", "rounds"), "--measurements")
    if given["joules_per_step"] is not None:
        refuse(("capacitance",), "--joules-per-step")
    if given["fading"] and given["rate_min"] is None:
        raise InputError("--fading needs --rate-min, the rate in bit/s below which a client is in outage")
    if given["rate_min"] is not None and not given["fading"]:
        raise InputError("--rate-min means nothing without --fading: give both or none")


def _option(given: Mapping[str, object], name: str) -> float | None:
    return cast("float | None", given[name])


def _number(given: Mapping[str, object], name: str, default: float) -> float:
    value = _option(given, name)
    return default if value is None else value


def _processor(given: Mapping[str, object], cycles: float) -> Processor:
    cycles = _number(given, "cycles_per_sample", cycles)
    frequency = _number(given, "frequency", FREQUENCY)
    capacitance = _number(given, "capacitance", CAPACITANCE)
    return Processor(cycles, frequency, capacitance, _option(given, "joules_per_step"))


def _target(given: Mapping[str, object]) -> float:
    target = _number(given, "target_worst", TARGET)
    if not 0 < target <= 1:
        raise InputError(f"--target-worst must lie above 0 and be at most 1, not {target}")
    return target


def _places(given: Mapping[str, object]) -> list[Place]:
    """The grid, bandwidth by bandwidth, each from the lowest SNR to the highest."""
    snrs = sorted(set(cast("list[float] | None", given["snr"]) or SNRS))
    bandwidths = sorted(set(cast("list[float] | None", given["bandwidth"]) or BANDWIDTHS))
    places = [Place(snr, hertz, _option(given, "rate_min")) for hertz in bandwidths for snr in snrs]
    for place in places:
        check(place.bandwidth, place.snr_db)
        place.link()
    return places


def _steps(given: Mapping[str, object]) -> list[int]:
    return sorted(set(cast("list[int] | None", given["steps"]) or STEPS))


def _config(given: Mapping[str, object], target: float) -> Config:
    """The job: that of the runs, or that of the file and the options."""
    machine = {name: given[name] for name in OF_THE_MACHINE if given[name] is not None}
    if runs := cast("list[Path] | None", given["runs"]):
        return load_config(runs[0] / "config.toml", machine)
    path = cast("Path | None", given["config"])
    algorithm = canonical("algorithm", str(given["algorithm"] or load_config(path, {}).algorithm), ALGORITHMS)
    own = {name: given[name] for name in ("rounds", *OF_THE_JOB, *OF_THE_MACHINE)}
    # the first τ stands for all, so that a --param steps=… beside them is refused
    values = overrides({**own, "steps": _steps(given)[0]}, [algorithm])
    config = load_config(path, {**values, "until": f"worst_accuracy={target!r}"})
    return config if "rounds" in config.model_fields_set else config.model_copy(update={"rounds": ROUNDS})


def _found(given: Mapping[str, object], config: Config, places: list[Place], target: float, quiet: bool) -> Found:
    """Rounds until the target: from the runs, from the file, or from runs made now."""
    if runs := cast("list[Path] | None", given["runs"]):
        read, notes = measurements.from_runs(runs, target)
        check_complete(read)
        return Found(Study.of(config), read, notes, "runs")
    if (path := cast("Path | None", given["measurements"])) is not None:
        read = measurements.read_csv(path)
        check_complete(read)
        config = with_steps(config, min(run.tau for run in read), config.seed)
        return Found(Study.of(config), read, [], "file")
    steps, seeds = _steps(given), parse_seeds(str(given["seeds"] or SEEDS))
    study = Study.of(with_steps(config, steps[0], seeds[0]))
    made = list(measure(study, steps, seeds, places, target, quiet))
    rare = f"the runs were tested every {config.evaluate_every} rounds only, so rounds are rounded up to such"
    return Found(study, made, [rare] if config.evaluate_every > 1 else [], "here")


def _job(config: Config) -> str:
    return f"{config.algorithm} on {config.dataset}"


def _summary(
    found: Found,
    target: float,
    devices: Devices,
    payloads: Mapping[float, Payload],
    costs: Mapping[Place, Cost],
    made: Plan,
) -> dict[str, object]:
    """Everything that the plan was made from, and the plan."""
    config = found.study.config
    job = config.model_dump(mode="json", exclude_none=True, exclude={"data_dir", "until", "seed", "steps"})
    own = {name: value for name, value in config.algorithms.get(config.algorithm, {}).items() if name != "steps"}
    return {
        "algorithm": config.algorithm,
        "dataset": config.dataset,
        "target_worst": target,
        "config": {**job, "algorithms": {config.algorithm: own}},
        "source": found.source,
        "processor": vars(devices.processor),
        "radio": vars(devices.radio),
        "payloads": [{"outage": outage, **payload._asdict()} for outage, payload in payloads.items()],
        "plan": [
            {
                **cell.place._asdict(),
                "outage": cell.place.outage,
                "cost": costs[cell.place]._asdict(),
                "best": _plain(cell.best),
                "runner_up": _plain(cell.runner_up),
            }
            for cell in made.cells
        ],
        "notes": list(made.notes),
        "versions": versions(),
    }


def _plain(candidate: Candidate | None) -> dict[str, object] | None:
    return None if candidate is None else candidate._asdict()


def _write(folder: Path, runs: Sequence[Measurement], made: Plan, content: Mapping[str, object], title: str) -> None:
    write = {
        "measurements.csv": measurements.to_csv(runs),
        "plan.csv": tables.to_csv(made),
        "plan.md": tables.to_markdown(made),
        "summary.json": json_text(content, indent=2) + "\n",
    }
    for name, text in write.items():
        (folder / name).write_text(text, encoding="utf-8")
    figures.save_heatmap(made, [folder / "heatmap.png", folder / "heatmap.svg"], title)


def _print(made: Plan, title: str, directory: Path) -> None:
    view = Table(title=title, title_justify="left")
    view.add_column("bandwidth", justify="right")
    snrs, bandwidths = tables.axes([cell.place for cell in made.cells])
    cells = tables.grid(made)
    for snr in snrs:
        view.add_column(f"{snr:g} dB", justify="right")
    for bandwidth in bandwidths:
        best = (cells[snr, bandwidth].best for snr in snrs)
        view.add_row(
            tables.hertz(bandwidth), *(tables.NONE if b is None else f"{b.tau} ({b.joules:.3g} J)" for b in best)
        )
    screen.out.print(view)
    for note in made.notes:
        screen.out.print(f"note: {note}", markup=False)
    screen.out.print(f"heat map: {directory / 'heatmap.png'}", markup=False)
