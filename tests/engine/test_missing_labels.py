"""Test that unknown labels (NaN) are excluded from losses, gradients, metrics and sums, in every engine."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import sys

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from tests.support.engines import ALL_ENGINES
from tests.support.marks import crossed
from tests.support.refusals import refused
from torch import nn
from torch.nn import functional

import drfl
from drfl.core.key import Key
from drfl.engine import Loop, Simulation, Stacked, Threads, evaluation, full_batch, sgd
from drfl.engine.batches import draw, draw_epochs
from drfl.optim.local import LocalSGD
from drfl.task.task import Task

pytestmark = pytest.mark.usefixtures("ray", "global_generator_untouched")

LABELS = 3
SIZES, TESTS = (8, 40, 17, 64, 9), (6, 9, 5, 12, 30)


def clients(dtype=torch.float64, share=0.8, seed=0):
    """Make clients with increasing shares of unknown labels; the first has none."""
    draw, parts = torch.Generator().manual_seed(seed), []
    for sizes in (SIZES, TESTS):
        made = {}
        for i, n in enumerate(sizes):
            x = torch.randn(n, 4, generator=draw, dtype=torch.float64)
            y = (x[:, :LABELS] + torch.randn(n, LABELS, generator=draw, dtype=torch.float64) > 0).double()
            y[torch.rand(n, LABELS, generator=draw) < share * i / (len(sizes) - 1)] = math.nan
            y[0], y[1] = torch.tensor([0.0, 1.0, math.nan]), torch.tensor([1.0, 0.0, 1.0])
            made[f"site {i}"] = (x.to(dtype), y.to(dtype))
        parts.append(made)
    # At site 2 the last label is unknown in all test rows.
    parts[1]["site 2"][1][:, 2] = math.nan
    return drfl.ClientData.from_arrays(*parts, dtype=None)


def model(dtype=torch.float64):
    with Key(0).torch_scope():
        return nn.Linear(4, LABELS).to(dtype)


def by_hand(w, x, y, weight=1.0, positive=1.0):
    """Compute binary cross-entropy, the mean over known labels, and its gradient, with loops over rows and labels."""
    w, x, y = (np.asarray(t, dtype=np.float64) for t in (w, x, y))
    matrix, bias = w[: 4 * LABELS].reshape(LABELS, 4), w[4 * LABELS :]
    weight, positive = (np.broadcast_to(np.asarray(values, dtype=np.float64), LABELS) for values in (weight, positive))
    total, slope, known = 0.0, np.zeros_like(w), 0
    for row, labels in zip(x, y, strict=True):
        for k, label in enumerate(labels):
            if math.isnan(label):
                continue
            p = 1 / (1 + math.exp(-(matrix[k] @ row + bias[k])))
            total -= weight[k] * (positive[k] * label * math.log(p) + (1 - label) * math.log(1 - p))
            back = weight[k] * ((1 - label) * p - positive[k] * label * (1 - p))
            slope[4 * k : 4 * k + 4] += back * row
            slope[4 * LABELS + k] += back
            known += 1
    return total / known, slope / known


WEIGHT, POSITIVE = torch.tensor([0.5, 2.0, 1.25], dtype=torch.float64), torch.tensor([3.0, 1.0, 0.5])
LOSSES = {
    "plain": (nn.BCEWithLogitsLoss(), {}),
    "none": (nn.BCEWithLogitsLoss(reduction="none"), {}),
    "weights": (
        nn.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=POSITIVE.double()),
        {"weight": WEIGHT, "positive": POSITIVE},
    ),
    "function": (functional.binary_cross_entropy_with_logits, {}),
    "partial": (functools.partial(functional.binary_cross_entropy_with_logits, weight=WEIGHT), {"weight": WEIGHT}),
}


@pytest.mark.parametrize(
    ("engine", "name", "batch", "large"),
    crossed(ALL_ENGINES, list(LOSSES), {"full": None, "few": 3}, {"large": True, "small": False}),
)
def test_reports_gradients_and_tests_are_means_over_known_labels(engine, name, batch, large, monkeypatch):
    if large:
        for module, constant in ((full_batch, "LARGE"), (full_batch, "MINIBATCH"), (evaluation, "MIN_TRACED")):
            monkeypatch.setattr(module, constant, 0)
        monkeypatch.setattr(sgd, "BYTES", 12 * 8 * 3)
    (loss, options), data = LOSSES[name], clients()
    fed = Simulation(data, Task(model(), copy.deepcopy(loss)), engine=engine)
    cohort, w = torch.tensor([3, 0, 2, 4]), fed.w0 + 0.1
    losses, gradients = fed.losses(cohort, w, Key(5), batch=batch), fed.gradients(cohort, w, Key(5), batch=batch)
    batches = draw(fed._rows, cohort, 1, batch, Key(5))
    for j in range(len(cohort)):
        rows, _ = next(batches.of_client(j, 1))
        value, slope = by_hand(w, data.inputs[rows], data.targets[rows], **options)
        assert float(losses.values[j]) == pytest.approx(value, abs=1e-12)
        assert float(gradients.losses[j]) == pytest.approx(value, abs=1e-12)
        np.testing.assert_allclose(gradients.values[j], slope, rtol=0, atol=1e-12)
    found = fed.evaluate(w).loss.tolist()
    expected = [by_hand(w, data.test_inputs[rows], data.test_targets[rows], **options)[0] for rows in data.test]
    assert found == pytest.approx(expected, abs=1e-12)


OTHERS = {name: engine for name, engine in ALL_ENGINES.items() if name != "loop"}
SOLVERS = {
    "one": {"steps": 6, "batch": 1},
    "few": {"steps": 4, "batch": 3, "momentum": 0.7, "weight_decay": 0.1},
    "full": {"steps": 3, "batch": None},
    "epochs": {"epochs": 2, "batch": 4},
}


@pytest.mark.parametrize(("engine", "solver"), crossed(ALL_ENGINES, list(SOLVERS)))
def test_local_steps_follow_the_gradient_by_hand(engine, solver):
    local, data = LocalSGD(lr=0.05, **SOLVERS[solver]), clients()
    fed = Simulation(data, Task(model(), nn.BCEWithLogitsLoss()), engine=engine)
    cohort, w = torch.tensor([1, 4, 2, 3]), fed.w0 + 0.1
    found = fed.train(cohort, w, local, Key(7)).w
    draws = draw_epochs if local.epochs else draw
    batches = draws(fed._rows, cohort, local.epochs or local.steps, local.batch, Key(7))
    for j in range(len(cohort)):
        u, velocity = w.numpy().copy(), np.zeros(len(w))
        for rows, _ in batches.of_client(j, local.fewest_steps):
            _, slope = by_hand(u, data.inputs[rows], data.targets[rows])
            velocity = local.momentum * velocity + slope + local.weight_decay * u
            u = u - 0.05 * velocity
        np.testing.assert_allclose(found[j], u, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("engine", "dtype"), crossed(OTHERS, {"64": torch.float64, "32": torch.float32}))
def test_whole_runs_agree_with_the_loop(engine, dtype):
    algorithm = drfl.DualDRDM(m=3, local=LocalSGD(lr=0.3, steps=3, batch=4), dual_batch=2)
    runs = [
        drfl.run(algorithm, Simulation(clients(dtype), Task(model(dtype), nn.BCEWithLogitsLoss()), engine=e), rounds=3)
        for e in (Loop(), engine)
    ]
    close = 1e-10 if dtype == torch.float64 else 1e-5
    assert not torch.allclose(runs[0].state.w, model(dtype).weight.new_zeros(()))
    for of in (lambda run: run.state.w, lambda run: run.lam, lambda run: run.evaluation.loss):
        torch.testing.assert_close(of(runs[1]), of(runs[0]), rtol=0, atol=close)
    torch.testing.assert_close(runs[1].evaluation.score, runs[0].evaluation.score, rtol=0, atol=close)
    assert torch.isfinite(runs[0].lam).all()


METRICS = (
    "balanced_accuracy", "auc", "f1", "log_loss", "brier", "calibration_error", "mae", "rmse", "sensitivity",
    "specificity", "ppv", "average_precision",
)  # fmt: skip


def scikit_learns(z, y):
    """Return metrics of logits and labels (n, L): means over known labels, or over labels with a defined value."""
    z, y = z.numpy(), y.numpy()
    known = ~np.isnan(y)
    p = 1 / (1 + np.exp(-z))
    columns = {name: [] for name in ("balanced_accuracy", "auc", "f1", "sensitivity", "average_precision")}
    for k in range(LABELS):
        own, label = z[known[:, k], k], y[known[:, k], k]
        if not len(label):
            continue
        chosen = own > 0
        recalls = [float((chosen == value)[label == value].mean()) for value in (0, 1) if (label == value).any()]
        columns["balanced_accuracy"].append(np.mean(recalls))
        if len(np.unique(label)) == 2:
            columns["auc"].append(reference.roc_auc_score(label, own))
        if label.any() or chosen.any():
            columns["f1"].append(reference.f1_score(label, chosen))
        if label.any():
            columns["sensitivity"].append(reference.recall_score(label, chosen))
            columns["average_precision"].append(reference.average_precision_score(label, own))
    return {
        **{name: float(np.mean(values)) for name, values in columns.items()},
        "accuracy": float(((z > 0) == (y > 0.5))[known].mean()),
        "log_loss": float(-np.where(y > 0.5, np.log(p), np.log(1 - p))[known].mean()),
        "brier": float(((p - y) ** 2)[known].mean()),
        "mae": float(np.abs(z - y)[known].mean()),
    }


@pytest.mark.parametrize("engine", ALL_ENGINES.values(), ids=ALL_ENGINES)
def test_metrics_and_sums_use_known_labels(engine):
    data = clients()
    fed = Simulation(data, Task(model(), nn.BCEWithLogitsLoss(), metrics=METRICS), engine=engine)
    found, scores = fed.tested(fed.w0)
    assert found.sums is not None
    with torch.no_grad():
        outputs = model()(data.test_inputs)
    for i, rows in enumerate(data.test):
        z, y = outputs[rows], data.test_targets[rows]
        there = ~y.isnan().all(1)
        assert int(found.samples[i]) == int(there.sum())
        values = dict(zip(("accuracy", *METRICS), [float(v[i]) for v in (found.score, *found.others)], strict=True))
        for name, expected in scikit_learns(z, y).items():
            assert values[name] == pytest.approx(expected, abs=1e-12), name
        for measure, (n, total, *_) in zip(fed.measures, found.sums[i].tolist(), strict=True):
            if measure.rows.mean:
                assert total / n == pytest.approx(values[measure.name], abs=1e-12)
    assert scores.scores["accuracy"].dtype == torch.float64
    # For metrics that scikit-learn lacks, compare with another engine.
    plain = Simulation(data, Task(model(), nn.BCEWithLogitsLoss(), metrics=METRICS), engine=Loop()).evaluate(fed.w0)
    for a, b in zip(found.others, plain.others, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_complete_labels_give_unchanged_metrics():
    """A metric that can exclude labels equals the plain one if all labels are known."""
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(40, LABELS, dtype=torch.float64, generator=draw)
    y = (torch.randn(40, LABELS, generator=draw) > 0).double()
    for name in ("accuracy", *METRICS):
        plain = drfl.metrics.resolved(drfl.metrics.METRICS[name], z, y)
        masked = drfl.metrics.resolved(drfl.metrics.METRICS[name], z, y, math.nan)
        assert masked.of(z, y) == pytest.approx(plain.of(z, y), abs=1e-12), name
        assert masked.ignored is not None


def test_label_missing_at_a_client_is_undefined_there():
    """The AUC of site 0 uses two labels. A client whose only known label is constant has an undefined AUC, not 0."""
    data = clients()
    rows = data.test[2]
    data.test_targets[rows] = torch.tensor([1.0, math.nan, math.nan], dtype=torch.float64)
    fed = Simulation(data, Task(model(), nn.BCEWithLogitsLoss(), score="auc"))
    found = fed.evaluate(fed.w0)
    assert found.score.isnan().tolist() == [False, False, True, False, False]
    notices = [notice for notice in fed.data_warnings() if notice.code == "unknown-label"]
    assert [notice.field for notice in notices] == ["site 2"]
    assert "label 1" in notices[0]
    assert "label 2" in notices[0]


def test_rows_without_known_labels_are_excluded_and_counted():
    data = clients()
    data.targets[data.train[1][3:10]] = math.nan
    data.test_targets[data.test[3][2:4]] = math.nan
    empty = [int(data.targets[rows].isnan().all(1).sum()) for rows in data.train]
    tests = [int(data.test_targets[rows].isnan().all(1).sum()) for rows in data.test]
    fed = Simulation(data, Task(model(), nn.BCEWithLogitsLoss()))
    assert fed.sizes.tolist() == [len(rows) - none for rows, none in zip(data.train, empty, strict=True)]
    assert fed.evaluate(fed.w0).samples.tolist() == [
        len(rows) - none for rows, none in zip(data.test, tests, strict=True)
    ]
    (notice,) = [notice for notice in fed.data_warnings() if notice.code == "unlabelled-rows"]
    counts = sorted(((a + b, f"site {i}") for i, (a, b) in enumerate(zip(empty, tests, strict=True))), reverse=True)
    assert counts[2][0] > 0
    for count, name in counts[:3]:
        assert f"{name} ({count})" in notice
    assert drfl.data.data_warnings(data).count(notice) == 1
    # Data without the unlabelled rows train the same model.
    kept = [rows[~data.targets[rows].isnan().all(1)] for rows in data.train]
    tested = [rows[~data.test_targets[rows].isnan().all(1)] for rows in data.test]
    other = Simulation(
        dataclasses.replace(data, train=tuple(kept), test=tuple(tested)), Task(model(), nn.BCEWithLogitsLoss())
    )
    local = LocalSGD(lr=0.1, steps=3, batch=4)
    ask = (torch.arange(5), fed.w0, local, Key(0))
    assert torch.equal(fed.train(*ask).w, other.train(*ask).w)
    assert [notice.code for notice in other.data_warnings()].count("unlabelled-rows") == 0


@pytest.mark.parametrize("part", ["training", "test", "validation"])
def test_client_without_known_labels_is_refused(part):
    data = clients().with_validation(0.3)
    lists = {"training": data.train, "test": data.test, "validation": data.validation}[part]
    (data.test_targets if part == "test" else data.targets)[lists[2]] = math.nan
    with refused("no-rows", "site 2"):
        Simulation(data, Task(model(), nn.BCEWithLogitsLoss()))


class Reduced(nn.BCEWithLogitsLoss):
    """A user's loss without a value per label."""

    def forward(self, input, target):
        values = functional.binary_cross_entropy_with_logits(input, target, reduction="none").mean(1)
        return values if self.reduction == "none" else values.mean()


