"""The settings files of a deployment: server.toml and site.toml."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from drfl.core.audit_log import AuditLog, Role
from drfl.core.audit_signatures import SigningKey, read_signing_key
from drfl.core.errors import InputError, Notice, suggestion
from drfl.core.json_toml import read_toml
from drfl.core.user_code import is_reference
from drfl.data.dataset import TEST_FRACTION
from drfl.data.tables.text_form import ReadOptions
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.algorithm_settings import AlgorithmSettings
from drfl.experiments.config.build import VALIDATION
from drfl.experiments.config.config import NAMED_SEPARATELY
from drfl.experiments.config.guards_and_failures import ProbeAudit, ProbeRule
from drfl.experiments.config.hyperparameters import parameters_of
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.config.settings import DataFields
from drfl.experiments.config.strict import value_problem
from drfl.experiments.config.task_settings import TaskSettings
from drfl.experiments.fit.members import PORTFOLIO
from drfl.federation.algorithm import Algorithm
from drfl.flower.messages import HoldOut, site_name
from drfl.flower.site_policy import SitePolicy
from drfl.training.step_size import REQUESTS

M = TypeVar("M", bound=BaseModel)

MOST_SECONDS = 1e9
"""Maximum number of seconds to wait for something. Python cannot wait much longer for a thread."""

Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS)]

NEW_RUN = "remove the run's folder"
"""The remedy of a run that cannot be resumed, by which 'drfl deploy run' recognises it in Flower's reason."""


def validate(path: Path, content: Mapping[str, object], kind: type[M]) -> M:
    """Validate the content of a settings file.

    Raises:
        InputError: If it is invalid; the field is the name of the invalid key.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        # Report only the first error, because the others often follow from it.
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            what = f"key '{key}'" if _table_at(kind, first["loc"]) is None else f"table [{key}]"
            raise InputError(f"'{path}': the {what} is missing", code="invalid-value", field=key) from None
        if first["type"] == "extra_forbidden":
            hint = suggestion(str(first["loc"][-1]), _keys(_table_at(kind, first["loc"][:-1]) or kind))
            raise InputError(
                f"'{path}': unknown key '{key}'{'. ' if hint else ''}{hint}", code="unknown-name", field=key
            ) from None
        cause = first.get("ctx", {}).get("error", value_problem(error))
        code = cause.code if isinstance(cause, InputError) else "invalid-value"
        raise InputError(f"'{path}'{f', {key}' if key else ''}: {cause}", code=code, field=key or None) from None


def _keys(table: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in table.model_fields.items()}


def _table_at(kind: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the class of a table in a settings file of this kind; None if the location is not that of a table."""
    found: type[BaseModel] | None = kind
    for name in location:
        if found is None or isinstance(name, int):  # the position of a table in a list
            continue
        field = _keys(found).get(name)
        types = () if field is None else (field.annotation, *get_args(field.annotation))
        found = next((each for each in types if isinstance(each, type) and issubclass(each, BaseModel)), None)
    return found


