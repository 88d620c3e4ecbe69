"""The files of settings: server.toml and site.toml."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from drfl.core.errors import InputError, Notice
from drfl.core.files import read_toml
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.algorithm_settings import AlgorithmSettings
from drfl.experiments.config.config import APART
from drfl.experiments.config.guards_and_failures import uses_rows
from drfl.experiments.config.hyperparameters import canonical, parameters_of
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.config.settings import DataFields
from drfl.experiments.config.task_settings import TaskSettings
from drfl.federation.algorithm import Algorithm
from drfl.flower.messages import site_name
from drfl.flower.site_policy import SitePolicy
from drfl.task.models import LOSSES, MODELS
from drfl.training.model_selection import TEST

M = TypeVar("M", bound=BaseModel)


def read(path: Path, kind: type[M]) -> M:
    """The settings in a file.

    Raises:
        InputError: it is not there, or something in it is wrong; names it.
    """
    content = read_toml(path)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        # Report only the first error: the others often follow from it.
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        cause = first.get("ctx", {}).get("error", first["msg"])
        code = cause.code if isinstance(cause, InputError) else "invalid-value"
        raise InputError(f"'{path}'{f', {where}' if where else ''}: {cause}", code=code, field=where or None) from None


class SiteData(BaseModel):
    """Where a site's data lie; exactly one of the first four.

    Args:
        loader: "module:function", a function that gives a :class:`drfl.data.ClientData` of one client.
        npz: file with train_inputs, train_targets, and test_inputs, test_targets or neither.
        csv: table of numbers with a row a sample.
        images: IDX file, with ``labels``.
        target: the csv's column to predict.
        labels: IDX file.
        test_images: IDX file, with ``test_labels``.
        test_labels: IDX file.
        test_csv: like csv; without one a share of the rows is kept for testing.
        test_fraction: that share.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    loader: str | None = None
    npz: Path | None = None
    csv: Path | None = None
    images: Path | None = None
    target: str | None = None
    labels: Path | None = None
    test_images: Path | None = None
    test_labels: Path | None = None
    test_csv: Path | None = None
    test_fraction: float = Field(0.2, gt=0, lt=1)

    @model_validator(mode="after")
    def _one(self) -> SiteData:
        kinds = ("loader", "npz", "csv", "images")
        if sum(getattr(self, kind) is not None for kind in kinds) != 1:
            raise ValueError(f"give exactly one of {', '.join(kinds)}")
        for kind, needed in (("csv", "target"), ("images", "labels"), ("test_images", "test_labels")):
            if getattr(self, kind) is not None and getattr(self, needed) is None:
                raise ValueError(f"'{kind}' needs '{needed}'")
        return self


class SiteSettings(BaseModel):
    """``site.toml``.

    Args:
        name: of the site.
        data: where its data lie, relative to the file.
        timeout: seconds that a request may take.
        dtype: of the inputs, and of targets that are no labels.
        device: torch device.
        threads: torch's threads.
        audit: the site's log of what it was asked and sent, relative to the file; None = none.
        key: the node's private key, with which the site signs that log; None = the log is unsigned.
        previous_key: the private key before, which introduces the present one in the log; None = it is lost.
        server_key: the server's public key, by which the site verifies the heads of the server's log; None = it takes
            them as they come.
        policy: what the site lets go out, and when.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1)
    data: SiteData
    audit: Path | None = None
    key: Path | None = None
    previous_key: Path | None = None
    server_key: Path | None = None
    policy: SitePolicy = Field(default_factory=SitePolicy)
    timeout: float = Field(3600.0, gt=0)
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    threads: int | None = Field(None, ge=1, le=1024)

    @model_validator(mode="after")
    def _counted(self) -> SiteSettings:
        if self.policy.requests_a_day is not None and self.audit is None:
            raise ValueError('policy.requests_a_day is counted in the audit log: give it a line audit = "audit.jsonl"')
        return self


def read_site(path: Path) -> SiteSettings:
    """Read ``site.toml``.

    Raises:
        InputError: it is not there, or something in it is wrong; names it.
    """
    return read(path, SiteSettings)


class DeployedConfig(TaskSettings, AlgorithmSettings, RunSettings):
    """The configuration of a run whose data stay at the sites.

    Args:
        classes: number of classes; None = as many as the sites' labels need.
        standardise: whether sites scale the columns of their inputs by mean and standard deviation over all sites'
            training rows; None = where inputs are vectors.
        sites: the sites' names, in the order of the clients; those of ``[[sites]]``.
    """

    classes: int | None = Field(None, ge=1)
    standardise: bool | None = None
    sites: tuple[str, ...] = ()

    @property
    def most_requests(self) -> int:
        """The requests that one site gets at most in an undisturbed run, those before the first round included."""
        return 10 + 3 * self.rounds * (1 + (self.repeats or 0))

    @field_validator("model", "loss", mode="before")
    @classmethod
    def _known_to_sites(cls, value: object, info: ValidationInfo) -> object:
        """Sites make the model and its loss from their names, and run no code from elsewhere."""
        kind = str(info.field_name)
        return canonical(kind, value, {"model": MODELS, "loss": LOSSES}[kind]) if isinstance(value, str) else value

    @field_validator("until")
    @classmethod
    def _on_test_rows(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(TEST):
            raise InputError(
                f"until = '{value}' needs validation rows, which a deployment has none of: give until = "
                f"'{TEST}{value}', which stops by test rows and leaves the results without intervals",
                code="no-validation",
                field="until",
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _data_of_sites(cls, values: object) -> object:
        for name in values if isinstance(values, dict) else ():
            if name in OF_SIMULATIONS:
                raise ValueError(f"'{name}' has no effect when sites hold their own data: remove it")
        return values

    def about(self, algorithm: Algorithm, clients: int) -> AboutRun:
        """See :meth:`drfl.experiments.config.config.Config.about`."""
        plain = {name: value for name, value in self.plain().items() if name not in APART}
        parameters = parameters_of(algorithm, clients)
        return AboutRun(self.algorithm, parameters, None, self.model, self.dtype, plain)


OF_SIMULATIONS = (
    *(field.name for field in dataclasses.fields(DataFields)),
    *("certificate", "validation", "select", "patience", "judged_on"),
)
"""Keys of a simulation's configuration that a deployed run does not have."""


