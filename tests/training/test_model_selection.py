"""Test model selection and early stopping by validation rows."""

from __future__ import annotations

import math

import pytest
import torch
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl.core.key import Key
from drfl.task.metrics import ACCURACY, METRICS
from drfl.training.checkpoint import Checkpoints, resume_point
from drfl.training.history import Metrics
from drfl.training.model_selection import ModelSelection, Selected, Target
from drfl.training.run_state import first


def clients(flipped=False):
    """Return three clients; with ``flipped``, the labels of test rows are flipped."""
    draw = torch.Generator().manual_seed(3)
    train, test = {}, {}
    for i in range(3):
        x = torch.randn(60, 5, generator=draw)
        y = (x[:, i] + torch.randn(60, generator=draw) > 0).long()
        train[f"c{i}"], test[f"c{i}"] = (x[:40], y[:40]), (x[40:], 1 - y[40:] if flipped else y[40:])
    return drfl.ClientData.from_arrays(train, test).with_validation(0.3)


ALGORITHM = drfl.DRFA(local=drfl.LocalSGD(lr=0.5))
WITHOUT = drfl.ClientData.from_arrays([(torch.randn(9, 5), torch.arange(9) % 2)])


def simulation(data=None):
    with Key(1).torch_scope():
        return drfl.Simulation(data or clients(), drfl.Task(nn.Linear(5, 2)))


def run(data=None, rounds=12, **options):
    return drfl.run(ALGORITHM, simulation(data), rounds=rounds, **options)


def test_validation_rows_are_removed_from_training_rows():
    data, whole = clients(), clients()
    assert data.validation is not None
    for train, held, name in zip(data.train, data.validation, data.names, strict=True):
        assert len(train) == 28
        assert len(held) == 12
        assert not set(train.tolist()) & set(held.tolist()), name
    assert all(torch.equal(a, b) for a, b in zip(data.validation, whole.validation or (), strict=True))
    with refused("conflicting-options", "validation"):
        data.with_validation()


def test_best_round_on_validation_rows_is_returned():
    """Every round's model is evaluated by hand."""
    data, models = clients(), []
    result = run(data, select="worst", callbacks=[lambda step: models.append(step.model.clone())])
    fed = simulation(data)
    worst = [float(fed.validate(w).score.min()) for w in models]
    at = max(range(1, len(worst)), key=lambda r: (worst[r], r))
    assert result.selection == ("validation", "worst_accuracy", at, worst[at], ())
    assert torch.equal(result.model, models[at])
    assert result.returned == "selected"
    assert torch.equal(result.evaluation.score, fed.evaluate(models[at]).score)
    assert result.history.last.metrics == Metrics.of(result.evaluation)
    held = [row.validation.worst_score for row in result.history.rows if row.validation is not None]
    assert held[:-1] == worst[:-1]
    assert "validation_worst_accuracy" in result.history.to_csv().splitlines()[0]


def test_test_rows_are_not_used():
    ends = [run(clients(flipped), select="average", patience=4, check_data=False) for flipped in (False, True)]
    assert torch.equal(ends[0].model, ends[1].model)
    assert ends[0].selection == ends[1].selection
    assert ends[0].rounds == ends[1].rounds


def metrics(worst):
    return Metrics(worst, worst, 0.0, worst, worst, 1 - worst, 1 - worst)


def test_patience_counts_from_the_last_gain():
    select = ModelSelection.parse(ACCURACY, "worst", 3, None)
    at, ends = Selected.start(torch.zeros(1), torch.ones(1)), []
    for r, worst in enumerate([0.5, 0.4, 0.6, 0.6, math.nan, 0.5, 0.9]):
        at = select.after(at, r, torch.tensor([float(r)]), torch.ones(1), metrics(worst))
        ends.append(select.stops(at, r, None) == "patience")
    assert ends == [False, False, False, False, False, True, False]
    assert int(at.round) == 6
    assert at.w.tolist() == [6.0]


def selected_after(values, patience=None):
    """Return the selected round for the worst scores of rounds 0, 1, …, and whether patience ends after each."""
    select = ModelSelection(ACCURACY, "worst", patience)
    at, ends = Selected.start(torch.zeros(1), torch.ones(1)), []
    for r, worst in enumerate(values):
        at = select.after(at, r, torch.tensor([float(r)]), torch.ones(1), metrics(worst))
        ends.append(select.stops(at, r, None) == "patience")
    return at, ends


