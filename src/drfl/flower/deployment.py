"""Set up runs on the sites of a deployment, one or several in a session."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from drfl.core.errors import InputError, Notice
from drfl.core.hashing import digest_of
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.data.standardisation import Standardisation
from drfl.data.tables.schema import TableSchema
from drfl.data.warm_start import warm_start
from drfl.experiments.config.kept_weights import with_kept_weights
from drfl.experiments.config.learned import Origin
from drfl.experiments.config.ready_run import ReadyRun
from drfl.experiments.config.run_settings import engine_text
from drfl.experiments.config.wrap import add_over_selection, wrap_algorithm
from drfl.federation.algorithm import Personal
from drfl.flower.claims import site_warnings, standardisation_of
from drfl.flower.deployed_federation import FlowerFederation
from drfl.flower.job_code import job_code
from drfl.flower.messages import HoldOut, ModelRecipe, SiteIdentity, short_name
from drfl.flower.session import Session
from drfl.flower.settings import DeployedConfig, ServerSettings
from drfl.flower.shared_rows import compare_sites
from drfl.flower.site_data import load_probe_rows
from drfl.flower.site_task import task_of
from drfl.flower.transport import Deadline
from drfl.resilience import Recorded, Rejection, ReplyLog, UsedReplies
from drfl.task.task import Task
from drfl.training.run_state import first

LOG = logging.getLogger("drfl.flower")


class Sites(NamedTuple):
    """The clients of a deployment, for a run's files.

    Args:
        members: (N,) the sites' descriptions of themselves.
        names: (N,) the sites' names in ``server.toml``, which may differ from the names that they report.
        standardisation: Mean and scale with which sites standardise their inputs; None for no standardisation.
        notices: Warnings about the sites' data.
        dtype: The type of the sites' inputs.
        schema: The schema of the sites, if the server has it.
        fields: None, because inputs of sites are one tensor.
    """

    members: tuple[SiteIdentity, ...]
    names: tuple[str, ...]
    standardisation: Standardisation | None = None
    notices: tuple[Notice, ...] = ()
    dtype: torch.dtype = torch.float32
    schema: TableSchema | None = None
    fields: None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input."""
        return self.members[0].shape

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the inputs' columns; None if the sites have none, or not the same."""
        return _common([member.features for member in self.members])

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes; None if the sites have none, or not the same."""
        return _common([member.class_names for member in self.members])

    @property
    def schema_digest(self) -> str:
        """The digest of the sites' schema; "" if they have none, or not the same."""
        first, *others = {member.schema for member in self.members}
        return "" if others else first

    @property
    def shares_test_rows(self) -> bool:
        """Whether two sites have equal rows, according to their hashes, so that test rows may be among them."""
        return any(notice.code == "shared-rows" for notice in self.notices)

    @property
    def n(self) -> int:
        """N, the number of clients."""
        return len(self.members)

    @property
    def sizes(self) -> Tensor:
        """(N,) int64, the clients' numbers of training samples."""
        return torch.tensor([member.trained for member in self.members])

    def tensors(self) -> list[Tensor]:
        """Return the digests of the sites' data and the standardisation, which a resumed run compares."""
        digests = [torch.frombuffer(bytearray(member.digest.encode()), dtype=torch.uint8) for member in self.members]
        applied = self.standardisation
        return digests + ([] if applied is None else [applied.mean, applied.scale])

    def test_digest(self) -> str:
        """Return a digest of the sites' data, because the server does not know which rows are test rows."""
        return digest_of(self.tensors())


