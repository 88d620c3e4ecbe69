"""What one table or figure of a paper is: a specification, kept as a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from drfl.core.errors import InputError, unknown
from drfl.experiments.config.hyperparameters import Value
from drfl.training.history import ACCURACY_COLUMNS

PAPERS = Path(__file__).parent
"""The folder of the papers' specifications, jobs and tuned hyperparameters."""

Job = dict[str, bool | int | float | str]
"""Keys of a `drfl.experiments.config.config.Config`, or of a `drfl_papers.saddle_distance.Distance`."""


DEFAULTS: Job = {"returned": "last"}
"""What the papers' runs have unless they say otherwise: they report the last iterate."""


class JobFile(NamedTuple):
    """Data, partition and model of some tables and figures; its name is that of the file of tuned hyperparameters too.

    Args:
        values: keys of a `Config`.
        stand_in: what is changed where the paper's data or weights cannot be had; None = they can.
    """

    values: Job
    stand_in: Job | None

    def chosen(self, stand_in: bool) -> Job:
        """The job on the paper's data, or on the stand-in where there is one."""
        return {**DEFAULTS, **self.values, **((self.stand_in or {}) if stand_in else {})}


class _SpecPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpecSetting(_SpecPart):
    """One setting that all methods run in: a column of a table, a figure of its own among curves.

    Args:
        name: as it is shown, e.g. "α = 0.1".
        base: name of its job file; None = the specification's.
        job: what it changes in the job.
    """

    name: str
    base: str | None = None
    job: Job = Field(default_factory=dict)


class MethodRow(_SpecPart):
    """One row of a table, one curve of a figure.

    Args:
        name: as it is shown.
        algorithm: which one it is.
        parameters: of the algorithm, over the tuned ones.
        grid: of a `distance` figure: values to choose from by the error after some trial rounds.
        job: what it changes in the job, after the setting.
        tuned: whether it takes the hyperparameters that were tuned under its name; or under which name.
        rounds: how many, where it needs another number than the rest.
    """

    name: str
    algorithm: str
    parameters: dict[str, Value] = Field(default_factory=dict)
    grid: dict[str, list[float]] = Field(default_factory=dict)
    job: Job = Field(default_factory=dict)
    tuned: bool | str = True
    rounds: int | None = Field(None, ge=1)

    @property
    def tuned_as(self) -> str | None:
        """The name that its hyperparameters were tuned under; None = they were not."""
        return self.name if self.tuned is True else self.tuned or None


class Panel(_SpecPart):
    """One plot of a figure.

    Args:
        x: "round", "iterations" (local steps), or "bytes" sent both ways; for a scatter plot a metric.
        y: a metric, or "distance".
    """

    x: str = "round"
    y: str = "worst_accuracy"


class TargetLevel(_SpecPart):
    """A level whose first round is looked for.

    Args:
        metric: which metric must reach it.
        value: the level.
    """

    metric: str
    value: float


class Cut(_SpecPart):
    """A shorter version.

    Args:
        rounds: how many, where fewer.
        repeats: how many, where fewer.
    """

    rounds: int = Field(default=20, ge=1)
    repeats: int = Field(default=2, ge=1)


class StandIn(_SpecPart):
    """What is run where the paper's data or weights cannot be had, besides what the job file says.

    Args:
        why: the sentence at the head of the table.
        settings_job: what it changes by setting, after the setting and before the method.
        rounds: how many; None = as many.
        repeats: how many; None = as many.
        settings: names of those that are run; None = all.
    """

    why: str
    settings_job: dict[str, Job] = Field(default_factory=dict)
    rounds: int | None = Field(None, ge=1)
    repeats: int | None = Field(None, ge=1)
    settings: list[str] | None = None


class Energy(_SpecPart):
    """The grid of an energy map.

    Args:
        target: worst accuracy to reach.
        snr: signal-to-noise ratios in dB.
        bandwidth: in Hz.
    """

    target: float = Field(gt=0, le=1)
    snr: list[float]
    bandwidth: list[float]