class Focal(nn.BCEWithLogitsLoss):
    def forward(self, input, target):
        values = functional.binary_cross_entropy_with_logits(input, target, reduction="none")
        values = (1 - torch.exp(-values)) ** 2 * values
        return values if self.reduction == "none" else values.mean()


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.SoftMarginLoss(), Reduced(), lambda z, y: (z - y).square().mean(1)])
def test_losses_that_cannot_exclude_labels_are_refused(loss):
    with refused("missing-values", "targets"):
        Simulation(clients(), Task(model(), loss))
    complete = clients()
    complete.targets.nan_to_num_(0), complete.test_targets.nan_to_num_(0)
    Simulation(complete, Task(model(), loss))


def test_loss_derived_from_torch_needs_values_per_label():
    data = clients()
    fed = Simulation(data, Task(model(), Focal()))
    rows = data.test[4]
    with torch.no_grad():
        z, y = model()(data.test_inputs[rows]), data.test_targets[rows]
    known = ~y.isnan()
    assert float(fed.evaluate(fed.w0).loss[4]) == pytest.approx(float(Focal()(z[known], y[known])), abs=1e-12)


def test_nan_is_refused_for_other_targets():
    x = torch.zeros(8, 4)
    with refused("not-finite"):
        drfl.ClientData.from_arrays([(x, torch.tensor([0.0, math.nan] * 4))])


