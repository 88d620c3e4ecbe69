"""``drfl energy``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from drfl.cli import console
from drfl.cli.to_config import named_code, overrides
from drfl.core.errors import DivergedError, InputError, Notice
from drfl.core.screen import ScreenTable
from drfl.core.user_code import label_of
from drfl.data import Dataset
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config, config_of, load_config, read_file
from drfl.experiments.config.data_settings import load_data
from drfl.experiments.config.hyperparameters import algorithm_name
from drfl.experiments.config.ready_run import Job
from drfl.experiments.run.artifacts import json_text, versions
from drfl.experiments.run.run_directory import check_free, claim_folder, fill_folder
from drfl.experiments.run.runner import execute, parse_seeds
from drfl.task.measure import NOTHING
from drfl.training import figure_style
from drfl.training.model_selection import TEST
from drfl_papers.commands.options import EnergyOptions
from drfl_papers.energy import measurements, output
from drfl_papers.energy.channel import LinkConditions, OverChannel, check
from drfl_papers.energy.cost import (
    CAPACITANCE,
    CYCLES_PER_FLOP,
    FREQUENCY,
    POWER,
    Cost,
    Payload,
    Processor,
    Radio,
    cost_of,
    payload_of,
    sample_flops,
)
from drfl_papers.energy.planner import LocalStepsPlan, Measurement, StepsCandidate, check_complete, plan

SAMPLES = 4
"""Number of samples for counting a model's operations."""


class Study(NamedTuple):
    """A job without a fixed number of local steps and seed."""

    config: Config
    dataset: Dataset
    first: Job

    @classmethod
    def of(cls, config: Config) -> Study:
        """Load the data, and make sure that the job can start.

        Raises:
            InputError: If the job cannot start.
        """
        dataset = load_data(config)
        return cls(config, dataset, build(config, dataset))

    def job(self, tau: int, seed: int) -> Job:
        """Build the job with τ local steps and a seed."""
        return build(with_steps(self.config, tau, seed), self.dataset)

    def flops(self) -> float:
        """Count the floating-point operations of one sample's gradient."""
        data = self.first.data
        return sample_flops(self.first.task, data.inputs[:SAMPLES], data.targets[:SAMPLES])

    def payloads(self, tau: int, places: Iterable[LinkConditions]) -> dict[float, Payload]:
        """Measure the payload of a round, by the probability of an outage."""
        payloads: dict[float, Payload] = {}
        for place in _one_per_outage(places):
            job = self.job(tau, self.config.seed)
            fading = place.fading(job.data.n) if place.outage else None
            payloads[place.outage] = payload_of(job.algorithm, job.fed, fading, seed=self.config.seed)
        return payloads


def with_steps(config: Config, tau: int, seed: int) -> Config:
    """Return the same job with τ local steps and another seed."""
    parameters = {**config.algorithms.get(config.algorithm, {}), "steps": tau}
    return config.model_copy(update={"seed": seed, "algorithms": {**config.algorithms, config.algorithm: parameters}})


def measure(
    study: Study,
    steps: Sequence[int],
    seeds: Sequence[int],
    places: Iterable[LinkConditions],
    target: float,
    quiet: bool,
) -> Iterator[Measurement]:
    """Run the job until its target for every τ, every seed and every outage of the places.

    A run that diverges has not reached the target.

    Raises:
        InputError: If a job cannot be built, or its algorithm cannot continue.
    """
    cells = [(place, tau, seed) for place in _one_per_outage(places) for tau in steps for seed in seeds]
    for count, (place, tau, seed) in enumerate(cells, start=1):
        suffix = f", {100 * place.outage:.3g} % outage" if place.outage else ""
        with console.progress(f"[{count}/{len(cells)}] τ = {tau}, seed {seed}{suffix}", quiet) as show:
            job = study.job(tau, seed)
            fading = place.fading(job.data.n) if place.outage else None
            if fading is not None:
                job = replace(job, algorithm=OverChannel(job.algorithm, fading))
            try:
                rows = execute(job, [show]).result.history.rows
                # If a client's outputs are not finite, its accuracy is undefined and the target is not reached.
                reached = (row for row in rows if row.metrics.worst_score >= target and not row.undefined[0])
                rounds = next((row.round for row in reached), None)
            except DivergedError as error:
                rounds = None
                if not quiet:
                    console.err.print(f"τ = {tau}, seed {seed}: {error}", markup=False)
        yield Measurement(tau, seed, rounds, place.outage)


def _one_per_outage(places: Iterable[LinkConditions]) -> list[LinkConditions]:
    """Choose one place for each outage, because client dropout depends on the outage alone."""
    return list({place.outage: place for place in places}.values())


SEEDS, ROUNDS = "3", 300
STEPS = (1, 5, 10, 15, 20, 25, 30)
SNRS = (0.0, 5.0, 10.0, 15.0, 20.0)
BANDWIDTHS = (1e5, 1e6, 1e7)