class SiteData(BaseModel):
    """The source of a site's data: exactly one of ``loader``, ``npz``, ``csv`` and ``images``.

    Args:
        loader: "module:function", a function that returns a :class:`drfl.data.ClientData` of one client.
        npz: File with ``train_inputs``, ``train_targets``, and both or none of ``test_inputs``, ``test_targets``.
        csv: CSV, TSV or Parquet file with one row per sample; needs ``target`` or ``schema``.
        images: IDX file of images; needs ``labels``.
        target: Column of the table to predict, or a condition such as "price > 100000".
        task: Kind of target, by default "classification". A schema defines it.
        schema_file: ``schema`` in the file: a :class:`drfl.TableSchema`, the same at all sites.
        labels: IDX file of labels.
        test_images: IDX file of test images; needs ``test_labels``.
        test_labels: IDX file of test labels.
        test_csv: Table of test rows, like ``csv``.
        test_fraction: Share of the rows that is used for testing, unless test data are given.
        patient: Column of the table that names the patient of each row. A schema defines it.
        delimiter: Character between the cells of the table, or "tab"; by default detected, like the next three.
        decimal: Decimal mark, "." or ",".
        thousands: Mark between thousands.
        encoding: Encoding of a text file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    loader: str | None = None
    npz: Path | None = None
    csv: Path | None = None
    images: Path | None = None
    target: str | None = None
    task: Literal["classification", "regression"] | None = None
    # Not "schema", which is a method of pydantic's models.
    schema_file: Path | None = Field(None, alias="schema")
    labels: Path | None = None
    test_images: Path | None = None
    test_labels: Path | None = None
    test_csv: Path | None = None
    test_fraction: float = Field(TEST_FRACTION, gt=0, lt=1)
    patient: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    encoding: str | None = None

    def reading(self) -> ReadOptions:
        """Return how to read the table."""
        return ReadOptions(self.delimiter, self.decimal, self.thousands, self.encoding)

    @model_validator(mode="after")
    def _check_source(self) -> SiteData:
        kinds = ("loader", "npz", "csv", "images")
        if sum(getattr(self, kind) is not None for kind in kinds) != 1:
            raise ValueError(f"set exactly one of {', '.join(kinds)}")
        for kind, needed in (("images", "labels"), ("test_images", "test_labels")):
            if getattr(self, kind) is not None and getattr(self, needed) is None:
                raise ValueError(f"'{kind}' needs '{needed}'")
        if self.csv is not None and self.target is None and self.schema_file is None:
            raise ValueError("'csv' needs 'target', or a 'schema' that names it")
        self.reading()
        for name in (
            "target", "task", "schema_file", "test_csv", "patient", "delimiter", "decimal", "thousands", "encoding"
        ):  # fmt: skip
            if getattr(self, name) is not None and self.csv is None:
                raise ValueError(f"'{name.removesuffix('_file')}' needs 'csv'")
        return self


class AuditSettings(BaseModel):
    """The settings of an audit log, in ``site.toml`` and in ``server.toml``.

    Args:
        audit: The audit log; by default there is none.
        key: Private key of the node, which signs the audit log; without a key the log is unsigned.
        previous_key: The key before ``key``, which signs the introduction of ``key`` in the log; None if it is lost.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    audit: Path | None = None
    key: Path | None = None
    previous_key: Path | None = None

    def open_log(self, folder: Path, role: Role, name: str) -> AuditLog | None:
        """Open the audit log of an owner; return None if there is none.

        Paths are relative to ``folder``.
        """
        if self.audit is None:
            return None
        previous = None if self.previous_key is None else read_signing_key(folder / self.previous_key)
        return AuditLog(folder / self.audit, role, name, self.signing_key(folder), previous)

    def signing_key(self, folder: Path) -> SigningKey | None:
        """Read the private key; return None if there is none.

        Its path is relative to ``folder``.
        """
        return None if self.key is None else read_signing_key(folder / self.key)


class SiteSettings(AuditSettings):
    """The settings in ``site.toml``, besides those of :class:`AuditSettings`. Paths are relative to the file.

    Args:
        name: Name of the site.
        data: Source of its data.
        timeout: Seconds that a request may take.
        dtype: Data type of inputs, and of targets that are not labels.
        device: PyTorch device.
        threads: Number of PyTorch threads; by default PyTorch's.
        server_key: Public key of the server, which verifies the heads of the server's log; without it, heads are not
            verified.
        policy: Limits on the site's requests and replies.
    """

    name: Annotated[str, AfterValidator(site_name)]
    data: SiteData
    server_key: Path | None = None
    policy: SitePolicy = Field(default_factory=SitePolicy)
    timeout: Seconds = 3600.0
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    threads: int | None = Field(None, ge=1, le=1024)

    @model_validator(mode="after")
    def _check_policy(self) -> SiteSettings:
        if self.policy.requests_a_day is not None and self.audit is None:
            raise ValueError('policy.requests_a_day requires the audit log. Add a line audit = "audit.jsonl"')
        if self.policy.score_column is not None and self.data.csv is None:
            raise ValueError("policy.score_column requires data.csv, the table with the column")
        return self


