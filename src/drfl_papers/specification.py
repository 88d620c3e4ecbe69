"""Specifications: TOML files that describe one table or figure of a paper."""

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
"""Keys of a `drfl.experiments.config.config.Config` or a `drfl_papers.saddle_distance.Distance`."""


DEFAULTS: Job = {"returned": "last", "safeguard": "start"}
"""Default values of the papers' runs: they report the last iterate, and no client checks the model during the run."""


class JobFile(NamedTuple):
    """Data, partition and model of some tables and figures; the file of tuned hyperparameters has the same name."""

    values: Job
    stand_in: Job | None

    def chosen(self, stand_in: bool) -> Job:
        """Return the job on the paper's data, or on the stand-in if requested and there is one."""
        return {**DEFAULTS, **self.values, **((self.stand_in or {}) if stand_in else {})}


class _SpecPart(BaseModel):
    # A misspelt key would otherwise leave its default in place, and the table would not be the paper's.
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpecSetting(_SpecPart):
    """One setting in which all methods run: a column of a table, or a separate figure of curves."""

    name: str
    base: str | None = None
    job: Job = Field(default_factory=dict)


class MethodRow(_SpecPart):
    """One row of a table, or one curve of a figure.

    Args:
        name: Displayed name.
        algorithm: Name of the algorithm.
        parameters: Parameters of the algorithm; they override the tuned ones.
        grid: In a `distance` figure, values to choose from by the error after some trial rounds.
        job: Its changes to the job, applied after those of the setting.
        tuned: Whether it uses the hyperparameters tuned under its name, or the name under which they were tuned.
        rounds: Number of rounds, if it differs from the other methods'.
    """

    name: str
    algorithm: str
    parameters: dict[str, Value] = Field(default_factory=dict)
    grid: dict[str, list[float]] = Field(default_factory=dict)
    job: Job = Field(default_factory=dict)
    # A name shares the trials of another method, as variants that differ in one fixed parameter do.
    tuned: bool | str = True
    rounds: int | None = Field(None, ge=1)

    @property
    def tuned_as(self) -> str | None:
        """The name under which its hyperparameters were tuned; None if they were not tuned."""
        return self.name if self.tuned is True else self.tuned or None


class Panel(_SpecPart):
    """One plot of a figure.

    Args:
        x: "round", "iterations" (local steps), or "bytes" (sent in both directions); for a scatter plot, a metric.
        y: A metric, or "distance".
    """

    x: str = "round"
    y: str = "worst_accuracy"


class TargetLevel(_SpecPart):
    """A level to reach."""

    metric: str
    value: float


class Cut(_SpecPart):
    """A shorter version, with the smaller of these numbers and the specification's."""

    rounds: int = Field(default=20, ge=1)
    repeats: int = Field(default=2, ge=1)


class StandIn(_SpecPart):
    """Changes if the paper's data or weights are not available, in addition to those of the job file.

    Args:
        why: Sentence at the head of the table.
        settings_job: Changes by setting, applied after the setting's and before the method's.
        rounds: Number of rounds; None for no change.
        repeats: Number of repeats; None for no change.
        settings: Names of the settings to run; None for all.
    """

    why: str
    settings_job: dict[str, Job] = Field(default_factory=dict)
    rounds: int | None = Field(None, ge=1)
    repeats: int | None = Field(None, ge=1)
    settings: list[str] | None = None


class Energy(_SpecPart):
    """The grid of an energy map."""

    target: float = Field(gt=0, le=1)
    snr: list[float]
    bandwidth: list[float]


class Specification(_SpecPart):
    """A table or figure.

    Args:
        name: Name of the specification.
        paper: Its place in the paper, e.g. "DRDM (Krouka et al. 2025), Table 3".
        title: Title of the table or figure.
        kind: "table", "curves", "scatter", "distance" (to a known optimum) or "energy".
        job: Name of a job file, whose hyperparameters the methods use; or the values, and then nothing is tuned.
        rounds: Rounds of communication.
        repeats: Number of seeds, starting at 0; each has its own partition and initial model.
        evaluate_every: Evaluate after every this many rounds.
        metrics: Metrics of the table; the paper's numbers are in this order.
        settings: At least one setting.
        methods: At least one method.
        reference: Method from which the paired differences are taken; None for the first.
        values: The paper's numbers by setting and method, in the order of `metrics`, in percent.
        panels: Panels of a figure.
        targets: Levels whose first round is reported.
        reached: The paper's rounds to the first target, by method.
        energy: Grid of an energy map.
        quick: The short version.
        stand_in: Changes if the paper's data are not available.
        note: Remarks for the reader.
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
        # Names connect the parts of a file. One that matches nothing would silently drop a number of the paper.
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
    """List the names of all specifications, sorted by paper, kind and number."""

    def paper_kind_number(name: str) -> tuple[str, str, int]:
        paper, kind, number = name.split("-", 2)
        # As text, table 10 would come before table 2.
        return paper, kind, int(number)

    return sorted((path.stem for path in (PAPERS / "specs").glob("*.toml")), key=paper_kind_number)


def load_spec(name: str) -> Specification:
    """Load a specification by its name.

    Raises:
        InputError: If the name is unknown; the nearest one is suggested.
    """
    known = names()
    plain = name.strip().lower().replace("_", "-")
    if plain not in known:
        raise unknown("table or figure", name, known, field="name")
    path = PAPERS / "specs" / f"{plain}.toml"
    return parse({"name": plain, **tomllib.loads(path.read_text(encoding="utf-8"))})


def parse(values: Mapping[str, object]) -> Specification:
    """Make a specification from plain values.

    Raises:
        InputError: If a key is unknown, a value is invalid, or names do not agree.
    """
    try:
        return Specification.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        # pydantic wraps an error of a validator, whose own text is the better one.
        cause = first.get("ctx", {}).get("error")
        reason = cause if isinstance(cause, InputError) else f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(f"specification {values.get('name')}: {reason}", code="invalid-value") from None


def load_job(name: str) -> JobFile:
    """Load a job file of the papers by its name."""
    values = tomllib.loads((PAPERS / "jobs" / f"{name}.toml").read_text(encoding="utf-8"))
    stand_in = values.pop("stand_in", None)
    return JobFile(values, stand_in)