@pytest.mark.parametrize(
    ("worst", "chosen"),
    [
        ([0.9, 0.1, 0.2, 0.1], 2),
        ([0.0, 0.0, 0.0, 0.0], 3),
        ([math.nan, 0.4, math.nan, 0.4, math.nan], 3),
        ([0.5, math.nan, 0.3, -math.inf], 2),
    ],
)
def test_ties_prefer_later_rounds_and_undefined_rounds_are_skipped(worst, chosen):
    at, _ = selected_after(worst)
    assert (int(at.round), at.w.tolist(), at.is_empty) == (chosen, [float(chosen)], False)


def test_patience_ignores_a_score_that_was_never_defined():
    at, ends = selected_after([math.nan] * 9, 2)
    assert at.is_empty
    assert not any(ends)


def one_class_each():
    """Return three clients of one class each, on whose rows an AUC is undefined."""
    draw = torch.Generator().manual_seed(3)
    parts = {f"c{i}": (torch.randn(40, 5, generator=draw), torch.full((40,), i % 2)) for i in range(3)}
    return drfl.ClientData.from_arrays(parts).with_validation(0.3)


@pytest.mark.parametrize("returned", ["average", pytest.param("last", marks=pytest.mark.long)])
def test_default_model_is_returned_with_a_warning_if_nothing_is_selected(returned, caplog):
    def auc(select):
        with Key(1).torch_scope():
            fed = drfl.Simulation(one_class_each(), drfl.Task(nn.Linear(5, 2), score="auc"))
        return drfl.run(ALGORITHM, fed, rounds=5, returned=returned, select=select, check_data=False)

    usual, caught = auc(None), auc("worst")
    assert torch.equal(caught.model, usual.model)
    assert caught.returned == returned
    assert caught.selection is not None
    assert caught.selection.metric is None
    assert caught.selection.round == 5
    assert [getattr(record.msg, "code", None) for record in caplog.records].count("no-round-selected") == 1


def test_scores_for_which_less_is_better_and_losses():
    for metric, score in (("worst", METRICS["rmse"]), ("loss", ACCURACY), ("worst_rmse", METRICS["rmse"])):
        select, at = ModelSelection(score, metric), Selected.start(torch.zeros(1), torch.ones(1))
        for r, value in enumerate([0.5, 3.0, 1.0, 2.0]):
            found = metrics(value)._replace(worst_loss=value)
            at = select.after(at, r, torch.tensor([float(r)]), torch.ones(1), found)
        assert (int(at.round), float(at.value)) == (2, -1.0), metric


def test_resumed_run_selects_like_an_uninterrupted_one(tmp_path):
    options = {"select": "worst20", "patience": 30}
    whole = run(**options)
    run(keep=Checkpoints(tmp_path, dict, every=1), callbacks=[lambda step: step.round == 7], **options)
    fed = simulation()
    point = resume_point(tmp_path, ALGORITHM, fed, fresh=first(ALGORITHM, fed, validates=True))
    assert point is not None
    resumed = run(start=point.progress, **options)
    assert torch.equal(resumed.model, whole.model)
    assert resumed.selection == whole.selection
    assert resumed.history.to_csv() == whole.history.to_csv()


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: run(select="best"), ("unknown-name", "metric", "'best'", "worst_accuracy")),
        (lambda: run(patience=0), ("out-of-range", "patience")),
        (lambda: run(WITHOUT, select="worst"), ("no-validation", "validation")),
        (lambda: run(WITHOUT, patience=3), ("no-validation", "validation")),
        (lambda: clients().with_validation(1.5), ("conflicting-options", "validation")),
        (
            lambda: WITHOUT.with_validation(1.0),
            ("out-of-range", "validation"),
        ),
    ],
)
def test_impossible_values_are_refused(make, error):
    with refused(*error):
        make()


@pytest.mark.long
def test_target_on_validation_rows_stops_at_the_first_round():
    models = []
    run(callbacks=[lambda step: models.append(step.model.clone())], check_data=False)
    worst = [float(simulation().validate(w).score.min()) for w in models]
    value = max(worst)
    at = next(r for r, now in enumerate(worst) if now >= value)
    assert 0 < at < 12
    for flipped in (False, True):
        result = run(clients(flipped), until=f"worst_accuracy={value!r}", check_data=False)
        assert (result.rounds, result.stopped, result.stopped_on) == (at, "target", "validation")
        assert torch.equal(result.model, models[at])
        assert result.selection is not None
        assert result.selection.metric is None
        assert result.history.validated
        assert drfl.assess(result).worst.low < drfl.assess(result).worst.high


def test_target_on_test_rows_must_be_requested_and_leaves_no_interval():
    plain = run(WITHOUT, until="test:worst_accuracy=0", check_data=False)
    assert (plain.rounds, plain.stopped, plain.stopped_on) == (0, "target", "test")
    assert not plain.history.validated
    with refused("no-results"):
        drfl.assess(plain)
    with refused("no-results"):
        drfl.assess_gain(plain, plain, simulation(WITHOUT))
    whole = run(WITHOUT, rounds=2, until="test:worst_loss=0", check_data=False)
    assert (whole.rounds, whole.stopped, whole.stopped_on) == (2, "rounds", None)
    assert drfl.assess(whole).worst.low < drfl.assess(whole).worst.high


