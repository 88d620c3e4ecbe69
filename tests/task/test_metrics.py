"""Test metrics of a client's outputs and targets, against scikit-learn, by hand, and in a run."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import partial, wraps

import pytest
import torch
from sklearn import metrics as reference
from tests.support.marks import crossed, long_beyond
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl.task.measure import Rows
from drfl.task.metrics import BINS, METRICS, Metric, metric_of, resolved
from drfl.training.history import Metrics

generator = torch.Generator().manual_seed(5)
BINARY = torch.randn(40, 2, generator=generator, dtype=torch.float64)
MANY = torch.randn(40, 4, generator=generator, dtype=torch.float64)
REAL = torch.randn(40, 1, generator=generator, dtype=torch.float64)
TWO = torch.randint(0, 2, (40,), generator=generator)
FOUR = torch.randint(0, 4, (40,), generator=generator)
LABELS = torch.randint(0, 2, (40, 4), generator=generator).double()
NUMBERS = REAL[:, 0] + torch.randn(40, generator=generator, dtype=torch.float64)

P2, P4, PL = BINARY.softmax(1), MANY.softmax(1), MANY.sigmoid()
CASES = [
    ("accuracy", BINARY, TWO, reference.accuracy_score(TWO, P2.argmax(1))),
    ("accuracy", MANY, FOUR, reference.accuracy_score(FOUR, P4.argmax(1))),
    ("accuracy", MANY, LABELS, 1 - reference.hamming_loss(LABELS, PL > 0.5)),
    ("accuracy", REAL, TWO, reference.accuracy_score(TWO, REAL[:, 0] > 0)),
    ("balanced_accuracy", MANY, FOUR, reference.balanced_accuracy_score(FOUR, P4.argmax(1))),
    ("auc", BINARY, TWO, reference.roc_auc_score(TWO, P2[:, 1])),
    ("auc", MANY, FOUR, reference.roc_auc_score(FOUR, P4, multi_class="ovr")),
    ("auc", MANY, LABELS, reference.roc_auc_score(LABELS, PL)),
    ("auc", REAL, TWO, reference.roc_auc_score(TWO, REAL[:, 0])),
    ("f1", BINARY, TWO, reference.f1_score(TWO, P2.argmax(1))),
    ("f1", MANY, FOUR, reference.f1_score(FOUR, P4.argmax(1), average="macro")),
    ("f1", MANY, LABELS, reference.f1_score(LABELS, PL > 0.5, average="macro")),
    ("log_loss", MANY, FOUR, reference.log_loss(FOUR, P4)),
    ("log_loss", REAL, TWO, reference.log_loss(TWO, REAL[:, 0].sigmoid())),
    ("brier", BINARY, TWO, reference.brier_score_loss(TWO, P2[:, 1])),
    ("brier", MANY, FOUR, float((P4 - nn.functional.one_hot(FOUR, 4)).square().sum(1).mean())),
    ("mae", REAL, NUMBERS, reference.mean_absolute_error(NUMBERS, REAL)),
    ("rmse", REAL, NUMBERS, reference.mean_squared_error(NUMBERS, REAL) ** 0.5),
    ("r2", REAL, NUMBERS, reference.r2_score(NUMBERS, REAL)),
]


@pytest.mark.parametrize(("name", "outputs", "targets", "expected"), CASES)
def test_metrics_match_scikit_learn(name, outputs, targets, expected):
    assert METRICS[name].of(outputs, targets) == pytest.approx(float(expected), abs=1e-12)


ONE, P1 = REAL[:, 0], REAL[:, 0].sigmoid()
MACRO = partial(reference.f1_score, average="macro")
OVR = partial(reference.roc_auc_score, multi_class="ovr")
PINBALL = partial(reference.mean_pinball_loss, alpha=0.2)
NOT_TWO = partial(reference.average_precision_score, pos_label=0)
BRIER_OF_FIRST = partial(reference.brier_score_loss, pos_label=0)
OF_SCIKIT_LEARN = [
    # Two classes: outputs of two logits, and of one.
    *((f, BINARY, TWO, f(TWO, P2.argmax(1))) for f in (reference.precision_score, reference.f1_score)),
    *((f, REAL, TWO, f(TWO, ONE > 0)) for f in (reference.recall_score, reference.zero_one_loss)),
    (reference.balanced_accuracy_score, ONE, TWO[:, None].float(), reference.balanced_accuracy_score(TWO, ONE > 0)),
    (reference.matthews_corrcoef, BINARY, TWO, reference.matthews_corrcoef(TWO, P2.argmax(1))),
    (reference.cohen_kappa_score, BINARY, TWO, reference.cohen_kappa_score(TWO, P2.argmax(1))),
    *((f, BINARY, TWO, f(TWO, P2[:, 1])) for f in (reference.roc_auc_score, reference.average_precision_score)),
    *((f, REAL, TWO.float(), f(TWO, P1)) for f in (reference.log_loss, reference.brier_score_loss)),
    (NOT_TWO, BINARY, TWO, NOT_TWO(TWO, P2[:, 0])),
    (BRIER_OF_FIRST, BINARY, TWO, BRIER_OF_FIRST(TWO, P2[:, 0])),
    (reference.hinge_loss, REAL, TWO, reference.hinge_loss(TWO, ONE)),
    # A client with rows of one class.
    (reference.log_loss, BINARY, 0 * TWO, reference.log_loss(0 * TWO, P2, labels=[0, 1])),
    (reference.accuracy_score, BINARY, 0 * TWO, reference.accuracy_score(0 * TWO, P2.argmax(1))),
    # Four classes, of which a client may lack some.
    *((f, MANY, FOUR, f(FOUR, P4.argmax(1))) for f in (reference.accuracy_score, MACRO, reference.hamming_loss)),
    *((f, MANY, FOUR, f(FOUR, P4)) for f in (OVR, reference.log_loss, reference.top_k_accuracy_score)),
    (reference.hinge_loss, MANY, FOUR, reference.hinge_loss(FOUR, MANY)),
    (reference.log_loss, MANY, TWO, reference.log_loss(TWO, P4, labels=range(4))),
    (MACRO, MANY, TWO, MACRO(TWO, P4.argmax(1))),
    (reference.normalized_mutual_info_score, MANY, FOUR, reference.normalized_mutual_info_score(FOUR, P4.argmax(1))),
    # Several labels per row.
    *((f, MANY, LABELS, f(LABELS, MANY > 0)) for f in (reference.accuracy_score, MACRO, reference.hamming_loss)),
    *((f, MANY, LABELS, f(LABELS, PL)) for f in (reference.roc_auc_score, reference.label_ranking_loss)),
    # Numbers.
    *((f, REAL, NUMBERS, f(NUMBERS, ONE)) for f in (reference.r2_score, reference.explained_variance_score, PINBALL)),
    *((f, ONE, NUMBERS[:, None], f(NUMBERS, ONE)) for f in (reference.mean_absolute_error, reference.max_error)),
    (reference.r2_score, MANY, LABELS, reference.r2_score(LABELS, MANY)),
    (reference.mean_poisson_deviance, P1, NUMBERS.abs(), reference.mean_poisson_deviance(NUMBERS.abs(), P1)),
    (reference.ndcg_score, MANY, 3 * PL, reference.ndcg_score(3 * PL, MANY)),
]


@pytest.mark.parametrize(("function", "outputs", "targets", "expected"), OF_SCIKIT_LEARN)
def test_functions_of_scikit_learn_receive_what_they_expect(function, outputs, targets, expected):
    assert metric_of(function).of(outputs, targets) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("average", ["macro", "weighted", "micro"])
def test_average_precision_of_scikit_learn_is_that_of_the_classes_that_occur(average):
    function = partial(reference.average_precision_score, average=average)
    metric = metric_of(function)
    assert metric.of(MANY, FOUR) == float(function(FOUR, P4))
    for classes in ([0, 1], [0, 3], [1, 2, 3]):
        targets = torch.tensor(classes).repeat(40)[:40]
        truth = (targets[:, None] == torch.tensor(classes)).long()
        assert metric.of(MANY, targets) == pytest.approx(function(truth, P4[:, classes]), abs=1e-12)
    assert math.isnan(metric.of(MANY, torch.full((40,), 2)))


def test_names_of_scikit_learn_functions_determine_the_better_direction():
    """scikit-learn's own scorers know for which functions larger values are better."""
    for name in reference.get_scorer_names():
        scorer = reference.get_scorer(name)
        if scorer._score_func.__name__ in reference.__all__:
            metric = metric_of(scorer._score_func)
            assert (metric.name, metric.more_is_better) == (scorer._score_func.__name__, scorer._sign > 0)
    assert not Metric("cost", PINBALL).more_is_better
    assert metric_of(PINBALL) == Metric("mean_pinball_loss", PINBALL, more_is_better=False)


