"""Test the scores of single rows and the sums over rows, by hand and in all engines."""

import math

import pytest
import torch
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl import Metric, Rows
from drfl.data.row_scores import placements, products
from drfl.federation.client_table import ClientTable
from drfl.task.metrics import ACCURACY, METRICS, metric_of, resolved

ENGINES = [drfl.Loop(), drfl.Stacked(), drfl.Threads(workers=2)]
LOGITS = torch.tensor([[-2.0], [-1.0], [1.0], [1.0], [3.0], [0.5], [-0.5]], dtype=torch.float64)
TARGETS = torch.tensor([0.0, 1, 0, 1, 1, 1, 1], dtype=torch.float64)
SPLIT = [torch.arange(5), torch.arange(5, 7)]
"""Two clients: one with five rows of two classes, one with two rows of one class."""


class Scale(nn.Module):
    """The inputs times w."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x):
        return x * self.w


def own(outputs, targets):
    return (outputs[:, 0] - targets).abs() / 4


def served(engine=None, score="accuracy", metrics=(), loss=None, x=LOGITS, y=TARGETS):
    data = drfl.ClientData(x, y, SPLIT, x, y, SPLIT, ("a", "b"))
    task = drfl.Task(Scale(), loss or nn.BCEWithLogitsLoss(), score=score, metrics=metrics)
    return drfl.Simulation(data, task, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_sums_over_rows_by_hand(engine):
    metrics = ("brier", "mae", "auc", "f1", Metric("own", own, rows=Rows.UNIT))
    fed = served(engine, metrics=metrics)
    found = fed.evaluate(fed.w0)
    assert [m.rows for m in fed.measures] == ["binary", "unit", "real", "ranks", "whole", "unit"]
    assert found.sums.shape == (2, 6, 5)
    assert found.sums.dtype == torch.float64
    # correct predictions at the first client: outputs −2, 1 (its target is 1) and 3
    assert found.sums[:, 0].tolist() == [[5, 3, 3, 0, 0], [2, 1, 1, 0, 0]]
    p = LOGITS[:, 0].sigmoid()
    for j, each in ((1, (p - TARGETS) ** 2), (2, (LOGITS[:, 0] - TARGETS).abs()), (5, own(LOGITS, TARGETS))):
        expected = [[len(part), float(each[part].sum()), float((each[part] ** 2).sum()), 0, 0] for part in SPLIT]
        assert found.sums[:, j].flatten().tolist() == pytest.approx([x for row in expected for x in row])
    # Of 3 × 2 pairs, −1 ranks above −2, 1 above −2 and equal to 1, 3 above both. The other client has one class.
    squares = [1 + 1.5**2 + 2**2, 3**2 + 1.5**2]  # of positives; of negatives: −2 below all three, 1 below 1 and 3
    assert found.sums[:, 3].tolist() == [[3, 2, 1 + 1.5 + 2, *squares], [2, 0, 0, 0, 0]]
    assert found.others[2].tolist() == [pytest.approx(4.5 / 6), pytest.approx(math.nan, nan_ok=True)]
    assert found.sums[:, 4, 0].tolist() == [5, 2]
    assert found.sums[:, 4, 1:].isnan().all()


@pytest.mark.parametrize("engine", ENGINES)
def test_row_values_by_hand(engine):
    fed = served(engine, metrics=("brier", "auc", "f1"))
    found = fed.row_scores(fed.w0)
    assert (found.starts.tolist(), found.rows.tolist()) == ([0, 5, 7], [0, 1, 2, 3, 4, 5, 6])
    assert set(found.scores) == {"accuracy", "brier", "auc.output", "auc.positive"}
    assert found.scores["accuracy"].tolist() == [1, 0, 0, 1, 1, 1, 0]
    assert found.scores["accuracy"].dtype == found.scores["auc.positive"].dtype == torch.uint8
    assert torch.equal(found.scores["auc.output"], LOGITS[:, 0])
    assert found.scores["auc.positive"].tolist() == TARGETS.tolist()
    assert found.scores["brier"].tolist() == pytest.approx(((LOGITS[:, 0].sigmoid() - TARGETS) ** 2).tolist())


@pytest.mark.parametrize("engine", ENGINES)
def test_row_values_with_a_model_per_client(engine):
    fed = served(engine, metrics=("mae", "auc"))
    table = ClientTable.of(2, torch.arange(2), torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    found, plain = fed.evaluate_each(table), fed.evaluate(fed.w0)
    assert found.sums[:, 0].tolist() == [[5, 3, 3, 0, 0], [2, 1, 1, 0, 0]]
    assert torch.equal(found.sums[0], plain.sums[0])
    assert found.sums[1, 1, 1] == 0.5 + 1.5
    assert fed.row_scores(table).scores["accuracy"].tolist() == [1, 0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_non_finite_outputs_have_no_sums(engine):
    x = LOGITS.clone()
    x[6] = 1e300
    found = served(engine, metrics=("brier", "auc", "f1"), x=x).evaluate(torch.tensor([1e10], dtype=torch.float64))
    assert found.sums[1].isnan().all()
    assert found.sums[0, :3].isfinite().all()


def test_overflowing_squares_have_no_sums():
    """They could not be stored in a run's files."""
    fed = served(metrics=("mae",), loss=nn.L1Loss())
    found = fed.evaluate(torch.tensor([1e60], dtype=torch.float64))
    assert found.others[0].isfinite().all()
    assert found.sums[:, 1].isnan().all()
    assert found.sums[:, 0].isfinite().all()