def test_complete_labels_have_no_row_weights():
    data = clients(share=0.0)
    for pool in (data.targets, data.test_targets):
        pool.nan_to_num_(1)
    fed = Simulation(data, Task(model(), nn.BCEWithLogitsLoss(), metrics=("brier",)), engine=Stacked())
    assert fed._train.masses is fed._test.masses is None
    assert [measure.rows for measure in fed.measures] == ["unit", "unit"]
    assert not [notice for notice in fed.data_warnings() if "label" in str(notice.code)]


def test_single_label_equals_removing_unlabelled_rows():
    """Targets have shape (n, 1), so a row counts fully or not at all, and row values keep their kind."""
    data = clients()
    y, tests = data.targets[:, :1], data.test_targets[:, :1]
    data = dataclasses.replace(data, targets=y, test_targets=tests)
    with Key(0).torch_scope():
        net = nn.Linear(4, 1).double()
    fed = Simulation(data, Task(net, nn.BCEWithLogitsLoss(), metrics=("auc", "sensitivity")), engine=Threads(2))
    assert [measure.rows for measure in fed.measures] == ["binary", "ranks", "rate"]
    found = fed.evaluate(fed.w0)
    for i, rows in enumerate(data.test):
        known = rows[~tests[rows, 0].isnan()]
        assert int(found.samples[i]) == len(known)
        z = net(data.test_inputs[known]).detach()
        assert float(found.score[i]) == pytest.approx(float(((z > 0) == (tests[known] > 0.5)).double().mean()))


@pytest.mark.long
def test_assessments_stay_fractions():
    fed = Simulation(clients(), Task(model(), nn.BCEWithLogitsLoss()))
    result = drfl.run(drfl.FedAvg(m=5, local=LocalSGD(lr=0.5)), fed, rounds=20)
    found = drfl.assess(result)
    assert ((found.low >= 0) & (found.low <= found.values) & (found.values <= found.high) & (found.high <= 1)).all()
    assert "ray" in sys.modules