def test_only_functions_of_scikit_learn_receive_the_targets_first():
    """A user's function keeps its order, even if it has the name and the attributes of scikit-learn's."""

    @wraps(reference.r2_score)
    def r2_score(outputs, targets):
        return float(outputs[0])

    for metric in (metric_of(r2_score), metric_of(partial(r2_score)), Metric("mine", lambda o, y: r2_score(o, y))):
        assert metric.of(ONE, NUMBERS) == float(ONE[0])


def test_functions_of_scikit_learn_exclude_ignored_targets():
    targets = FOUR.where(torch.arange(40) % 3 > 0, -100)
    metric = resolved(metric_of(MACRO), MANY[:1], targets[:1], -100)
    kept = targets >= 0
    assert metric.of(MANY, targets) == pytest.approx(MACRO(FOUR[kept], P4.argmax(1)[kept]), abs=1e-12)


@pytest.mark.parametrize(
    ("function", "outputs", "targets", "quoted"),
    [
        # A client may have two of four classes, and scikit-learn would score the second of them.
        (reference.f1_score, MANY, TWO, "functools.partial(f1_score, average='macro')"),
        # scikit-learn would take the probabilities of labels, which do not sum to 1, for those of classes.
        (reference.log_loss, MANY, LABELS, "'log_loss'"),
    ],
)
def test_functions_of_scikit_learn_that_do_not_suit_the_task_are_refused(function, outputs, targets, quoted):
    with refused("unsupported-metric", function.__name__, quoted):
        metric_of(function).of(outputs, targets)


