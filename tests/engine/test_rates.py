"""Test sensitivity, specificity and PPV at a threshold chosen on validation rows, and average precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, precision_score, recall_score
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl.engine.score_rows import youden
from drfl.federation.client_table import ClientTable
from drfl.task.measure import Rows
from drfl.task.metrics import METRICS, Metric

RATES = ("sensitivity", "specificity", "ppv")


def drawn(seed, n=60, classes=2):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randint(-3, 4, (n, classes), generator=generator).double() / 2  # with ties
    return outputs, torch.randint(0, classes, (n,), generator=generator)


@pytest.mark.parametrize("seed", range(3))
def test_binary_rates_match_scikit_learn(seed):
    outputs, y = drawn(seed)
    score = outputs[:, 1] - outputs[:, 0]
    for given, targets in ((outputs, y), (score[:, None], y.double()), (score, y.double())):
        called = (score > 0).long()
        value = {name: METRICS[name].of(given, targets) for name in (*RATES, "average_precision")}
        assert value["sensitivity"] == pytest.approx(recall_score(y, called), abs=1e-12)
        assert value["specificity"] == pytest.approx(recall_score(1 - y, 1 - called), abs=1e-12)
        assert value["ppv"] == pytest.approx(precision_score(y, called), abs=1e-12)
        assert value["average_precision"] == pytest.approx(average_precision_score(y, score), abs=1e-12)


def test_multiclass_rates_are_means_without_row_values():
    outputs, y = drawn(3, classes=4)
    called = outputs.argmax(1)
    assert METRICS["sensitivity"].of(outputs, y) == pytest.approx(recall_score(y, called, average="macro"))
    assert METRICS["ppv"].of(outputs, y) == pytest.approx(precision_score(y, called, average="macro"))
    log_odds = torch.log_softmax(outputs, 1).exp()
    expected = np.mean([average_precision_score(y == c, log_odds[:, c]) for c in range(4)])
    assert METRICS["average_precision"].of(outputs, y) == pytest.approx(expected)
    task = drfl.Task(nn.Linear(2, 4), metrics=RATES).resolved(torch.zeros(1, 2), y)
    assert [m.rows for m in task.measures] == ["binary", "whole", "whole", "whole"]


def test_single_class_leaves_some_rates_undefined():
    outputs, _ = drawn(0)
    for name, y, known in (
        ("sensitivity", 0, False),
        ("sensitivity", 1, True),
        ("specificity", 1, False),
        ("average_precision", 0, False),
    ):
        found = METRICS[name].of(outputs, torch.full((60,), y))
        assert math.isnan(found) != known
    assert math.isnan(METRICS["ppv"].of(-outputs.abs()[:, :1] - 1, torch.ones(60)))  # no row is predicted positive


def test_only_listed_metrics_are_rates():
    with refused("invalid-value", "rows"):
        Metric("own", METRICS["f1"].function, rows=Rows.RATE)


@pytest.mark.parametrize(
    ("output", "positive", "expected"),
    [
        ([0, 1, 2, 3], [0, 0, 1, 1], 1.5),
        ([0, 1, 2, 3], [0, 1, 0, 1], 0.5),  # as good as 2.5: the lowest
        ([0, 1, 1, 3], [0, 0, 1, 1], 0.5),
        ([3, 2, 1, 0], [0, 0, 1, 1], -1),  # worse than chance: all rows are predicted positive
        ([0, 1], [1, 1], None),
        ([0, math.nan], [1, 0], None),
    ],
)
def test_threshold_maximises_sensitivity_plus_specificity(output, positive, expected):
    assert youden(torch.tensor(output, dtype=torch.float64), torch.tensor(positive, dtype=torch.float64)) == expected


class Shift(nn.Module):
    """The inputs plus w."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return x + self.w


X = torch.tensor([[0.0], [1], [2], [3], [-1], [1], [5], [2], [4]], dtype=torch.float64)
Y = torch.tensor([0.0, 0, 1, 1, 0, 1, 1, 0, 1], dtype=torch.float64)