def test_two_models_as_a_table_of_right_and_wrong():
    fed = served(metrics=("mae", "auc", "f1"))
    one, other = (fed.row_scores(torch.tensor([w], dtype=torch.float64)) for w in (1.0, -1.0))
    found = products(one, one, fed.measures)
    assert found[0].tolist() == [4, 0]
    assert products(one, other, fed.measures)[0].tolist() == [0, 0]
    assert found[1].tolist() == pytest.approx([float(((LOGITS[:, 0] - TARGETS) ** 2).sum()), 0])
    assert found[3].isnan().all()


def test_products_of_two_rankings_equal_those_of_placements():
    fed = served(metrics=("auc",))
    one, other = (fed.row_scores(torch.tensor([w], dtype=torch.float64)) for w in (1.0, -1.0))
    squares = fed.evaluate(fed.w0).sums[:, 1, 3:].sum(0)
    assert products(one, one, fed.measures)[1].tolist() == squares.tolist()
    # The other model reverses every pair, so placements are 2 − c and 3 − d; those of the second client are 0.
    assert products(one, other, fed.measures)[1].tolist() == [1 * 1 + 1.5 * 0.5 + 2 * 0, 3 * 0 + 1.5 * 1.5]


def test_placements_equal_counted_pairs():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([5, 1, 40, 90])
    output = torch.randint(0, 12, (136,), generator=generator).double()
    positive = (torch.rand(136, generator=generator) < 0.3).double()
    expected = []
    for o, y in zip(output.split(sizes.tolist()), positive.split(sizes.tolist()), strict=True):
        right = (o[:, None] > o).double() + (o[:, None] == o).double() / 2  # a row's rank above another
        expected.append(torch.where(y > 0, right @ (1 - y), y @ right))
    found = placements(sizes, output, positive)
    assert torch.equal(found, torch.cat(expected))
    spoilt = placements(sizes, torch.where(torch.arange(136) == 7, math.nan, output), positive)
    assert spoilt[6:46].isnan().all()
    assert torch.equal(spoilt[46:], found[46:])


def test_runs_are_paired_by_rows_and_data():
    found = served().row_scores(torch.ones(1, dtype=torch.float64))
    assert found.same_rows(found._replace(scores={}))
    for change in ({"rows": found.rows.flip(0)}, {"starts": torch.tensor([0, 4, 7])}, {"data": "ab"}):
        assert not found.same_rows(found._replace(**change))