def test_calibration_error_by_hand():
    """Two bins: confidence 0.6 with two of four right, and confidence 0.9 with two of two right."""
    p = torch.tensor([0.6, 0.6, 0.6, 0.6, 0.9, 0.9], dtype=torch.float64)
    outputs, y = torch.stack([torch.zeros(6, dtype=torch.float64), p.logit()], 1), torch.tensor([1, 1, 0, 0, 1, 1])
    expected = (4 * 0.1 + 2 * 0.1) / 6
    assert METRICS["calibration_error"].of(outputs, y) == pytest.approx(expected)
    assert METRICS["calibration_error"].of(p.logit()[:, None], y) == pytest.approx(expected)


def test_auc_of_one_class_and_r2_of_one_row_are_undefined():
    assert math.isnan(METRICS["auc"].of(BINARY, torch.zeros(40, dtype=torch.int64)))
    assert math.isnan(METRICS["r2"].of(REAL[:1], NUMBERS[:1]))
    assert METRICS["balanced_accuracy"].of(BINARY, torch.zeros(40, dtype=torch.int64)) >= 0
    assert all(math.isnan(metric.of(torch.full_like(BINARY, math.nan), TWO)) for metric in METRICS.values())


def clients(n=3, regression=False):
    draw = torch.Generator().manual_seed(1)
    made = {}
    for i in range(n):
        x = torch.randn(30 + 10 * i, 4, generator=draw)
        y = x @ torch.tensor([1.0, -1.0, 0.5, 0.0]) + 0.3 * i * torch.randn(len(x), generator=draw)
        made[f"site {i}"] = (x, y if regression else (y > 0).long())
    return drfl.ClientData.from_arrays(made, test_fraction=0.4)


def spread(outputs, targets):
    """Return a metric without row values, computed from all of a client's rows."""
    return float(outputs.std()) / len(targets)