def served(validation=True, engine=None):
    """Make two clients that are tested on rows 4 to 6 and 7 to 8, and validated on 0, 1 and 2, 3, separable at 1.5."""
    held = (torch.arange(2), torch.arange(2, 4)) if validation else None
    test = (torch.arange(4, 7), torch.arange(7, 9))
    train = (torch.arange(9), torch.arange(9))
    data = drfl.ClientData(X, Y, train, X, Y, test, ("a", "b"), validation=held)
    task = drfl.Task(Shift(), nn.BCEWithLogitsLoss(), score="sensitivity", metrics=("specificity", "ppv", "auc"))
    return drfl.Simulation(data, task, engine=engine)


@pytest.mark.parametrize("engine", [drfl.Loop(), drfl.Stacked(), drfl.Threads(workers=2)])
def test_threshold_is_chosen_on_validation_rows_of_all_clients(engine):
    fed = served(engine=engine)
    w = torch.tensor([10.0], dtype=torch.float64)
    for found, moved in ((fed.evaluate(fed.w0), 0), (fed.evaluate_all([fed.w0, w])[1], 10)):
        assert found.threshold == 1.5 + moved
        assert found.score.tolist() == [0.5, 1]
        assert found.others[0].tolist() == [1, 0]
        assert found.others[1].tolist() == [1, 0.5]
        assert found.sums[:, 0].tolist() == [[2, 1, 1, 0, 0], [1, 1, 1, 0, 0]]
        assert found.sums[:, 1].tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]
        assert found.sums[:, 2].tolist() == [[1, 1, 1, 0, 0], [2, 1, 1, 0, 0]]
    rows = fed.row_scores(fed.w0).scores["specificity"]
    assert rows.isnan().tolist() == [False, True, True, False, True]
    held = fed.validate(fed.w0)
    assert (held.threshold, held.score.tolist()) == (1.5, [pytest.approx(math.nan, nan_ok=True), 1])


def test_threshold_without_validation_rows_is_one_half():
    fed = served(validation=False)
    found = fed.evaluate(fed.w0)
    assert found.threshold is None
    assert found.score.tolist() == [1, 1]
    assert found.others[0].tolist() == [1, 0]


def test_clients_can_have_their_own_models():
    fed = served()
    table = ClientTable.of(2, torch.arange(2), torch.tensor([[1.0], [1.0]], dtype=torch.float64))
    assert fed.evaluate_each(table).threshold == 2.5


def test_non_finite_outputs_have_no_rate():
    fed = served(validation=False)
    found = fed.evaluate(torch.tensor([math.nan], dtype=torch.float64))
    assert found.score.isnan().all()
    assert found.sums.isnan().all()


def test_rates_have_clopper_pearson_intervals():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator)
    y = (x.sum(1) + torch.randn(400, generator=generator) > 1.5).long()
    pairs = {name: (x[i::2], y[i::2]) for i, name in enumerate("ab")}
    data = drfl.ClientData.from_arrays(pairs, pairs).with_validation(0.3)
    task = drfl.Task(nn.Linear(3, 2), metrics=(*RATES, "average_precision"))
    fed = drfl.Simulation(data, task)
    result = drfl.run(drfl.FedAvg(m=2), fed, rounds=5, check_data=False)
    found = drfl.assess(result, data, measure="sensitivity")
    ill = [int((targets == 1).sum()) for _, targets in pairs.values()]
    assert found.samples.tolist() == ill
    assert found.method == "Clopper–Pearson"
    counts = result.evaluation.sums[:, 1, 1].numpy()
    from scipy.stats import binomtest

    expected = binomtest(int(counts[0]), ill[0]).proportion_ci(0.975, method="exact")
    assert (found.low[0], found.high[0]) == pytest.approx((expected.low, expected.high), abs=1e-9)
    with refused("unsupported-metric", "average_precision"):
        drfl.assess(result, data, measure="average_precision")
    with refused("unsupported-metric", "sensitivity"):
        drfl.assess_gain(fed.w0, result.model, fed, measure="sensitivity")