def test_patience_follows_the_metric_of_select():
    """The loss still falls in the last round, but the score has not risen since round 0."""
    ends = []
    for select in (None, "loss"):
        rules, at = ModelSelection.parse(ACCURACY, select, 2, None), Selected.start(torch.zeros(1), torch.ones(1))
        for r, loss in enumerate([0.9, 0.8, 0.7]):
            at = rules.after(at, r, torch.zeros(1), torch.ones(1), metrics(0.5)._replace(worst_loss=loss))
        ends.append(rules.stops(at, 2, None))
    assert ends == ["patience", None]


def test_reasons_for_stopping():
    ends = [run(patience=1), run(callbacks=[lambda step: step.round == 2]), run(rounds=2)]
    found = [(result.stopped, result.stopped_on) for result in ends]
    assert found == [("patience", "validation"), ("callback", None), ("rounds", None)]
    # a run that has done all its rounds was not stopped
    assert run(rounds=0, until="worst_accuracy=0").stopped == "rounds"


def test_undefined_validation_score_reaches_no_target():
    with Key(1).torch_scope():
        fed = drfl.Simulation(one_class_each(), drfl.Task(nn.Linear(5, 2), score="auc"))
    result = drfl.run(ALGORITHM, fed, rounds=3, until="worst_auc=0", check_data=False)
    assert result.stopped == "rounds"


@pytest.mark.long
def test_resumed_run_stops_like_an_uninterrupted_one(tmp_path):
    least = min(row.validation.worst_loss for row in run(patience=99).history.rows)  # pyright: ignore
    options = {"until": f"worst_loss={least!r}", "rounds": 13}
    whole = run(**options)
    assert whole.stopped == "target"
    assert whole.rounds > 2
    cut = whole.rounds // 2
    run(keep=Checkpoints(tmp_path, dict, every=1), callbacks=[lambda step: step.round == cut], **options)
    fed = simulation()
    point = resume_point(tmp_path, ALGORITHM, fed, fresh=first(ALGORITHM, fed, validates=True))
    assert point is not None
    resumed = run(start=point.progress, **options)
    assert (resumed.rounds, resumed.stopped) == (whole.rounds, whole.stopped)
    assert resumed.history.to_csv() == whole.history.to_csv()


def test_targets_from_text():
    assert Target.parse(None, ACCURACY) is None
    assert Target.parse(" worst_accuracy = 0.5 ", ACCURACY) == Target("worst_accuracy", 0.5, "validation")
    assert Target.parse("test:worst_score=0.5", ACCURACY) == Target("worst_score", 0.5, "test")
    for text in (
        "worst_accuracy",
        "worst_accuracy=x",
        "test:worst_accuracy",
        "=",
        "",
        "worst_loss=nan",
        "worst_loss=inf",
    ):
        with refused("invalid-format", "until"):
            Target.parse(text, ACCURACY)
    for text in ("worst_acuracy=0.5", "tests:worst_accuracy=0.5", "worst_auc=0.5"):
        with refused("unknown-name", "metric"):
            Target.parse(text, ACCURACY)


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.9", None, [0.9]])
def test_target_that_is_not_a_finite_number_is_refused(value):
    with refused("out-of-range", "value", repr(value)):
        Target("worst_accuracy", value)


@pytest.mark.parametrize("metric", ["worst_accuracy", "worst_score", "worst20_accuracy"])
@pytest.mark.parametrize(("value", "quoted"), [(90, ("90", "0.9")), (-0.1, ("-0.1",)), (101, ("101",))])
def test_target_outside_the_range_of_a_fraction_is_refused(metric, value, quoted):
    with refused("out-of-range", "until", metric, *quoted):
        run(until=f"{metric}={value}")
    with refused("out-of-range", "until", metric, *quoted):
        Target.parse(f"test:{metric}={value}", ACCURACY)


def test_targets_of_other_metrics_have_no_range():
    assert Target.parse("worst_loss=90", ACCURACY) == Target("worst_loss", 90)
    assert Target.parse("worst_rmse=90", METRICS["rmse"]) == Target("worst_rmse", 90)


def test_target_without_rows_is_refused():
    with refused("no-validation", "validation"):
        run(WITHOUT, until="worst_accuracy=0.5")
    with refused("unknown-name", "rows"):
        Target("worst_accuracy", 0.5, "training")  # pyright: ignore
    with refused("unknown-name", "metric"):
        run(until="worst_acuracy=0.5")