OF_THE_JOB = (
    "algorithm", "dataset", "partition", "clients", "alpha", "zipf", "model", "cohort", "batch", "lr", "param",
    "dtype",
)  # fmt: skip
"""Options that select the job; existing runs already contain their job."""

OF_THE_MACHINE = ("data_dir", "engine", "device", "threads")
"""Options that select where and how it runs."""


class PlanInputs(NamedTuple):
    """The input of the plan.

    Args:
        study: The job.
        runs: Rounds until the target.
        notes: Notes on the runs.
        source: Origin of the runs: "runs", "file" or "here".
    """

    study: Study
    runs: list[Measurement]
    notes: list[str]
    source: str


def energy_command(options: EnergyOptions) -> int:
    """Measure or read the rounds until the target, plan, write and print; return the exit code."""
    _check_contradictions(options)
    target, quiet = options.target_worst, options.as_json
    # The grid, bandwidth by bandwidth, each from the lowest SNR to the highest.
    snrs, bandwidths = sorted(set(options.snr or SNRS)), sorted(set(options.bandwidth or BANDWIDTHS))
    places = [LinkConditions(snr, hertz, options.rate_min) for hertz in bandwidths for snr in snrs]
    for place in places:
        check(place.bandwidth, place.snr_db)
        place.link()  # raises an error if the rate is impossible
    radio = Radio(POWER if options.power is None else options.power, options.downlink)
    _processor(options, 0.0)  # checks its numbers before anything runs
    figure_style.check()
    config = _config(options)
    name = f"energy-{label_of(config.algorithm)}-{config.dataset}".lower()
    out, overwrite = options.out, options.overwrite
    if out is not None:
        check_free(out, "plan", overwrite=overwrite)

    folder = out or Path("runs") / name
    job = f"{label_of(config.algorithm)} on {config.dataset}"
    with claim_folder(folder, "plan", overwrite=overwrite, numbered=out is None, warn=console.warn) as claim:
        inputs = _plan_inputs(options, config, places)
        cycles = options.cycles_per_sample
        processor = _processor(options, CYCLES_PER_FLOP * inputs.study.flops() if cycles is None else cycles)
        # Bytes per round and samples per step do not depend on τ: measure with the smallest, which is fastest.
        payloads = inputs.study.payloads(min(run.tau for run in inputs.runs), places)
        costs = {place: cost_of(payloads[place.outage], processor, radio, place.link()) for place in places}
        result = plan(inputs.runs, costs)
        result = result._replace(notes=(*inputs.notes, *result.notes))
        content = _summary(inputs, target, processor, radio, payloads, costs, result)
        texts = {
            "measurements.csv": measurements.to_csv(inputs.runs),
            "plan.csv": output.to_csv(result),
            "plan.md": output.to_markdown(result),
            "summary.json": json_text(content, indent=2) + "\n",
        }
        with fill_folder(claim) as stage:
            for file, text in texts.items():
                (stage / file).write_text(text, encoding="utf-8")
            pictures = [stage / "heatmap.png", stage / "heatmap.svg"]
            output.save_heatmap(result, pictures, f"{job}: {100 * target:g} % worst accuracy")
        claim.finished = True
    if all(cell.best is None for cell in result.cells):
        text = (
            f"no τ reaches {100 * target:g} % worst accuracy at every seed: lower --target-worst, or raise the rounds"
        )
        console.warn(Notice(text, "target-not-reached", "target_worst"))
    if quiet:
        print(json_text({**content, "directory": str(claim.directory)}))
        return 0
    title = f"{job}: local steps with the least energy to {100 * target:g} % worst accuracy"
    view = ScreenTable("bandwidth", *(f"{snr:g} dB" for snr in snrs), title=title, text=())
    cells = output.grid(result)
    for bandwidth in bandwidths:
        best = (cells[snr, bandwidth].best for snr in snrs)
        view.add_row(output.hertz(bandwidth), *(NOTHING if b is None else f"{b.tau} ({b.joules:.3g} J)" for b in best))
    console.out.print(view)
    for note in result.notes:
        console.out.print(f"note: {note}", markup=False)
    console.out.print(f"heat map: {claim.directory / 'heatmap.png'}", markup=False)
    return 0