def read_site(path: Path) -> SiteSettings:
    """Read ``site.toml``."""
    return validate(path, read_toml(path), SiteSettings)


FIT_RUNS = len(PORTFOLIO) + 1
"""Runs of a fit at sites: one per member, and one on all rows. References cannot be trained there."""


class DeployedConfig(TaskSettings, AlgorithmSettings, RunSettings):
    """The configuration of a run whose data stay at the sites.

    Args:
        classes: Number of classes; by default as many as the sites' labels need.
        standardise: Whether sites scale the columns of their inputs by mean and standard deviation over the training
            rows of all sites; by default if inputs are vectors.
        sites: Names of the sites, in the order of the clients, from ``[[sites]]``.
    """

    new_folder: ClassVar[str] = NEW_RUN
    classes: int | None = Field(None, ge=1)
    standardise: bool | None = None
    sites: tuple[str, ...] = ()

    @property
    def max_requests(self) -> int:
        """The maximum number of requests to a site in a run without faults, including those before the first round."""
        return self._requests(self.parameters(self.algorithm).get("lr") is None)

    def _requests(self, searches: bool) -> int:
        # A round has at most three exchanges, and a round with too few replies repeats them.
        return 10 + searches * REQUESTS + 3 * self.rounds * (1 + (self.repeats or 0))

    @property
    def max_fit_requests(self) -> int:
        """The maximum number of requests to a site in a fit without faults."""
        # Losses of the initial model, of each member, and of all of them are requested, and each member is tested.
        # The parameters of single algorithms do not apply to the members.
        return FIT_RUNS * self._requests(self.lr is None) + 2 * len(PORTFOLIO) + 2

    @property
    def holdout(self) -> HoldOut | None:
        """The validation rows of the sites; None if nothing uses them."""
        if self.selection(self.measures).validates:
            return HoldOut(VALIDATION if self.validation is None else self.validation, self.seed)
        if self.validation is not None:
            raise InputError(
                "validation requires select, patience, or an until on validation rows: remove it, or set one of them",
                code="unused-option",
                field="validation",
            )
        return None

    @model_validator(mode="before")
    @classmethod
    def _check_deployed_keys(cls, values: object) -> object:
        for name in values if isinstance(values, dict) else ():
            if name in SIMULATION_KEYS:
                raise ValueError(f"'{name}' has no effect in a deployment, where sites hold their own data. Remove it")
        return values

    def about(self, algorithm: Algorithm, clients: int) -> AboutRun:
        """See :meth:`drfl.experiments.config.config.Config.about`."""
        plain = {name: value for name, value in self.to_plain().items() if name not in NAMED_SEPARATELY}
        parameters = parameters_of(algorithm, clients)
        return AboutRun(self.algorithm, parameters, None, plain)


SIMULATION_KEYS = (
    *(field.name for field in dataclasses.fields(DataFields)),
    # The server of a deployment has no data for a certificate.
    *("certificate", "judged_on"),
)
"""Keys of a simulation's configuration that a deployment does not accept."""


