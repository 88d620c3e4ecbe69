"""The files of a run's folder."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import math
import platform
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from drfl.core.csv_cells import csv_text
from drfl.core.hashing import digest_of
from drfl.core.user_code import label_of
from drfl.data import ClientData
from drfl.data.dataset import TaskName
from drfl.data.model_file import Threshold, model_bytes
from drfl.data.personal_models import MOST_BYTES, MOST_TENSORS, PERSONAL, tensor_name
from drfl.data.warm_start import has_unseen_tests
from drfl.engine import Simulation
from drfl.experiments.config.about_run import run_toml
from drfl.experiments.config.ready_run import Running
from drfl.experiments.run.finished import FinishedRun
from drfl.federation.algorithm import State, flagged
from drfl.federation.client_table import ClientTable
from drfl.report import test_rows
from drfl.report.groups import NO_EFFECT
from drfl.report.read_run import TEST_ROWS
from drfl.resilience import Memory
from drfl.resilience.wrappers import WrapperState
from drfl.task.architecture import describe
from drfl.task.losses import REGRESSION, REGRESSION_FUNCTIONS
from drfl.task.measure import SUM_COLUMNS, WHOLE_SUMS, Measure
from drfl.training.certificate import Certificate
from drfl.training.history import (
    CERTIFICATE_COLUMNS,
    DIGITS,
    GAP_DIGITS,
    LAMBDA_CLIENTS,
    Metrics,
    undefined_counts,
    undefined_names,
)

LARGEST_PATIENT = "largest_patient"
"""Column of clients.csv with the test rows of the patient who has the most; absent if rows are independent."""

FREE = (*NO_EFFECT, "init_from", "data", "data_schema")
"""Keys of a configuration that may differ in a resumed run, whose identity has digests of data and initial model."""

PACKAGES = ("drfl", "torch", "numpy", "scikit-learn")


def write_run(directory: Path, finished: FinishedRun) -> None:
    """Write all files of a run, except for the report, into an empty folder."""
    for name, content in run_files(finished):
        (directory / name).write_bytes(content)


def run_files(finished: FinishedRun) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a run, except for the report."""
    job, result = finished.job, finished.result
    texts = {
        "config.toml": run_toml(job.about),
        "summary.json": json_text(summary(finished), indent=2) + "\n",
        "history.csv": result.history.to_csv(),
        "timing.csv": result.history.timing_csv(),
        "lambda.csv": result.history.lambda_csv(job.data.names),
        "clients.csv": _clients_csv(finished),
    }
    if job.partition is not None:
        texts["partition.json"] = job.partition.to_json()
    for name, text in texts.items():
        yield name, text.encode()
    data = job.fed.data_digest() or digest_of(job.data.tensors())
    about = {**about_model(job, data), **({"own_models": True} if finished.is_personal else {})}
    models = {"model": (result.model, result.evaluation)}
    if result.returned != "last":
        models["model-last"] = result.state.w, result.last
    if result.average is not None and result.averaged is not None:
        models["model-averaged"] = result.average.w, result.averaged
    named = job.about.settings
    features = None if named.get("features") is None else f"{named['features']} of {named['backbone']}"
    classes = job.data.classes
    for name, (w, evaluation) in models.items():
        outcome: dict[str, object] = {}
        if classes is not None and len(classes) == 2:
            # The positive class of two, and the threshold above which it is predicted, also by personal models.
            chosen = evaluation.threshold
            cut = Threshold() if chosen is None else Threshold(chosen, "validation")
            outcome |= {"positive_class": classes[1]}
            outcome |= {"threshold": {"probability": cut.probability, **cut._asdict()}}
        # Other results of such a run are those of the clients' own models.
        if not finished.is_personal or evaluation is result.averaged:
            score = job.fed.measures[0]
            # A run that test rows stopped has no interval. That of the returned model is stored already.
            interval = finished.worst_interval if evaluation is result.evaluation else finished.interval_of(evaluation)
            low, high = interval or (math.nan, math.nan)
            metrics = Metrics.of(evaluation, score).as_dict(score.name)
            metrics |= {f"worst_{score.name}_low": low, f"worst_{score.name}_high": high}
            # The metadata of a model file is JSON, which has no NaN.
            defined = round_metrics({name: value for name, value in metrics.items() if math.isfinite(value)})
            # Clients at which the score is undefined are counted, but no metric includes them.
            undefined = undefined_counts(evaluation)[0]
            outcome["metrics"] = {"clients": len(evaluation.score), "undefined": undefined, **defined}
        yield (
            f"{name}.safetensors",
            model_bytes(
                job.task.state_dict(w),
                {**about, **outcome},
                schema=job.data.schema,
                standardisation=job.data.standardisation,
                features=features,
                fields=job.data.fields,
            ),
        )
    own, count = result.personal, len(job.task.layout.names)
    if isinstance(own, ClientTable) and own.n * result.model.nbytes <= MOST_BYTES and own.n * count <= MOST_TENSORS:
        yield PERSONAL, personal_bytes(job, own, range(own.n))
    if isinstance(job.fed, Simulation):
        # Comparisons of runs pair the values of single rows. A deployment has none.
        scores = job.fed.row_scores(result.model if result.personal is None else result.personal)
        yield TEST_ROWS, test_rows.content(scores._replace(data=data))