class Specification(_SpecPart):
    """A table or figure.

    Args:
        name: of the specification.
        paper: where it stands, e.g. "DRDM (Krouka et al. 2025), Table 3".
        title: what it shows.
        kind: "table", "curves", "scatter", "distance" (to a known optimum) or "energy".
        job: name of a job file, whose hyperparameters the methods take; or the values themselves, and nothing is tuned.
        rounds: of communication.
        repeats: seeds 0 to repeats − 1: another partition and initial model each.
        evaluate_every: test every so many rounds.
        metrics: of the table; the paper's numbers are in this order.
        settings: at least one.
        methods: at least one.
        reference: the method that the paired differences are taken from; None = the first.
        values: the paper's numbers by setting and method, in the order of `metrics`, in percent.
        panels: of a figure.
        targets: levels whose first round is looked for, with the rounds that the paper gives by method.
        reached: rounds to the first target in the paper, by method.
        energy: of an energy map.
        quick: the short version.
        stand_in: where the paper's data cannot be had.
        note: what a reader must know.
    """

    name: str
    paper: str
    title: str
    kind: Literal["table", "curves", "scatter", "distance", "energy"] = "table"
    job: str | Job
    rounds: int = Field(100, ge=1)
    repeats: int = Field(10, ge=1)
    evaluate_every: int = Field(5, ge=1)
    metrics: list[str] = ["avg_accuracy", "worst_accuracy", "std_accuracy"]
    settings: list[SpecSetting] = Field(min_length=1)
    methods: list[MethodRow] = Field(min_length=1)
    reference: str | None = None
    values: dict[str, dict[str, list[float]]] = Field(default_factory=dict)
    panels: list[Panel] = Field(default_factory=list)
    targets: list[TargetLevel] = Field(default_factory=list)
    reached: dict[str, int] = Field(default_factory=dict)
    energy: Energy | None = None
    quick: Cut = Cut()
    stand_in: StandIn | None = None
    note: str = ""

    @model_validator(mode="after")
    def _names_agree(self) -> Specification:
        settings, methods = [s.name for s in self.settings], [m.name for m in self.methods]
        _distinct("setting", settings)
        _distinct("method", methods)
        for metric in (*self.metrics, *(target.metric for target in self.targets)):
            _known("metric", metric, ACCURACY_COLUMNS)
        for setting in self.stand_in.settings_job if self.stand_in is not None else ():
            _known("setting", setting, settings)
        for method in (*self.reached, *([self.reference] if self.reference else [])):
            _known("method", method, methods)
        for setting, rows in self.values.items():
            _known("setting", setting, settings)
            for method, numbers in rows.items():
                _known("method", method, methods)
                if len(numbers) != len(self.metrics):
                    raise InputError(
                        f"{method}, {setting}: {len(numbers)} numbers for {len(self.metrics)} metrics",
                        code="count-mismatch",
                    )
        return self


def _distinct(kind: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise InputError(f"two {kind}s have the same name", code="duplicate-name", field=kind)


def _known(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise unknown(kind, name, known)


def names() -> list[str]:
    """The names of the specifications that drfl has, the papers in the order of their years' tables and figures."""

    def paper_kind_number(name: str) -> tuple[str, str, int]:
        paper, kind, number = name.split("-", 2)
        return paper, kind, int(number)

    return sorted((path.stem for path in (PAPERS / "specs").glob("*.toml")), key=paper_kind_number)


def load_spec(name: str) -> Specification:
    """A specification by its name.

    Raises:
        InputError: there is none of that name; the nearest is suggested.
    """
    known = names()
    plain = name.strip().lower().replace("_", "-")
    if plain not in known:
        raise unknown("table or figure", name, known, field="name")
    path = PAPERS / "specs" / f"{plain}.toml"
    return parse({"name": plain, **tomllib.loads(path.read_text(encoding="utf-8"))})


def parse(values: Mapping[str, object]) -> Specification:
    """A specification from plain values.

    Raises:
        InputError: a key is unknown, a value impossible, or names do not agree.
    """
    try:
        return Specification.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        reason = cause if isinstance(cause, InputError) else f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(f"specification {values.get('name')}: {reason}", code="invalid-value") from None


def load_job(name: str) -> JobFile:
    """A job file of the papers by its name."""
    values = tomllib.loads((PAPERS / "jobs" / f"{name}.toml").read_text(encoding="utf-8"))
    stand_in = values.pop("stand_in", None)
    return JobFile(values, stand_in)