@pytest.mark.parametrize("engine", [drfl.Loop(), drfl.Stacked(), drfl.Threads()])
def test_engines_agree_on_metrics_and_the_worst_client(engine):
    data, metrics = clients(), ("accuracy", "brier", "f1", spread, Metric("miss", lambda o, y: o.argmax(1) != y))
    task = drfl.Task(nn.Linear(4, 2), score="auc", metrics=metrics)
    fed = drfl.Simulation(data, task, engine=engine)
    found = fed.evaluate(fed.w0)
    for i, rows in enumerate(data.test):
        with torch.no_grad():
            outputs, y = task.model(data.test_inputs[rows]).double(), data.test_targets[rows]
        assert float(found.score[i]) == pytest.approx(METRICS["auc"].of(outputs, y))
        for metric, values in zip(task.measures[1:], found.others, strict=True):
            assert float(values[i]) == pytest.approx(metric.of(outputs, y), abs=1e-6)
    assert found.others[-1] + found.others[0] == pytest.approx(torch.ones(3))


def test_worst_client_of_a_loss_like_score_has_the_largest_value():
    fed = drfl.Simulation(clients(regression=True), drfl.Task(nn.Linear(4, 1), nn.MSELoss(), metrics=("r2", "mae")))
    result = drfl.run(drfl.FedAvg(), fed, rounds=5)
    assert result.history.score is METRICS["rmse"]
    end = result.evaluation
    assert result.history.last.metrics == Metrics.of(end, METRICS["rmse"])
    assert result.history.last.metrics.worst_score == float(end.score.max())
    assert result.history.last.metrics.worst20_score == float(end.score.max())
    assert result.history.last.others["worst_r2"] == float(end.others[0].min())
    assert result.history.last.others["worst_mae"] == float(end.others[1].max())
    assert {"worst_rmse", "worst_r2", "avg_mae", "last_worst_rmse"} <= set(result.history.to_frame().columns)
    assert "worst RMSE" in repr(result)


def test_clients_with_undefined_score_are_excluded():
    data = clients()
    alone = drfl.ClientData.from_arrays(
        {"a": (data.inputs[:20], torch.ones(20).long()), "b": (data.inputs, data.targets)}
    )
    result = drfl.run(drfl.FedAvg(), drfl.Simulation(alone, drfl.Task(nn.Linear(4, 2), score="auc")), rounds=2)
    assert result.evaluation.score.isnan().tolist() == [True, False]
    assert (
        result.history.last.metrics.worst_score
        == result.history.last.metrics.avg_score
        == float(result.evaluation.score[1])
    )


def test_multi_label_metrics():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(2))
    y = (x[:, :3] > 0).float()
    data = drfl.ClientData.from_arrays([(x[:30], y[:30]), (x[30:], y[30:])], test_fraction=0.4)
    task = drfl.Task(nn.Linear(4, 3), nn.BCEWithLogitsLoss(), metrics=("auc", "f1"))
    result = drfl.run(drfl.DRFA(local=drfl.LocalSGD(lr=0.5)), drfl.Simulation(data, task), rounds=30)
    assert result.history.last.metrics.worst_score > 0.85
    assert result.evaluation.others[0].min() > 0.95


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"score": "acuracy"}, ("unknown-name", "metric", "'acuracy'", "'accuracy'")),
        ({"score": "auc", "metrics": ("auc",)}, ("given-twice", "metrics", "'auc'")),
        ({"score": nn.Linear}, ("invalid-name", "metric", "drfl.Metric")),
        ({"metrics": (lambda o, y: 0,)}, ("invalid-name", "metric", "drfl.Metric('name', function)")),
    ],
)
def test_invalid_metrics_are_refused(given, error):
    with refused(*error):
        drfl.Task(nn.Linear(4, 2), **given)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Metric("Worst", len), ("invalid-name", "metric", "'Worst'")),
        (lambda: Metric("loss", len), ("invalid-name", "metric", "'loss'")),
        (lambda: Metric("mine", 3), ("wrong-type", "metric", "int")),
        (lambda: metric_of(reference.silhouette_score), ("unsupported-metric", "silhouette_score")),
        (lambda: metric_of(partial(reference.r2_score, NUMBERS)), ("unsupported-metric", "r2_score")),
        (
            lambda: metric_of(Metric("mine", lambda o, y: 1 / 0)).of(BINARY, TWO),
            ("user-code-failed", "mine", "ZeroDivisionError", "test_metrics.py"),
        ),
        (lambda: Metric("mine", lambda o, y: torch.ones(3)).of(BINARY, TWO), ("wrong-shape", "mine", "(3,)", "40")),
        (lambda: METRICS["mae"].of(BINARY, NUMBERS), ("user-code-failed", "mae")),
    ],
)
def test_mistakes_in_a_metric_are_one_line_errors(make, error):
    with refused(*error) as raised:
        make()
    assert "\n" not in str(raised.value)