class SiteEntry(BaseModel):
    """A table ``[[sites]]`` in ``server.toml``. Paths are relative to the file.

    Args:
        name: Name of the site.
        public_key: File of its public key (OpenSSH). Only an ``insecure`` deployment can omit it.
        rows: Maximum number of training rows that the site may report; by default unlimited.
        classes: Maximum number of classes that its labels may need; by default unlimited.
        max_share: Maximum share of all sites' training rows; by default unlimited.
        probe: Source of rows at the server that represent the site's data, for the aggregator and the guard "probe".
            Test data in it are not read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, AfterValidator(site_name)]
    public_key: Path | None = None
    rows: int | None = Field(None, ge=1)
    classes: int | None = Field(None, ge=1)
    max_share: float | None = Field(None, gt=0, le=1)
    probe: SiteData | None = None


class ServerSettings(AuditSettings):
    """The settings in ``server.toml``, besides those of :class:`AuditSettings`. Paths are relative to the file.

    Args:
        out: Folder of the run's results. If it contains DATE, every run gets its own folder, with the time of its
            start; an unfinished run is resumed.
        timeout: Seconds that an exchange may take.
        grace: Seconds for the other sites to answer after ``job.min_replies`` sites have answered; by default wait for
            all sites, up to ``timeout``.
        wait: Seconds to wait for all sites at the start.
        insecure: Whether to accept sites without authentication.
        schema_file: ``schema`` in the file: the schema of the sites, which the model files then contain.
        deliver: Whether to send the final model to all sites, which store it if their policies allow that. By default
            if ``key`` is set, which signs it.
        job: Configuration of the run.
        sites: The sites, in the order of the clients.
    """

    out: Path = Path("run")
    timeout: Seconds = 600.0
    grace: float | None = Field(None, ge=0, le=MOST_SECONDS)
    wait: Seconds = 300.0
    insecure: bool = False
    schema_file: Path | None = Field(None, alias="schema")
    deliver: bool | None = None
    job: DeployedConfig
    sites: tuple[SiteEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_sites(self) -> ServerSettings:
        names = [site.name for site in self.sites]
        if len(set(names)) < len(names):
            raise ValueError("two sites have the same name")
        keyless = [site.name for site in self.sites if site.public_key is None]
        if keyless and not self.insecure:
            raise ValueError(f"site '{keyless[0]}' has no public_key. Add one, or set insecure = true for a trial")
        if self.grace is not None and self.job.min_replies is None:
            raise ValueError("grace requires job.min_replies, the number of replies after which it begins")
        unprobed = [site.name for site in self.sites if site.probe is None]
        if 0 < len(unprobed) < len(self.sites):
            raise ValueError(
                f"site '{unprobed[0]}' has no probe, but other sites have one. Add a probe; sites may share a file"
            )
        # Unused probes would suggest a protection that does not exist.
        rules = (*self.job.guards, self.job.aggregator)
        if not unprobed and not any(isinstance(rule, ProbeAudit | ProbeRule) for rule in rules):
            raise ValueError(
                'the probes of the sites are not used. Set job.aggregator = "probe" or job.guards = ["probe"], or '
                "remove the probes"
            )
        cohort = self.job.parameters(self.job.algorithm).get("m")
        for name, count in (("min_replies", self.job.min_replies), ("cohort", cohort)):
            if isinstance(count, int) and count > len(self.sites):
                raise ValueError(f"job.{name} must be at most {len(self.sites)} (the number of sites), got {count}")
        return self

    def protection_notice(self) -> Notice | None:
        """Return a notice if there are more than two sites and nothing limits the influence of a single site."""
        # With at most two sites, no rule could decide which of them is wrong.
        limited = all(site.rows is not None or site.max_share is not None for site in self.sites)
        if len(self.sites) <= 2 or limited or self.job.aggregator is not None or self.sites[0].probe is not None:
            return None
        return Notice(
            "nothing limits the influence of a single site on the model: server.toml has no probes, no aggregator, and "
            "no limits for all sites. 'drfl deploy check' suggests limits, and --write adds them",
            "unprotected-sites",
            "sites",
        )


def read_server(path: Path) -> ServerSettings:
    """Read ``server.toml``.

    Raises:
        InputError: If the file is missing or invalid; the field is the name of the invalid key.
    """
    folder, content = path.resolve().parent, read_toml(path)
    job = content.get("job")
    if isinstance(job, dict):
        # The user's files are in the folder of server.toml, as at the sites, and not in the working directory.
        for key in {"model", "loss", "score", "metrics"} & job.keys():
            if isinstance(job[key], list):
                job[key] = [_located(value, folder) for value in job[key]]
            else:
                job[key] = _located(job[key], folder)
    return validate(path, content, ServerSettings)


def _located(value: object, folder: Path) -> object:
    return str(folder / value) if isinstance(value, str) and is_reference(value) else value