TWO, THREE = (torch.zeros(4, c) for c in (2, 3))
CLASS, SHARES = torch.zeros(4, dtype=torch.int64), torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "rows"),
    [
        ("accuracy", TWO, CLASS, "binary"),
        ("accuracy", THREE, CLASS, "binary"),
        ("accuracy", TWO[:, :1], CLASS, "binary"),
        ("accuracy", THREE, SHARES, "unit"),
        ("accuracy", torch.zeros(4, 5, 7), torch.zeros(4, 7, dtype=torch.int64), "unit"),
        ("brier", TWO, CLASS, "unit"),
        ("brier", THREE, SHARES, "unit"),
        ("brier", THREE, CLASS, "real"),
        ("auc", TWO, CLASS, "ranks"),
        ("auc", TWO[:, 0], SHARES[:, 0], "ranks"),
        ("auc", THREE, CLASS, "whole"),
        ("auc", THREE, SHARES, "whole"),
        ("sensitivity", TWO, CLASS, "rate"),
        ("ppv", TWO[:, 0], SHARES[:, 0], "rate"),
        ("specificity", THREE, CLASS, "whole"),
        ("log_loss", THREE, CLASS, "real"),
        ("rmse", TWO[:, :1], SHARES[:, 0], "whole"),
    ],
)
def test_kind_of_row_values_depends_on_the_targets(name, outputs, targets, rows):
    assert resolved(METRICS[name], outputs, targets).rows == rows


def test_row_without_a_score_is_not_wrong():
    share = Metric("own", own, rows=Rows.BINARY)
    assert share.checked(torch.tensor([0, math.nan, 1])).isnan().tolist() == [False, True, False]
    with refused("out-of-range", "own", "0.5", "1"):
        share.checked(torch.tensor([math.nan, 0.5, 1]))


def test_function_has_no_row_values_unless_declared():
    assert metric_of(own).rows is Rows.WHOLE
    assert metric_of(drfl.argmax_accuracy).rows is Rows.BINARY
    assert Metric("own", own, rows="unit").rows is Rows.UNIT
    fed = served(metrics=(own,))
    assert fed.evaluate(fed.w0).sums[0, 1].isnan().tolist() == [False, *[True] * 4]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Metric("own", own, rows="half"), ("unknown-name", "rows", "rows='half'")),
        (lambda: Metric("own", own, rows=Rows.RANKS), ("invalid-value", "rows")),
        (lambda: Metric("rows", own), ("invalid-name", "metric", "'rows'")),
        (lambda: _measured(Metric("own", own, rows=Rows.BINARY)), ("out-of-range", "own", "0.5", "1")),
        (
            lambda: _measured(Metric("own", lambda o, y: 9 * own(o, y), rows=Rows.UNIT)),
            ("out-of-range", "own", "[0, 1]"),
        ),
        (lambda: _measured(Metric("own", lambda o, y: 0.5, rows=Rows.REAL)), ("invalid-value", "own")),
        (
            lambda: _measured(Metric("own", own, rows=Rows.BINARY, per_sample=True)),
            ("out-of-range", "own", "0.5", "1"),
        ),
    ],
)
def test_undeclared_row_values_are_one_line_errors(make, error):
    with refused(*error):
        make()


def _measured(metric):
    fed = served(metrics=(metric,))
    return fed.evaluate(fed.w0)


def test_task_with_suitable_metrics_is_the_same_object():
    """The object holds its traced steps."""
    task = drfl.Task(nn.Linear(4, 3), metrics=("f1",))
    assert task.resolved(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)) is task
    assert task.measures[0] is ACCURACY
    other = drfl.Task(nn.Linear(4, 3), metrics=("brier",))
    assert [m.rows for m in other.resolved(torch.zeros(1, 4), CLASS).measures] == ["binary", "real"]