def _check_contradictions(options: EnergyOptions) -> None:
    values = {**vars(options), **options.settings}

    def refuse(names: Sequence[str], why: str) -> None:
        for name in names:
            if values.get(name) not in (None, []):
                option = "a configuration" if name == "config" else f"--{name.replace('_', '-')}"
                raise InputError(
                    f"{option} has no effect with {why}. Remove one of them.",
                    code="conflicting-options",
                    field=option,
                )

    if options.runs:
        refuse(("measurements", "config", "steps", "seeds", "rounds", *OF_THE_JOB), "--runs")
    if options.measurements is not None:
        refuse(("steps", "seeds", "rounds"), "--measurements")
    if options.joules_per_step is not None:
        refuse(("capacitance",), "--joules-per-step")
    if options.fading and options.rate_min is None:
        raise InputError(
            "--fading requires --rate-min, the rate in bit/s below which a client is in outage",
            code="needs-option",
            field="fading",
        )
    if options.rate_min is not None and not options.fading:
        raise InputError("--rate-min requires --fading", code="unused-option", field="rate_min")
    if not 0 < options.target_worst <= 1:
        raise InputError(
            f"--target-worst must be above 0 and at most 1, got {options.target_worst}",
            code="out-of-range",
            field="target_worst",
        )


def _processor(options: EnergyOptions, cycles: float) -> Processor:
    return Processor(
        cycles if options.cycles_per_sample is None else options.cycles_per_sample,
        FREQUENCY if options.frequency is None else options.frequency,
        CAPACITANCE if options.capacitance is None else options.capacitance,
        options.joules_per_step,
    )


def _steps(options: EnergyOptions) -> list[int]:
    return sorted(set(options.steps or STEPS))


def _config(options: EnergyOptions) -> Config:
    """Return the job: that of the runs, or that of the file and the options."""
    if options.runs:
        machine = {name: value for name, value in options.settings.items() if name in OF_THE_MACHINE}
        return load_config(options.runs[0] / "config.toml", machine, trust=options.trust)
    selected = named_code({**options.settings, "algorithm": options.algorithm}, options.param)
    file = read_file(options.config, selected, trust=options.trust)
    named = options.algorithm or file.get("algorithm", "DRDM")  # the algorithm of the study
    algorithm = algorithm_name(str(named))
    rounds = {} if options.rounds is None else {"rounds": options.rounds}
    selected = {**options.settings, "algorithm": str(named), **rounds}
    # Check the first τ for all values, so that --param steps=… is rejected.
    values = overrides({**selected, "steps": _steps(options)[0]}, options.param, [algorithm])
    # Rounds to a target are those of the last iterate on test rows, as in the paper.
    config = config_of(file, {**values, "returned": "last", "until": f"{TEST}worst_accuracy={options.target_worst!r}"})
    return config if "rounds" in config.model_fields_set else config.model_copy(update={"rounds": ROUNDS})


def _plan_inputs(options: EnergyOptions, config: Config, places: list[LinkConditions]) -> PlanInputs:
    """Get the rounds until the target: from given runs, from the file, or from new runs."""
    target = options.target_worst
    if options.runs:
        read, notes = measurements.from_runs(options.runs, target)
        check_complete(read)
        return PlanInputs(Study.of(config), read, notes, "runs")
    if options.measurements is not None:
        read = measurements.read_csv(options.measurements)
        check_complete(read)
        config = with_steps(config, min(run.tau for run in read), config.seed)
        return PlanInputs(Study.of(config), read, [], "file")
    steps, seeds = _steps(options), parse_seeds(options.seeds or SEEDS)
    study = Study.of(with_steps(config, steps[0], seeds[0]))
    runs = list(measure(study, steps, seeds, places, target, options.as_json))
    rare = f"the runs were evaluated every {config.evaluate_every} rounds, so their rounds are rounded up"
    return PlanInputs(study, runs, [rare] if config.evaluate_every > 1 else [], "here")


def _summary(
    inputs: PlanInputs,
    target: float,
    processor: Processor,
    radio: Radio,
    payloads: Mapping[float, Payload],
    costs: Mapping[LinkConditions, Cost],
    result: LocalStepsPlan,
) -> dict[str, object]:
    """Collect the plan and everything from which it was made."""
    config = inputs.study.config
    job = config.model_dump(mode="json", exclude_none=True, exclude={"data_dir", "until", "seed", "steps"})
    parameters = {name: value for name, value in config.algorithms.get(config.algorithm, {}).items() if name != "steps"}
    return {
        "algorithm": config.algorithm,
        "dataset": config.dataset,
        "target_worst": target,
        "config": {**job, "algorithms": {config.algorithm: parameters}},
        "source": inputs.source,
        "processor": vars(processor),
        "radio": vars(radio),
        "payloads": [{"outage": outage, **payload._asdict()} for outage, payload in payloads.items()],
        "plan": [
            {
                **cell.place._asdict(),
                "outage": cell.place.outage,
                "cost": costs[cell.place]._asdict(),
                "best": _plain(cell.best),
                "runner_up": _plain(cell.runner_up),
            }
            for cell in result.cells
        ],
        "notes": list(result.notes),
        "versions": versions(),
    }


def _plain(candidate: StepsCandidate | None) -> dict[str, object] | None:
    return None if candidate is None else candidate._asdict()