SHARE = 0.5
"""The largest share of all sites' training rows that is proposed for one of many sites."""


def share_limit(sites: int) -> float | None:
    """The ``max_share`` that is proposed for each of so many sites: of three one may have two thirds, of two any."""
    return max(SHARE, round(2 / sites, 3)) if sites > 2 else None


class SiteEntry(BaseModel):
    """A site as the server knows it.

    Args:
        name: of the site.
        public_key: file with its public key (OpenSSH), relative to server.toml; None only where ``insecure``.
        rows: the most training rows that it may claim; None = any number.
        classes: the most classes that its labels may need; None = any number.
        max_share: the largest share of all sites' training rows that it may claim; None = any.
        probe: where rows lie that the server holds and that stand for the site's, for the aggregator and the guard
            "probe"; paths are relative to server.toml, and test data in it are not read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, AfterValidator(site_name)]
    public_key: Path | None = None
    rows: int | None = Field(None, ge=1)
    classes: int | None = Field(None, ge=1)
    max_share: float | None = Field(None, gt=0, le=1)
    probe: SiteData | None = None


class ServerSettings(BaseModel):
    """``server.toml``.

    Args:
        out: the run's folder, relative to the file.
        timeout: seconds that an exchange may take.
        grace: seconds that the others still have once ``job.min_replies`` sites have answered; None = wait for all, up
            to ``timeout``.
        wait: seconds to wait for the sites at the start.
        insecure: whether sites are not authenticated.
        audit: the server's log of who was asked and what came, relative to the file; None = none.
        key: the private key with which the server signs that log, relative to the file; None = the log is unsigned.
        previous_key: the private key before, which introduces the present one in the log; None = it is lost.
        job: the run.
        sites: in the order of the clients.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    out: Path = Path("run")
    timeout: float = Field(600.0, gt=0, allow_inf_nan=False)
    grace: float | None = Field(None, ge=0, allow_inf_nan=False)
    wait: float = Field(300.0, gt=0, allow_inf_nan=False)
    insecure: bool = False
    audit: Path | None = None
    key: Path | None = None
    previous_key: Path | None = None
    job: DeployedConfig
    sites: tuple[SiteEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _named(self) -> ServerSettings:
        names = [site.name for site in self.sites]
        if len(set(names)) < len(names):
            raise ValueError("two sites have the same name")
        keyless = [site.name for site in self.sites if site.public_key is None]
        if keyless and not self.insecure:
            raise ValueError(
                f"site '{keyless[0]}' has no public_key: give it one, or set insecure = true to try things out"
            )
        if self.grace is not None and self.job.min_replies is None:
            raise ValueError("grace requires job.min_replies, how many replies are enough: give both")
        unprobed = [site.name for site in self.sites if site.probe is None]
        if 0 < len(unprobed) < len(self.sites):
            raise ValueError(
                f"site '{unprobed[0]}' has no probe, and others have: give it rows too, the same file will do"
            )
        # Probes that no rule uses would give a false sense of protection.
        if self.sites and not unprobed and not uses_rows(self.job.guards, self.job.aggregator):
            raise ValueError(
                'the sites have probes, and nothing uses them: set job.aggregator = "probe" or job.guards = '
                '["probe"], or take them out'
            )
        if self.job.min_replies is not None and self.job.min_replies > len(self.sites):
            raise ValueError(f"job.min_replies = {self.job.min_replies}, and there are {len(self.sites)} sites")
        return self

    def unprotected(self) -> Notice | None:
        """A notice if there are more than two sites and nothing bounds what one of them can do to the model."""
        # With two sites or fewer, no rule could tell which of them is wrong.
        limited = all(site.rows is not None or site.max_share is not None for site in self.sites)
        if len(self.sites) <= 2 or limited or self.job.aggregator is not None or self.sites[0].probe is not None:
            return None
        return Notice(
            "nothing bounds the influence of a single site: server.toml has no limits for all sites, no probes and no "
            "aggregator. 'drfl deploy check' proposes limits, and writes them with --write",
            "unprotected-sites",
            "sites",
        )


def read_server(path: Path) -> ServerSettings:
    """Read ``server.toml``.

    Raises:
        InputError: it is not there, or something in it is wrong; names it.
    """
    return read(path, ServerSettings)