def _common(names: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    first, *others = set(names)
    return None if others or not first else first


@dataclass(frozen=True, kw_only=True)
class Deployment(ReadyRun[Sites, FlowerFederation]):
    """A run on sites, ready to start.

    Args:
        replies: Log of the replies that the algorithm uses.
    """

    replies: ReplyLog

    @property
    def site_digests(self) -> dict[str, str]:
        """Digest of each site's data by name."""
        return {name: member.digest for name, member in zip(self.data.names, self.data.members, strict=True)}


@dataclass(frozen=True)
class Preparation:
    """What all runs of a session have in common.

    Args:
        session: The sites.
        sites: The clients for the runs' files.
        model: Description of the model.
        task: The model and its loss.
        origin: Origin of model and loss.
        probe: The server's probe rows; None if there are none.
    """

    session: Session
    sites: Sites
    model: ModelRecipe
    task: Task
    origin: Origin
    probe: ClientData | None

    @classmethod
    def of(cls, session: Session) -> Preparation:
        """Combine the statistics of the sites, compare their rows, and make the model."""
        settings, folder, members, names = session.settings, session.folder, session.members, session.roster.names
        config = settings.job
        standardisation, of_columns = standardisation_of(members, names, config.standardise)
        notices = (*site_warnings(members, names), *of_columns)
        for notice in notices:
            LOG.warning(notice)
        sites = Sites(
            tuple(member for _, member in sorted(members.items())), tuple(names), standardisation,
            (*notices, *compare_sites(session)), getattr(torch, config.dtype), read_schema(session),
        )  # fmt: skip
        classes = classes_of(sites, config)
        code = job_code(config, folder)
        model = ModelRecipe(
            code.names.get(config.model, config.model), code.loss, config.dtype, classes, engine_text(config.engine),
            code.metrics, code.files,
        )  # fmt: skip
        # Use the same key as a simulation, so that the same seed gives the same initial model.
        with Key(config.seed).fold("model").torch_scope():
            task = task_of(model, sites.members[0].shape, folder)
        task, start = warm_start(task, sites, config.init_from)
        origin = Origin(code.source_of(config.model, sites.members[0].shape, classes), model.loss, start)
        probe = prepare_probe_rows(settings, folder, sites)
        return cls(session, sites, model, task, origin, probe)

    @property
    def config(self) -> DeployedConfig:
        """The configuration of the session's job."""
        return self.session.settings.job

    def federation(self, holdout: HoldOut | None) -> FlowerFederation:
        """Return the sites as clients of a run.

        Args:
            holdout: Rows that the sites do not train on; None if they train on all training rows.
        """
        session, settings, config = self.session, self.session.settings, self.config
        deadline = Deadline(settings.timeout)
        if settings.grace is not None:
            deadline = Deadline(settings.timeout, config.min_replies, settings.grace)
        return FlowerFederation(
            session.grid, session.roster, self._members(holdout), self.model, self.task.w0, deadline,
            self.sites.standardisation, session.audit, holdout, config.measures, self.task,
        )  # fmt: skip

    def run(self, config: DeployedConfig, holdout: HoldOut | None) -> Deployment:
        """Set up a run.

        ``config`` differs from the session's configuration at most in the algorithm.
        """
        fed, task = self.federation(holdout), self.task
        members = self._members(holdout)
        sites = self.sites._replace(members=tuple(member for _, member in sorted(members.items())))
        bare = config.build_algorithm(config.algorithm, sites.n)
        selecting, keep = add_over_selection(config, with_kept_weights(bare, config, sites.names), sites.n)
        reply_log, audit = ReplyLog(), self.session.audit

        def on_used(replies: UsedReplies) -> None:
            reply_log.add(replies)
            if audit is not None:
                names = [sites.names[client] for client in replies.clients]
                audit.add("used", round=replies.round, what=replies.kind, stream=replies.key, sites=names)

        def on_rejected(rejection: Rejection) -> None:
            # rejection.client is always a client's number, because the transport accepts no reply from other senders.
            if audit is not None:
                name, reason = sites.names[rejection.client], str(rejection.reason)
                audit.add("rejected", site=name, round=rejection.round, what=rejection.kind, reason=reason)

        # Record innermost, so that the log has the replies that the algorithm used, not those that wrappers rejected.
        inner = Recorded(selecting, on_used)
        algorithm = wrap_algorithm(config, inner, keep, self.probe, task, sites.names, on_rejected)
        selection = config.selection(config.measures)
        if selection.select is not None and isinstance(bare, Personal):
            raise InputError(
                f"select cannot return an earlier round of {config.algorithm} in a deployment, because sites keep only "
                "the newest of their own models: remove select. patience and until can still stop the run",
                code="unsupported-combination",
                field="select",
            )
        state = first(
            algorithm, fed, returned=config.returned, averaged=config.averaged, table_dir=config.tables,
            validates=selection.validates,
        )  # fmt: skip
        return Deployment(
            settings=config, about=config.about(bare, sites.n), data=sites, task=task, fed=fed, algorithm=algorithm,
            first=state, origin=self.origin, selection=selection, replies=reply_log,
        )  # fmt: skip

    def _members(self, holdout: HoldOut | None) -> Mapping[int, SiteIdentity]:
        """Return the sites' descriptions for runs with these validation rows."""
        # Without validation rows sites train on all their rows, so none count as held out in weights and sizes.
        if holdout is not None:
            return self.session.members
        return {client: msgspec.structs.replace(member, held_out=0) for client, member in self.session.members.items()}


def classes_of(sites: Sites, config: DeployedConfig) -> int:
    """Return the number of classes of the model."""
    needed, largest = max((member.classes, name) for member, name in zip(sites.members, sites.names, strict=True))
    classes = needed if config.classes is None else config.classes
    if classes < needed:
        raise InputError(
            f"classes = {classes}, but site '{largest}' has labels up to {needed - 1}. Raise 'classes' or remove it",
            code="out-of-range",
            field="classes",
        )
    return classes


def read_schema(session: Session) -> TableSchema | None:
    """Read the schema that ``server.toml`` names; return None if it names none."""
    file = session.settings.schema_file
    if file is None:
        return None
    schema = TableSchema.read(session.folder / file)
    for client, member in session.members.items():
        if member.schema != schema.digest:
            name = session.roster.names[client]
            raise InputError(
                f"'{file}' has the digest {schema.digest[:8]}, but site '{name}' has "
                f"{member.schema[:8] or 'no schema'}. Use the sites' schema, or remove schema from server.toml",
                code="schema-differs",
                field=name,
            )
    return schema


def prepare_probe_rows(settings: ServerSettings, folder: Path, sites: Sites) -> ClientData | None:
    """Load the server's probe rows and standardise them like the sites' rows; return None if there are none."""
    probe = load_probe_rows(settings.sites, folder, settings.job.dtype)
    if probe is None:
        return None
    shape, expected = tuple(probe.inputs.shape[1:]), sites.members[0].shape
    if shape != expected:
        raise InputError(
            f"the probes in server.toml have inputs of shape {shape}, but the sites have inputs of shape {expected}",
            code="wrong-shape",
            field="probe",
        )
    site = sites.members[0]
    for what, own, theirs in (
        ("columns", tuple(map(short_name, probe.columns or ())), site.features),
        ("classes", tuple(map(short_name, probe.classes or ())), site.class_names),
    ):
        if own and theirs and own != theirs:
            raise InputError(
                f"the probes in server.toml have other {what} than site '{site.name}': give them the sites' schema",
                code="sites-differ",
                field="probe",
            )
    return probe if sites.standardisation is None else probe.standardised(sites.standardisation)