def logits_of(draw, n, k, scale):
    """Draw logits (n, k) with ties, multiplied by a scale."""
    return torch.randint(-4, 5, (n, k), generator=draw).double() * scale


@pytest.mark.parametrize("scale", [1e-18, 1.0, 60.0, 1e6])
@pytest.mark.parametrize("seed", range(5))
def test_auc_depends_only_on_the_order_of_scores(scale, seed):
    draw = torch.Generator().manual_seed(seed)
    z = logits_of(draw, 50, 1, 1.0)
    y = torch.randint(0, 2, (50,), generator=draw)
    right = reference.roc_auc_score(y, z[:, 0])
    two = torch.cat([-z / 2, z / 2], 1)
    assert METRICS["auc"].of(scale * two, y) == pytest.approx(right, abs=1e-12)
    assert METRICS["auc"].of(scale * z, y) == pytest.approx(right, abs=1e-12)
    rows = METRICS["auc"].of_rows(scale * two, y)
    assert reference.roc_auc_score(rows[:, 1], rows[:, 0]) == pytest.approx(right, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_auc_of_several_classes_does_not_saturate(seed):
    """The reference has exact log-odds: large logits are integers, for which only the largest others count."""
    draw = torch.Generator().manual_seed(seed)
    z, y = logits_of(draw, 60, 4, 100.0), torch.randint(0, 4, (60,), generator=draw)
    odds = []
    for k in range(4):
        rest = z[:, [j for j in range(4) if j != k]]
        odds.append(reference.roc_auc_score(y == k, z[:, k] - rest.logsumexp(1)))
    assert METRICS["auc"].of(z, y) == pytest.approx(sum(odds) / 4, abs=1e-12)
    small = z / 100
    right = [reference.roc_auc_score(y == k, small.softmax(1)[:, k].numpy().round(12)) for k in range(4)]
    assert METRICS["auc"].of(small, y) == pytest.approx(sum(right) / 4, abs=1e-3)


def test_labels_are_ranked_by_their_logits():
    z = torch.tensor([[40.0, 1.0], [50.0, 2.0], [60.0, 3.0], [70.0, 4.0]], dtype=torch.float64)
    y = torch.tensor([[0, 1], [0, 1], [1, 0], [1, 0]])
    assert METRICS["auc"].of(z, y) == pytest.approx(0.5)
    assert (
        METRICS["balanced_accuracy"].of(torch.tensor([[1e-20], [-1e-20]], dtype=torch.float64), torch.tensor([1, 0]))
        == 1
    )


@pytest.mark.parametrize("seed", range(5))
def test_rmse_of_several_outputs_is_their_mean(seed):
    draw = torch.Generator().manual_seed(seed)
    one, other = (torch.randn(30, 3, generator=draw, dtype=torch.float64) * torch.tensor([1, 10, 100]) for _ in "ab")
    right = reference.root_mean_squared_error(other, one)
    assert METRICS["rmse"].of(one, other) == pytest.approx(right, rel=1e-12)


def positions(draw, n, classes, shape, scale, ignored, share):
    """Draw logits (n, classes, …) with ties, saturated at a large scale, and targets, some of them ignored."""
    outputs = torch.randint(-3, 4, (n, classes, *shape), generator=draw).double() * scale
    targets = torch.randint(0, classes, (n, *shape), generator=draw)
    targets[torch.rand(n, *shape, generator=draw) < share] = ignored
    return outputs, targets


def places_of_odds(outputs, k):
    """Return the ranks of rows by the log-odds of class k, exact to 12 decimals."""
    with localcontext(prec=60):
        odds = []
        for own, *others in ((row[k], *row[:k], *row[k + 1 :]) for row in outputs.tolist()):
            total = sum(Decimal(z).exp() for z in others)
            odds.append(round(Decimal(own) - total.ln(), 12))
    order = sorted(set(odds))
    return [order.index(value) for value in odds]


def as_scikit_learn(outputs, targets, classes):
    """Return each metric of outputs (P, classes) and targets (P,)."""
    chosen, p = outputs.argmax(1), outputs.softmax(1)
    found = {
        "accuracy": reference.accuracy_score(targets, chosen),
        "balanced_accuracy": reference.balanced_accuracy_score(targets, chosen),
        "log_loss": float(nn.functional.cross_entropy(outputs, targets)),
        "brier": float((p - nn.functional.one_hot(targets, classes)).square().sum(1).mean()),
    }
    truth = nn.functional.one_hot(targets, classes)
    ranks = [places_of_odds(outputs, k) for k in range(classes)]
    aucs = [reference.roc_auc_score(t, r) for t, r in zip(truth.T, ranks, strict=True) if 0 < t.sum() < len(t)]
    found["auc"] = sum(aucs) / len(aucs) if aucs else math.nan
    if classes == 2:
        found["brier"] = float((p[:, 1] - targets).square().mean())
        if bool((targets == 1).any() or (chosen == 1).any()):
            found["f1"] = reference.f1_score(targets, chosen)
    else:
        found["f1"] = reference.f1_score(targets, chosen, average="macro")
    bins = (p.max(1).values * BINS).ceil().long().clamp(1, BINS)
    right = (chosen == targets).double()
    gaps = [
        (right[bins == b].mean() - p.max(1).values[bins == b].mean()).abs() * (bins == b).sum() for b in bins.unique()
    ]
    found["calibration_error"] = float(sum(gaps) / len(targets))
    return found


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize(
    ("classes", "shape", "scale", "ignored"),
    crossed([4, 2], {str(shape): shape for shape in ((), (7,), (3, 2))}, long_beyond(1, [0.25, 64.0]), [-100, 255, 1]),
)
def test_ignored_positions_do_not_count(classes, shape, scale, ignored):
    draw = torch.Generator().manual_seed(classes)
    for share in (0.0, 0.5, 0.9):
        outputs, targets = positions(draw, 30, classes, shape, scale, ignored, share)
        targets.view(30, -1)[0, 0] = 0
        flat, counted = outputs.movedim(1, -1).reshape(-1, classes), targets.reshape(-1) != ignored
        expected = as_scikit_learn(flat[counted], targets.reshape(-1)[counted], classes)
        for name, value in expected.items():
            metric = resolved(METRICS[name], outputs, targets, ignored)
            if not metric.rows.mean:
                assert metric.of(outputs, targets) == pytest.approx(value, abs=1e-12, nan_ok=True), name
                continue
            rows = metric.of_rows(outputs, targets)[:, 0]
            counts = (targets != ignored).reshape(30, -1).sum(1)
            assert rows.isnan().tolist() == (counts == 0).tolist()
            assert metric.of(outputs, targets) == pytest.approx(value, abs=1e-12)
            assert float((rows.nan_to_num() * counts).sum() / counts.sum()) == pytest.approx(value, abs=1e-12)
            assert (metric.rows is Rows.REAL) == (
                shape != () or METRICS[name].rows is Rows.REAL or (name == "brier" and classes > 2)
            )


@pytest.mark.parametrize("name", sorted(METRICS.keys() - {"mae", "rmse", "r2"}))
@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_of_several_positions_pool_all_positions(name, classes):
    """No target is ignored, and targets have their original shape."""
    outputs, targets = positions(torch.Generator().manual_seed(1), 20, classes, (3, 2), 1.0, -100, 0.0)
    flat = outputs.movedim(1, -1).reshape(-1, classes), targets.reshape(-1)
    assert METRICS[name].of(outputs, targets) == pytest.approx(METRICS[name].of(*flat), abs=1e-12)


def test_non_finite_output_at_an_ignored_position_is_harmless():
    outputs, targets = positions(torch.Generator().manual_seed(1), 20, 3, (4,), 1.0, -100, 0.4)
    beyond = torch.where((targets == -100)[:, None], math.nan, outputs)
    for name in METRICS.keys() - {"mae", "rmse", "r2"}:
        metric = resolved(METRICS[name], outputs, targets, -100)
        assert metric.of(beyond, targets) == metric.of(outputs, targets)


def test_metrics_without_counted_targets_are_undefined():
    outputs, targets = torch.zeros(3, 4, 2, dtype=torch.float64), torch.full((3, 2), -100)
    for name in METRICS.keys() - {"mae", "rmse", "r2"}:
        assert math.isnan(resolved(METRICS[name], outputs, targets, -100).of(outputs, targets))
