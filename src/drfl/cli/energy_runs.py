"""What ``drfl energy`` measures: rounds until the target, and what a round takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from drfl.cli import screen
from drfl.data import Dataset
from drfl.energy.account import Payload, payload_of
from drfl.energy.channel import Place
from drfl.energy.participation import OverChannel
from drfl.energy.planner import Measurement
from drfl.energy.processing import sample_flops
from drfl.errors import DivergedError
from drfl.experiments.build import Job, build
from drfl.experiments.config import Config
from drfl.experiments.runner import execute, prepare

SAMPLES = 4
"""Samples on which a model's operations are counted."""


class Study(NamedTuple):
    """A job, whose local steps and seed are still open.

    Args:
        config: the job.
        dataset: its data.
    """

    config: Config
    dataset: Dataset

    @classmethod
    def of(cls, config: Config) -> Study:
        """Load the data, and make sure that the job can start.

        Raises:
            InputError: it cannot.
        """
        return cls(config, prepare(config, [config.algorithm], [config.seed]))

    def job(self, tau: int, seed: int) -> Job:
        """The job with these."""
        return build(with_steps(self.config, tau, seed), self.dataset)

    def flops(self) -> float:
        """Floating-point operations of one sample's gradient."""
        job = build(self.config, self.dataset)
        return sample_flops(job.task, job.data.inputs[:SAMPLES], job.data.targets[:SAMPLES])

    def payloads(self, tau: int, places: Iterable[Place]) -> dict[float, Payload]:
        """What a round takes, by the probability of an outage."""
        found: dict[float, Payload] = {}
        for place in _one_an_outage(places):
            job = self.job(tau, self.config.seed)
            fading = place.fading(job.data.n) if place.outage else None
            found[place.outage] = payload_of(job.algorithm, job.fed, fading, seed=self.config.seed)
        return found


def with_steps(config: Config, tau: int, seed: int) -> Config:
    """The same job with τ local steps and another seed."""
    own = {**config.algorithms.get(config.algorithm, {}), "steps": tau}
    return config.model_copy(update={"seed": seed, "algorithms": {**config.algorithms, config.algorithm: own}})


def measure(
    study: Study, steps: Sequence[int], seeds: Sequence[int], places: Iterable[Place], target: float, quiet: bool
) -> Iterator[Measurement]:
    """Run the job until its target for every τ and seed, and for every outage that the places have.

    A run that diverges has not reached the target.

    Args:
        study: the job; it ends at its own ``until``, or after its ``rounds``.
        steps: the τ.
        seeds: the seeds.
        places: the channels.
        target: the worst accuracy to reach, a fraction.
        quiet: show nothing.

    Raises:
        InputError: a job cannot be built, or its algorithm cannot go on.
    """
    cells = [(place, tau, seed) for place in _one_an_outage(places) for tau in steps for seed in seeds]
    for count, (place, tau, seed) in enumerate(cells, start=1):
        where = f", {100 * place.outage:.3g} % outage" if place.outage else ""
        with screen.progress(f"[{count}/{len(cells)}] τ = {tau}, seed {seed}{where}", quiet) as show:
            job = study.job(tau, seed)
            fading = place.fading(job.data.n) if place.outage else None
            if fading is not None:
                job = job._replace(algorithm=OverChannel(job.algorithm, fading))
            try:
                rows = execute(job, [show]).result.history.rows
                rounds = next((row.round for row in rows if row.metrics.worst_accuracy >= target), None)
            except DivergedError as error:
                rounds = None
                if not quiet:
                    screen.err.print(f"τ = {tau}, seed {seed}: {error}", markup=False)
        yield Measurement(tau, seed, rounds, place.outage)


def _one_an_outage(places: Iterable[Place]) -> list[Place]:
    """One place for each outage: the clients that drop out depend on it alone."""
    return list({place.outage: place for place in places}.values())