def personal_bytes(job: Running, models: ClientTable, clients: Sequence[int]) -> bytes:
    """Return the file of personal models of some clients: parameters as CLIENT/PARAMETER.

    Args:
        job: The run.
        models: (N, d) The models of all clients.
        clients: The clients whose models to write.
    """
    tensors = dict[str, Tensor]()
    for i in clients:
        own = job.task.state_dict(models[torch.tensor([i])][0], trained=True)
        tensors |= {tensor_name(job.data.names[i], name): value for name, value in own.items()}
    return save(tensors)


def summary(finished: FinishedRun) -> dict[str, object]:
    """Return the run as one object: settings, data, outcome and cost."""
    job, result, checks = finished.job, finished.result, finished.checks
    about, settings = job.about, job.settings
    last, certified, score = result.history.last, job.certify is not None, job.fed.measures[0].name
    undefined = undefined_names(result.evaluation, job.fed.measures, job.data.names)
    chosen, size, step_size, averaged = result.selection, result.step_size, None, None
    if size is not None:
        # Client −1 means that no curvature is known and lr is the fallback.
        client = None if int(size.client) < 0 else int(size.client)
        step_size = {
            "lr": float(size.eta),
            "curvature": None if client is None else round(float(size.curvature), DIGITS),
            "client": None if client is None else job.data.names[client],
            "halved": int(size.lowered),
        }
    if result.averaged is not None:
        average_metrics = Metrics.of(result.averaged, job.fed.measures[0])
        averaged = _end(average_metrics.as_dict(score), certified, result.averaged_certificate)
    return {
        "algorithm": label_of(about.algorithm),
        "parameters": dict(about.parameters),
        "dataset": about.label,
        "partition": about.partition if job.partition is None else job.partition.recipe,
        "model": about.settings["model"],
        "model_parameters": job.task.layout.d,
        "clients": job.data.n,
        **({"lambda_csv_clients": LAMBDA_CLIENTS} if job.data.n > LAMBDA_CLIENTS else {}),
        "rounds": result.rounds,
        "rollbacks": result.rollbacks,
        "effective_rounds": result.effective_rounds,
        "last_rollback": result.marks.last_rollback,
        "skipped_rounds": result.skipped,
        "stopped": result.stopped,
        "stopped_on": result.stopped_on,
        "seed": settings.seed,
        "engine": about.settings["engine"],
        "device": settings.device,
        "dtype": about.settings["dtype"],
        "precision": settings.precision,
        **_protection(result.state, job.data.names),
        "returned": result.returned,
        "selection": None if chosen is None else {**chosen._asdict(), "undefined": len(chosen.undefined)},
        "step_size": step_size,
        "failure": checks.failure,
        "warnings": [*finished.data_warnings, *checks.warnings],
        "measures": [measure.to_plain() for measure in job.fed.measures],
        "undefined": {name: len(clients) for name, clients in undefined.items()},
        **finished.reading_aids,
        "reference": finished.is_reference,
        "own_models": finished.is_personal,
        "test_rows": finished.test_rows,
        "initial_model": finished.initial_model,
        **({} if job.origin.start is None else {"init_from": dict(job.origin.start)}),
        "shared_test_rows": job.data.shares_test_rows,
        "final": _end({**last.metrics.as_dict(score), **last.others}, certified, last.certificate),
        "last": round_metrics(last.last_metrics.as_dict(score)),
        "averaged": averaged,
        "ledger": last.ledger,
        "wall_seconds": round(last.seconds, 3),
        "versions": versions(),
    }


