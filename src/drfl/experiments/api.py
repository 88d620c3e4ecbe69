"""The Python functions of drfl's commands: compare algorithms, search for hyperparameters, assess runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from drfl.core.errors import DataWarning, InputError, Notice, RunWarning, unknown
from drfl.core.run_end import ON_TEST
from drfl.data import ClientData
from drfl.data.warm_start import start_notices
from drfl.federation.algorithm import Algorithm
from drfl.federation.federation import Evaluation
from drfl.task.losses import ignores
from drfl.task.metrics import ACCURACY
from drfl.task.task import Task
from drfl.training.callbacks import line_printer
from drfl.training.loop import Result
from drfl.training.run_state import Returned
from drfl.training.safeguard import SafeguardRule

if TYPE_CHECKING:
    import optuna
    import pandas as pd

    from drfl.assessment.clients import Assessment, AucInterval
    from drfl.assessment.gains import GainAssessment
    from drfl.data.model import Model
    from drfl.engine import Engine, Simulation
    from drfl.experiments.compare.comparison_results import Comparison
    from drfl.experiments.config.data_settings import DataSettings
    from drfl.experiments.fit.fitted import Fitted
    from drfl.experiments.tuning.tuned import Tuned
    from drfl.resilience import Aggregator, FailureModel, Guard, StepBound

    Guards = str | Guard | Sequence[str | Guard] | None
    Faults = str | Sequence[str] | Mapping[str, float] | FailureModel | None


def compare(
    algorithms: Mapping[str, Algorithm],
    data: ClientData | DataSettings | Callable[[int], ClientData],
    task: Task | Callable[[int], Task],
    *,
    rounds: int = 100,
    seeds: int | Sequence[int] = 5,
    init_from: str | Path | None = None,
    keep_weights: bool = False,
    predictions: Mapping[str, pd.DataFrame | str | Path] | None = None,
    out: str | Path | None = None,
    jobs: int | Literal["ray"] = 1,
    resume: bool = False,
    overwrite: bool = False,
    evaluate_every: int = 1,
    until: str | None = None,
    select: str | None = None,
    patience: int | None = None,
    returned: Returned | None = None,
    as_published: bool = False,
    safeguard: SafeguardRule = "best",
    averaged: bool = False,
    certificate: Literal["pooled", "gradient"] | None = None,
    guards: Guards = None,
    max_norm: float | None = None,
    step_bound: float | StepBound | None = None,
    aggregator: str | Aggregator | None = None,
    faults: Faults = None,
    over_select: float | None = None,
    min_replies: int | None = None,
    repeats: int | None = None,
    engine: str | Engine = "auto",
    device: str = "cpu",
    precision: Literal["full", "bf16"] = "full",
    threads: int = 1,
    checkpoint_every: int | None = None,
    track: str | None = None,
    progress: Callable[[str], None] | Literal["bar"] | None = print,
) -> Comparison:
    """Run every algorithm at every seed on the same clients from the same initial model, as ``drfl compare`` does.

    Args:
        algorithms: The algorithms by the names that tables and folders give them.
        data: The clients' samples, a :func:`data_spec` that divides a data set at each seed, or a function of the seed.
        task: Model, loss and score; or a function of the seed that makes them. While it runs, torch's generator has
            the state that belongs to the seed, so all algorithms start from the same initial model at a seed.
        rounds: Rounds of communication.
        seeds: The number of seeds, from 0, or the seeds themselves.
        init_from: The model file to start from, of the same architecture, columns and classes; see ``drfl run``.
        keep_weights: Start the client weights λ of algorithms that have them from the run of that file.
        predictions: Predictions of other tools by their names in tables, as data frames or CSV files. They are tested
            on the same rows, and each adds a row to the tables; see the page on trained models.
        out: The folder to fill: one run per algorithm and seed, the table and ``report.html``. None keeps no files.
        jobs: Number of parallel runs, each in its own process. Results do not depend on it. In a script, parallel runs
            require the call to be under ``if __name__ == "__main__":``. "ray" takes the CPUs of a Ray cluster: the one
            that the program is connected to, else that of RAY_ADDRESS, else this machine.
        resume: Continue the comparison in ``out``, or extend it: by algorithms, by seeds, or by ``rounds``. Finished
            runs are not repeated unless the number of rounds rises, and an interrupted one continues from its
            checkpoint. Without it, an ``out`` that holds a comparison is refused; :func:`tune` resumes by itself.
        overwrite: Replace the comparison in ``out``.
        evaluate_every: The number of rounds between tests.
        until: Stop when validation rows reach a target, such as ``"worst_accuracy=0.9"``; ``data`` must have such rows.
            ``"test:worst_accuracy=0.9"`` uses test rows instead, and the runs that it stops have no intervals.
        select: Return the model of the round that is best on the clients' validation rows, by "worst", "worst20" or
            "average" (score), or "loss"; ``data`` must have such rows, see :meth:`drfl.ClientData.with_validation`.
        patience: Stop when validation rows have shown no gain for this number of rounds.
        returned: Which model a run returns, see :func:`drfl.run`; None = "average".
        as_published: Run the algorithms as in their papers: return the last iterate, use no guards and no bound on
            updates, and reject step sizes that drfl would choose. Every table states it above its rows.
        safeguard: The model to which a run returns if drfl's step size is too large, see :func:`drfl.run`.
        averaged: Keep the averaged solution of the theorems too.
        certificate: Bound the distance to the saddle point at every test.
        guards: Checks of reported losses before the dual update: objects of :mod:`drfl.resilience`, or texts such as
            "clip:bound=3". None uses a wide default, "none" uses no guard.
        max_norm: Reject models farther than this from the one that was sent, and longer gradients.
        step_bound: Reject updates longer than this multiple of the cohort's median; 0 for no bound, None = 100.
        aggregator: Robust aggregation rule for models and gradients: an object, or a text such as "krum:f=2".
        faults: How clients fail: a :class:`drfl.resilience.FailureModel`, or its numbers, such as ``{"drop": 0.3}``,
            "drop=0.3" or a list of such texts.
        over_select: Contact this multiple of the cohort and use the first replies.
        min_replies: Do not count a round that fewer clients answer.
        repeats: Repeat such a round up to this number of times.
        engine: The engine that computes the clients' work: an object, or "auto", "stacked", "threads" or "loop".
        device: Torch device.
        precision: "full", or "bf16" for local steps in bfloat16.
        threads: Torch threads of every run.
        checkpoint_every: The number of rounds between checkpoints; 0 writes none, None writes as many as 5 % of the
            time allows.
        track: Where runs send their histories as they progress: "tensorboard:FOLDER", "mlflow:STORE" or
            "wandb:FOLDER" (offline); see :mod:`drfl.trackers`.
        progress: Called with a line for every run that ends; "bar" shows a live bar instead, None nothing.

    Returns:
        The result: ``to_frame()``, ``to_markdown()``, ``to_latex()``, ``plot()``, ``summary()``, and ``directory``.
        Ctrl-C ends a run after its current round; the result then has the runs that have ended.

    Warns:
        RunWarning: If runs are missing because the comparison was interrupted; and if ``progress`` is None, and runs
            failed, or the result has ``notices``, such as runs that returned the initial model.

    Raises:
        InputError: If an argument is invalid, ``out`` contains something else, or an algorithm cannot start.
        DrflError: If a worker process died, or no run had ended when the comparison was interrupted.
    """
    from drfl.experiments.compare.compare_objects import ComparisonOptions, compare_objects

    settings = {
        "init_from": init_from, "keep_weights": keep_weights,
        "rounds": rounds, "evaluate_every": evaluate_every, "until": until, "select": select, "patience": patience,
        "as_published": as_published or None, "safeguard": safeguard, "averaged": averaged, "certificate": certificate,
        "guards": guards, "max_norm": max_norm, "aggregator": aggregator, "faults": faults,
        "over_select": over_select, "min_replies": min_replies, "repeats": repeats, "engine": engine, "device": device,
        "precision": precision, "threads": threads, "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    # None leaves these to the other settings.
    settings |= {n: v for n, v in (("returned", returned), ("step_bound", step_bound)) if v is not None}
    place = None if out is None else Path(out)
    show = progress if progress == "bar" else line_printer(progress, "bar")
    options = ComparisonOptions(seeds, place, jobs, resume, overwrite, show, track, predictions)
    comparison = compare_objects(algorithms, data, task, settings, options)
    failed = [outcome for outcome in comparison.outcomes if outcome.failed]
    if failed and not progress:
        first = f"{failed[0].algorithm}, seed {failed[0].seed}: {failed[0].stopped}: {failed[0].reason}"
        text = f"{len(failed)} of {len(comparison.outcomes)} runs failed, the first is {first}"
        warnings.warn(RunWarning(Notice(text, "failed-runs")), stacklevel=2)
    for notice in () if progress else comparison.notices:
        warnings.warn(RunWarning(notice), stacklevel=2)
    if not comparison.is_complete:
        # Whatever shows the progress, a script that continues must not take this for the whole comparison.
        total = len(comparison.algorithms) * len(comparison.seeds)
        again = "" if out is None else "; the same call with resume=True continues"
        text = f"interrupted: {total - len(comparison.outcomes)} of {total} runs are missing{again}"
        warnings.warn(RunWarning(Notice(text, "interrupted")), stacklevel=2)
    return comparison


def fit(
    data: ClientData | DataSettings | Callable[[int], ClientData],
    task: Task | Callable[[int], Task],
    *,
    budget: int = 100,
    personalise: bool = False,
    init_from: str | Path | None = None,
    keep_weights: bool = False,
    seed: int = 0,
    cohort: int | None = None,
    steps: int | None = None,
    batch: int | Literal["full"] | None = None,
    lr: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    engine: str | Engine = "auto",
    device: str = "cpu",
    precision: Literal["full", "bf16"] = "full",
    threads: int | None = None,
    checkpoint_every: int | None = None,
    progress: Callable[[str], None] | None = print,
) -> Fitted:
    """Train several algorithms, choose the best one for the worst client, and return its model, as ``drfl fit`` does.

    Six candidates train on four fifths of each client's training rows. The other rows choose one of them: the one with
    the smallest loss of the worst client, among FedAvg and those that improve on it. A candidate improves on FedAvg if
    its loss is smaller both for the worst client and on average, or significantly smaller for the worst client. The
    chosen candidate then trains on all training rows. Test rows do not influence the choice.

    Args:
        data: See :func:`compare`. If the clients have validation rows, these are used.
        task: See :func:`compare`. Its loss decides which client is worst; its score is reported.
        budget: Communication rounds of each of the nine or ten runs.
        personalise: Fine-tune the global model at a client, or use the model that it trains alone, if that clearly
            lowers its validation loss.
        init_from: See :func:`compare`.
        keep_weights: See :func:`compare`.
        seed: Seed of all random draws.
        cohort: Clients per round. None = all of up to 10, otherwise two thirds; for SCAFF-PD, None = all.
        steps: Local steps per round; None = 10.
        batch: Local minibatch size, or "full"; None = 32.
        lr: Local step size. None = from the curvature of the clients' losses.
        out: The folder to fill: that of the final run, with the decision in ``fit.json``. None keeps no files.
        resume: Continue the fit in ``out``. Finished rounds are not repeated.
        overwrite: Replace the fit in ``out``.
        engine: The engine that computes the clients' work: an object, or "auto", "stacked", "threads" or "loop".
        device: Torch device.
        precision: "full", or "bf16" for local steps in bfloat16.
        threads: Torch threads; None = torch's default.
        checkpoint_every: The number of rounds between checkpoints; 0 writes none, None writes as many as 5 % of the
            time allows.
        progress: Called with a line for every run that ends; None shows nothing.

    Returns:
        The result: ``model``, ``chosen``, ``reason``, ``assessment``, ``result``, ``to_frame()``, ``summary()``, and
        ``directory``.

    Raises:
        InputError: If an argument is invalid, ``out`` contains something else, or there is nothing to resume.
        DivergedError: If the chosen algorithm diverges on all training rows.
        DrflError: If every algorithm diverges or ends worse than the initial model, unless that is from ``init_from``.

    Warns:
        RunWarning: If the model of ``init_from`` may have been trained on test rows, and ``progress`` is None.

    Example:
        >>> import drfl, torch
        >>> x = torch.randn(2, 90, 5)
        >>> data = drfl.ClientData.from_arrays(list(zip(x, (x.sum(2) > 0).long())))
        >>> fitted = drfl.fit(data, drfl.Task(torch.nn.Linear(5, 2)), budget=4, progress=None)
        >>> len(fitted.to_frame())
        6
    """
    from contextlib import nullcontext

    from drfl.core import checks
    from drfl.experiments.fit.run_fit import evaluate_every, jobs_of_objects, run_fit
    from drfl.experiments.run.manifest import is_finished
    from drfl.experiments.run.resume import check_folder
    from drfl.experiments.run.runner import StopSignal

    checks.integer("budget", budget)
    shared = {"cohort": cohort, "steps": steps, "batch": batch, "lr": lr}
    for name, number in shared.items():
        # Commands pass numbers as text, which settings convert, but Python callers must pass numbers.
        if isinstance(number, str) and (name, number) != ("batch", "full"):
            expected = "a number or 'full'" if name == "batch" else "a number"
            raise InputError(f"{name} must be {expected}, got {number!r}", code="invalid-value", field=name)
    settings = {
        "init_from": init_from, "keep_weights": keep_weights,
        "rounds": budget, "evaluate_every": evaluate_every(budget), "seed": seed, "engine": engine, "device": device,
        "precision": precision, "threads": threads, "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    place, show = None if out is None else Path(out), line_printer(progress)
    check_folder(place, "fit", resume=resume, overwrite=overwrite)
    if resume and place is not None and is_finished(place):
        raise InputError(f"{place} is finished: there is nothing to resume", code="nothing-to-resume", field=str(place))
    if overwrite and place is None:
        raise InputError("`overwrite` requires `out`, the folder of the fit", code="needs-option", field="out")
    fitted = run_fit(
        jobs_of_objects(data, task, settings, shared), place, personal=personalise, watch=StopSignal(),
        show=lambda label: nullcontext(()), log=show, warn=show, resume=resume, overwrite=overwrite,
    )  # fmt: skip
    for notice in start_notices(fitted.finished.job.origin.start):
        if progress:
            show(notice)
        else:
            warnings.warn(RunWarning(notice), stacklevel=2)
    return fitted


def data_spec(**settings: object) -> DataSettings:
    """Describe data by name, and how to divide them among clients at each seed, for :func:`compare` and :func:`tune`.

    Args:
        settings: The options of ``drfl run`` on data and clients, such as ``dataset``, ``partition``, ``clients``,
            ``alpha`` and ``data``.

    Returns:
        The description; ``for_seed(seed)`` gives the clients' samples.

    Raises:
        InputError: If a setting is unknown or invalid.

    Example:
        >>> import drfl
        >>> drfl.data_spec(dataset="digits", partition="iid", clients=3).for_seed(seed=0).n
        3
    """
    from drfl.experiments.config.data_settings import DataSettings

    for name in settings:
        if name not in DataSettings.model_fields:
            raise unknown("setting", name, DataSettings.model_fields)
    return DataSettings.checked(settings)


def tune(
    space: Callable[[optuna.Trial], Algorithm],
    data: ClientData | DataSettings | Callable[[int], ClientData],
    task: Task | Callable[[int], Task],
    *,
    rounds: int = 100,
    trials: int = 24,
    seeds: int = 3,
    confirm_seeds: int = 5,
    criterion: Literal["worst", "worst20", "average", "loss"] = "worst",
    validation: float = 0.2,
    first: Mapping[str, bool | int | float | str | None] | None = None,
    out: str | Path | None = None,
    jobs: int | Literal["ray"] = 1,
    returned: Returned = "average",
    guards: Guards = None,
    max_norm: float | None = None,
    step_bound: float | StepBound = 100.0,
    aggregator: str | Aggregator | None = None,
    faults: Faults = None,
    over_select: float | None = None,
    min_replies: int | None = None,
    repeats: int | None = None,
    engine: str | Engine = "auto",
    device: str = "cpu",
    precision: Literal["full", "bf16"] = "full",
    threads: int = 1,
    progress: Callable[[str], None] | None = print,
) -> Tuned:
    """Search for an algorithm's hyperparameters, as ``drfl tune`` does, in a space that is an Optuna function.

    Every trial runs at the seeds 1000, 1001, …, which differ from those that results are reported on. It is judged
    once, after its last round, on the validation rows of ``data``, or on a share of each client's training rows, which
    the trial does not train on. Test rows are not used.

    Args:
        space: Returns the algorithm of a trial, whose ``suggest_float`` and similar methods draw the parameters. It
            must depend on them alone, because it is called again for every run.
        data: See :func:`compare`.
        task: See :func:`compare`.
        rounds: Rounds of communication in every run.
        trials: Number of trials, drawn by Optuna's tree-structured Parzen estimator.
        seeds: Number of runs of each trial, whose mean is its value.
        confirm_seeds: Seeds after those of the search at which the best trial and ``first`` run again, to test whether
            the best trial is better; 0 for no confirmation. It needs ``first``.
        criterion: "worst", "worst20" or "average" (score over clients), or "loss", the worst client's. The score
            defines whether more is better. A run that fails has the worst value.
        validation: Share of each client's training rows to judge on, if ``data`` has no validation rows.
        first: The parameters of the first trial, by their names in the space, such as the defaults, so that the best
            trial is never worse than these. None draws it like the others.
        out: The folder to fill: the trials as CSV and as an Optuna study, and the best parameters. If it holds an
            earlier call of the same search, that search continues, also with more trials. Unlike :func:`compare`, this
            needs no ``resume``. Another search in the folder is refused. None keeps no files.
        jobs: Number of parallel runs, each in its own process; at most ``seeds``, because a trial depends on those
            before it. See :func:`compare`.
        returned: Which model a run returns and is judged by, see :func:`drfl.run`.
        guards: Checks of reported losses before the dual update: objects of :mod:`drfl.resilience`, or texts such as
            "clip:bound=3". None uses a wide default, "none" uses no guard.
        max_norm: Reject models farther than this from the one that was sent, and longer gradients.
        step_bound: Reject updates longer than this multiple of the cohort's median; 0 for no bound.
        aggregator: Robust aggregation rule for models and gradients: an object, or a text such as "krum:f=2".
        faults: How clients fail: a :class:`drfl.resilience.FailureModel`, or its numbers, such as ``{"drop": 0.3}``,
            "drop=0.3" or a list of such texts.
        over_select: Contact this multiple of the cohort and use the first replies.
        min_replies: Do not count a round that fewer clients answer.
        repeats: Repeat such a round up to this number of times.
        engine: The engine that computes the clients' work: an object, or "auto", "stacked", "threads" or "loop".
        device: Torch device.
        precision: "full", or "bf16" for local steps in bfloat16.
        threads: Torch threads of every run.
        progress: Called with a line for every trial that ends; None shows nothing.

    Returns:
        The result: ``best_algorithm``, ``best_params``, ``best_value``, ``headline``, ``confirmation``, ``to_frame()``,
        and ``directory``.

    Raises:
        InputError: If an argument is invalid, ``out`` contains something else or another search, the space fails, an
            algorithm cannot start, or Optuna is missing.
        DrflError: If a worker process died, or every run failed.
    """
    from drfl.core import checks
    from drfl.experiments.tuning.tune_objects import tune_objects

    checks.integer("rounds", rounds)
    settings = {
        "rounds": rounds, "evaluate_every": rounds, "returned": returned, "guards": guards, "max_norm": max_norm,
        "step_bound": step_bound, "aggregator": aggregator, "faults": faults, "over_select": over_select,
        "min_replies": min_replies, "repeats": repeats, "engine": engine, "device": device, "precision": precision,
        "threads": threads, "judged_on": "validation", "validation": validation,
    }  # fmt: skip
    return tune_objects(
        space, data, task, settings, trials=trials, seeds=seeds, confirm_seeds=confirm_seeds, criterion=criterion,
        first=first, out=None if out is None else Path(out), jobs=jobs, progress=line_printer(progress),
    )  # fmt: skip


def assess(
    of: Result | Evaluation | Fitted | pd.DataFrame | str | Path,
    data: ClientData | Simulation | None = None,
    *,
    measure: str | None = None,
    level: float = 0.95,
    auc_interval: AucInterval = "delong",
) -> Assessment:
    """Assess the worst client and all others from a test, as ``drfl assess`` does.

    Args:
        of: A run's result; an evaluation of accuracy, such as from :meth:`drfl.Simulation.evaluate`; the result of
            :func:`fit`; the folder of a run or a fit; or another tool's predictions of the test rows of a simulation,
            see the page on trained models.
        data: The clients' data, for whether they share test rows, and for the names of the clients of an evaluation; a
            folder and the result of a fit know both. For predictions, the simulation.
        measure: A metric that was measured; None = the score.
        level: The level of intervals and sets, in (0, 1).
        auc_interval: "delong", or "distribution-free", which is valid for every distribution of the outputs and any
            number of rows, but is far wider.

    Warns:
        RunWarning: If the folder's run did not reach its end.

    Raises:
        InputError: If the folder is not a run's, ``data`` has other test rows, the metric is unknown or has no
            value for a single row, or test rows stopped the run.

    Example:
        >>> import drfl, torch
        >>> evaluation = drfl.Evaluation(  # 40 of 50 rows right at the first client, 90 of 100 at the second
        ...     torch.tensor([0.8, 0.9]), torch.tensor([0.5, 0.3]), torch.tensor([50, 100]),
        ...     sums=torch.tensor([[[50.0, 40.0, 40.0]], [[100.0, 90.0, 90.0]]]),
        ... )
        >>> drfl.assess(evaluation)
        <Assessment of 2 clients: worst accuracy 80.0 % (client-0), true value 66.3 % to 91.0 %, 2 could be the worst>
    """
    if isinstance(of, str | Path):
        from drfl.experiments.assess.assess_runs import assess_run, warn_of_interruption
        from drfl.report.run_gains import no_assessment

        run = assess_run(Path(of), measure, level, auc_interval)
        # Level 3 is the user's line that calls this function.
        warn_of_interruption(Path(of), stacklevel=3)
        if run.assessment is None:
            why = no_assessment(run)
            raise InputError(why, code=why.code, field=why.field)
        return run.assessment
    import pandas as pd

    from drfl.assessment.assess_evaluation import assess_evaluation
    from drfl.engine import Simulation
    from drfl.experiments.compare.comparison_results import Comparison
    from drfl.experiments.fit.fitted import Fitted

    if isinstance(of, Fitted):
        trained_on = of.finished.job.data
        data = trained_on if data is None and isinstance(trained_on, ClientData) else data
        of = of.result
    _check_not_on_test(of)
    if isinstance(of, Result):
        evaluation, measures = of.evaluation, of.history.measures
    elif isinstance(of, Evaluation):
        evaluation, measures = of, (ACCURACY,)
    elif not isinstance(of, pd.DataFrame):
        remedy = ""
        if isinstance(of, Comparison):
            remedy = ". See its to_frame() and differences(), or assess the folder of one run"
        elif isinstance(of, Sequence):
            remedy = ". Assess one result at a time, or compare two with drfl.assess_gain"
        raise InputError(
            f"expected the result or folder of a run, an evaluation, or a data frame of predictions, got "
            f"{type(of).__name__}{remedy}",
            code="wrong-type",
            field="of",
        )
    elif isinstance(data, Simulation):
        from drfl.experiments.assess.predictions import tested_predictions

        evaluation, measures = tested_predictions(of, data)[0], data.measures
    else:
        raise InputError(
            "predictions need data: pass the simulation whose test rows they predict",
            code="missing-option",
            field="data",
        )
    data = data.data if isinstance(data, Simulation) else data
    if data is not None and not isinstance(data, ClientData):
        raise InputError(
            f"data must be drfl.ClientData or a drfl.Simulation, got {type(data).__name__}",
            code="wrong-type",
            field="data",
        )
    if data is not None and data.n != len(evaluation.samples):
        raise InputError(
            f"data has {data.n} clients, but {len(evaluation.samples)} were tested: pass the data on "
            "which the model was tested",
            code="clients-differ",
            field="data",
        )
    if data is not None and isinstance(of, Result) and of.ignored is not None:
        # The simulation tested a copy of the data without these rows.
        ignored = ignores(data.test_targets, of.ignored).reshape(len(data.test_targets), -1).all(1)
        data = replace(data, test=tuple(rows[~ignored[rows]] for rows in data.test))
    pairs = () if data is None else zip(data.names, map(len, data.test), evaluation.samples.tolist(), strict=True)
    for name, present, tested in pairs:
        if present != tested:
            raise InputError(
                f"client '{name}' has {present:,} test rows in data, but {tested:,} were tested: pass the "
                "data on which the model was tested",
                code="clients-differ",
                field="data",
            )
    names, independent = (None, True) if data is None else (data.names, not data.shares_test_rows)
    names = of.names if names is None and isinstance(of, Result) else names
    patients = None if data is None or data.patients is None else data.patient_counts(data.test).tolist()
    return assess_evaluation(
        evaluation,
        measures,
        names,
        measure=measure,
        level=level,
        independent=independent,
        auc_interval=auc_interval,
        patients=patients,
    )


def evaluate(
    model: Model | str | Path,
    tables: pd.DataFrame | str | Path | Sequence[str | Path],
    *,
    group: str | None = None,
    measure: str | None = None,
    level: float = 0.95,
    auc_interval: AucInterval = "delong",
    personal: bool = False,
) -> Assessment:
    """Test a trained model on new rows with targets, client by client, as ``drfl evaluate`` does.

    All rows are test rows. The intervals are valid only if none of them was a training row. A ``drfl.DataWarning``
    names columns of clients that are far from the training rows, probably because of another unit.

    Args:
        model: A model from :func:`drfl.load_model`, or the path that this function takes.
        tables: A data frame with the columns of the training; or the path of a table, of a folder of them, or several.
        group: Column that names the client. None = the column of the training if all tables have it; otherwise each
            file is a client.
        measure: Name of a metric. None = the score of the training, or the mean absolute error in regression.
        level: Confidence level of intervals and sets, in (0, 1).
        auc_interval: See :func:`drfl.assess`.
        personal: Test each client that has a personal model beside the file of ``model`` with that model, and the
            others with ``model``.

    Raises:
        InputError: If the model has no schema or does not describe its module, a table does not conform to the schema,
            the metric is unknown, it has no value for a single row, or ``personal`` is true and there are no personal
            models.

    Example:
        >>> import drfl, tempfile, pandas as pd
        >>> old = pd.DataFrame({"dose": range(60), "site": ["a", "b", "c"] * 20, "ill": ["no", "yes"] * 30})
        >>> data = drfl.ClientData.from_frame(old, group="site", target="ill")
        >>> algorithms, task = {"FedAvg": drfl.FedAvg(m=3)}, drfl.Task(drfl.models.linear((1,), 2))
        >>> out = f"{tempfile.mkdtemp()}/runs"
        >>> runs = drfl.compare(algorithms, data, task, rounds=2, seeds=1, out=out, progress=None)
        >>> new = old.assign(dose=old["dose"] + 0.5)
        >>> drfl.evaluate(f"{out}/FedAvg-seed0", new).names
        ('a', 'b', 'c')
    """
    from drfl.data.model import Model, load_models
    from drfl.experiments.assess.labelled_table import evaluate_tables

    if isinstance(model, Model):
        tested, own = model, model.personal_weights() if personal else {}
    else:
        tested, own = load_models(model, personal=personal)
    return evaluate_tables(
        tested, tables, group=group, measure=measure, level=level, auc_interval=auc_interval, own=own,
        warn=lambda notice: warnings.warn(notice, DataWarning, stacklevel=4),
    )  # fmt: skip


def assess_gain(
    first: Tensor | Result | pd.DataFrame | str | Path,
    second: Tensor | Result | pd.DataFrame | str | Path,
    fed: Simulation | None = None,
    *,
    measure: str | None = None,
    level: float = 0.95,
    auc_interval: AucInterval = "delong",
) -> GainAssessment:
    """Assess by how much the second model is better than the first, at each client and for the worst one.

    Args:
        first: A model (d,); a run's result, whose returned model or personal models are used; another tool's
            predictions; or a folder.
        second: The model that is compared with it: predictions with a model, or a folder with a folder.
        fed: The simulation whose test rows both are tested on; folders hold the scores of their models on these rows.
        measure: A metric that was measured; None = the score.
        level: The level of the intervals, in (0, 1).
        auc_interval: See :func:`assess`.

    Raises:
        InputError: If a folder is compared with something else, models come without ``fed``, the runs of folders have
            other test rows or stored none, test rows stopped a run, or the metric has no value for a single row.
    """
    from drfl.experiments.assess.assess_runs import gain_of_folders, gain_of_models

    if isinstance(first, str | Path) and isinstance(second, str | Path):
        return gain_of_folders(Path(first), Path(second), measure, level, auc_interval)
    if isinstance(first, str | Path) or isinstance(second, str | Path):
        raise InputError(
            "cannot compare a folder with a model: pass two folders of runs, or two models and fed", code="wrong-type"
        )
    if fed is None:
        raise InputError(
            "models are compared on test rows: pass fed, the simulation that has these rows",
            code="missing-option",
            field="fed",
        )
    from drfl.engine import Simulation

    if not isinstance(fed, Simulation):
        raise InputError(
            f"fed must be the drfl.Simulation with the test rows, such as drfl.Simulation(data, task), got "
            f"{type(fed).__name__}",
            code="wrong-type",
            field="fed",
        )
    _check_not_on_test(first, second)
    models = (
        entry if not isinstance(entry, Result) else entry.model if entry.personal is None else entry.personal
        for entry in (first, second)
    )
    return gain_of_models(fed, *models, measure=measure, level=level, auc_interval=auc_interval)


def _check_not_on_test(*given: object) -> None:
    """Refuse results of runs that test rows stopped."""
    if any(isinstance(result, Result) and result.stopped_on == "test" for result in given):
        raise InputError(f'no intervals: {ON_TEST}; use until="METRIC=VALUE"', code="no-results")