def _protection(state: State, names: Sequence[str]) -> dict[str, object]:
    """Return counts of rejected replies and changed reports, the flagged clients, and rounds of excluded clients."""
    memory, inner, flags = None, state, flagged(state)
    # Other wrappers, such as Quorum, may enclose Protected.
    while memory is None and isinstance(inner, WrapperState):
        memory, inner = inner.memory if isinstance(inner.memory, Memory) else None, inner.inner
    if memory is None or flags is None:
        return {}
    flagged_names = [name for name, bad in zip(names, flags.tolist(), strict=True) if bad]
    counts: dict[str, object] = {
        "rejected_replies": int(memory.rejected),
        "changed_reports": int(memory.clipped),
        "flagged_clients": flagged_names,
    }
    if bool(memory.left_out.any()):
        counts["left_out_rounds"] = {name: r for name, r in zip(names, memory.left_out.tolist(), strict=True) if r}
    return counts


def json_text(content: Mapping[str, object], indent: int | None = None) -> str:
    """Return JSON text. Infinities and NaN become text, because JSON has no number for them."""

    def plain(value: object) -> object:
        if isinstance(value, Mapping):
            return {str(name): plain(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [plain(part) for part in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(content), indent=indent, allow_nan=False)


def round_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Round metrics to the digits of the CSV files."""
    return {name: round(x, DIGITS) for name, x in values.items()}


def _end(metrics: Mapping[str, float], asked: bool, certificate: Certificate | None) -> dict[str, object]:
    """Return the metrics, and the certificate if the run asked for it, with NaN if there is none."""
    if not asked:
        return {**round_metrics(metrics)}
    # A run that asked for a certificate has these columns even if there is none.
    names = (*CERTIFICATE_COLUMNS, "gradient_norm")
    values = {name: round(getattr(certificate, name, math.nan), GAP_DIGITS) for name in names}
    return {**round_metrics(metrics), **values, "proven": certificate is not None and certificate.proven}


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages."""
    packages = {package: _version_of(package) for package in PACKAGES}
    return {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}", **packages}


@functools.cache
def _version_of(package: str) -> str:
    return importlib.metadata.version(package)  # reads a file at every call


def decisive_settings(job: Running) -> dict[str, object]:
    """Return the configuration with all defaults, without the keys that may differ in a resumed run."""
    full = tomllib.loads(run_toml(job.about))
    return {name: value for name, value in full.items() if name not in FREE}


def about_model(job: Running, data: str) -> dict[str, object]:
    """Return the description of a run in a model file, without the metrics."""
    clients, task, about = job.data, job.task, job.about
    columns, classes, schema = clients.columns, clients.classes, clients.schema_digest
    # A description is for modules that take one tensor.
    architecture = describe(task.model) if clients.fields is None else None
    # Whether neither this model nor those from which it started were trained on the test rows.
    unseen = job.about.settings.get("judged_on") != "training" and has_unseen_tests(job.origin.start)
    outputs = {"outputs": job.fed.outputs} if classes is None and isinstance(job.fed, Simulation) else {}
    return {
        "drfl": _version_of("drfl"),
        "module": dict(job.origin.module),
        **({} if architecture is None else {"architecture": architecture}),
        "task": {"kind": task_kind(job), "loss": job.origin.loss, "score": job.fed.measures[0].name, **outputs},
        "inputs": {"shape": list(clients.shape), "dtype": str(clients.dtype).removeprefix("torch.")},
        **({} if columns is None else {"columns": list(columns)}),
        **({} if classes is None else {"classes": list(classes)}),
        **({"schema": schema} if schema else {}),
        "training": {
            "algorithm": label_of(about.algorithm),
            "rounds": job.settings.rounds,
            "seed": job.settings.seed,
            "data": about.label,
            "clients": clients.n,
            "rows": int(clients.sizes.sum()),
            **({} if job.origin.start is None else {"init_from": job.origin.start["sha256"]}),
            **({"test_rows": clients.test_digest()} if unseen else {}),
        },
        "run": digest_of([task.w0], json_text(decisive_settings(job)) + data),
    }


def task_kind(job: Running) -> TaskName:
    """Return the kind of a run's task, by its loss, and by its targets if they are in this process."""
    criterion = job.task.criterion
    if criterion.is_one_of(REGRESSION, REGRESSION_FUNCTIONS):
        return "regression"
    if job.fed.majority is not None:  # each row has one class, whose loss may be that of a label 0 or 1
        return "classification"
    if isinstance(job.data, ClientData) and (criterion.allows_unknown or job.data.targets.is_floating_point()):
        labels = job.data.targets
        if not bool(((labels == 0) | (labels == 1) | labels.isnan()).all()):
            return "regression"
        return "multi-label" if labels[:1].numel() > 1 else "classification"
    return "multi-label" if criterion.allows_unknown else "classification"


def exact_text(value: float, *, whole: bool = False) -> str:
    """Format a number with enough digits to read the same number back; with ``whole`` as a whole number, unless NaN."""
    return str(int(value)) if whole and math.isfinite(value) else repr(value)


def sum_columns(measures: Sequence[Measure], sums: Tensor) -> dict[str, list[str]]:
    """Return the columns of an evaluation's sums (N, M, 5), see :class:`drfl.federation.federation.Evaluation`."""
    columns: dict[str, list[str]] = {}
    for measure, values in zip(measures, sums.permute(1, 2, 0).tolist(), strict=True):
        for end, place in SUM_COLUMNS[measure.rows].items():
            columns[f"{measure.name}_{end}"] = [exact_text(x, whole=end in WHOLE_SUMS) for x in values[place]]
    return columns


def _clients_csv(finished: FinishedRun) -> str:
    from drfl.assessment.assess_evaluation import client_intervals  # scipy takes a while to load

    job, result = finished.job, finished.result
    evaluation, last = result.evaluation, result.last
    score, *others = (measure.name for measure in job.fed.measures)
    sums = {} if evaluation.sums is None else sum_columns(job.fed.measures, evaluation.sums)
    if isinstance(job.data, ClientData) and job.data.patients is not None and isinstance(job.fed, Simulation):
        sizes = {"patients": job.fed.data.patient_counts(job.fed.data.test)}
        sizes["train_patients"] = job.data.patient_counts(job.data.train)
        sizes[LARGEST_PATIENT] = job.fed.row_counts_of_largest_patients()
        sums |= {name: [*map(str, counts.tolist())] for name, counts in sizes.items()}
    elif evaluation.sums is not None:  # the sites of a deployment report their largest patients with the sums
        means = [m for m, measure in enumerate(job.fed.measures) if measure.rows.mean]
        largest = evaluation.sums[:, means[:1], 3].nan_to_num().long().flatten().tolist()
        sums |= {LARGEST_PATIENT: [*map(str, largest)]} if any(largest) else {}
    # Simultaneous 95 % intervals. There are none if test rows stopped the run or single rows have no score.
    ends = None if result.stopped_on == "test" else client_intervals(evaluation, job.fed.measures[0])
    named = (f"{score}_low", f"{score}_high")
    intervals = {} if ends is None else {n: [f"{x:.{DIGITS}f}" for x in e] for n, e in zip(named, ends, strict=True)}
    if finished.constant is not None:
        intervals["constant_accuracy"] = [f"{x:.{DIGITS}f}" for x in finished.constant.shares.tolist()]
    columns = zip(
        job.data.names,
        (f"{x:.{DIGITS}f}" for x in evaluation.score.tolist()),
        (f"{x:.{DIGITS}f}" for x in evaluation.loss.tolist()),
        evaluation.samples.tolist(),
        job.data.sizes.tolist(),
        (f"{x:.9f}" for x in result.lam.tolist()),
        (f"{x:.{DIGITS}f}" for x in last.score.tolist()),
        (f"{x:.{DIGITS}f}" for x in last.loss.tolist()),
        *((f"{x:.{DIGITS}f}" for x in values.tolist()) for values in evaluation.others),
        *sums.values(),
        *intervals.values(),
        strict=True,
    )
    names = ("client", score, "loss", "samples", "train_samples", "lambda", f"last_{score}", "last_loss")
    return csv_text((*names, *others, *sums, *intervals), columns)
