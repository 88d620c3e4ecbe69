"""Test losses that ignore targets or weigh classes against torch's value on the same rows, in every engine."""

from __future__ import annotations

import copy
import dataclasses
import functools

import pytest
import torch
from sklearn import metrics as reference
from tests.support.engines import ALL_ENGINES, same
from tests.support.marks import crossed, long_except
from tests.support.refusals import refused
from torch import nn
from torch.nn import functional

import drfl
from drfl.core.key import Key
from drfl.engine import Loop, Simulation, Threads, evaluation, full_batch, sgd
from drfl.engine.batches import ClientRows, draw, draw_epochs
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import SAM
from drfl.task.task import Task

CLASSES, LENGTH = 4, 5
SIZES = (3, 40, 17, 64, 9)
TESTS = (4, 9, 1, 12, 6)
WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.25], dtype=torch.float64)
LOSSES = {
    "ignoring": nn.CrossEntropyLoss(),
    "255": nn.CrossEntropyLoss(ignore_index=255),
    "a class": nn.CrossEntropyLoss(ignore_index=1),
    "weights": nn.CrossEntropyLoss(weight=WEIGHT + 0.1),
    "all": nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=3, label_smoothing=0.1),
    "none": nn.CrossEntropyLoss(weight=WEIGHT, reduction="none"),
    "sum": nn.CrossEntropyLoss(weight=WEIGHT, reduction="sum"),
    "partial": functools.partial(functional.cross_entropy, weight=WEIGHT, ignore_index=-1, label_smoothing=0.2),
    "function": functional.cross_entropy,
    "nll": nn.NLLLoss(weight=WEIGHT, ignore_index=-7),
    "nll_loss": functools.partial(functional.nll_loss, ignore_index=0),
}
IGNORED = {"255": 255, "a class": 1, "all": 3, "partial": -1, "nll": -7, "nll_loss": 0}
"""Ignored values that differ from torch's default."""
NAMES = long_except(LOSSES.keys() - {"nll_loss"}, LOSSES)


class Tagger(nn.Module):
    """Outputs (n, classes) of inputs (n, 3), or (n, classes, LENGTH) of inputs (n, LENGTH, 3)."""

    def __init__(self, normalised=False):
        super().__init__()
        self.hidden, self.out, self.normalised = nn.Linear(3, 6), nn.Linear(6, CLASSES), normalised

    def forward(self, x):
        outputs = self.out(torch.tanh(self.hidden(x)))
        outputs = outputs.log_softmax(-1) if self.normalised else outputs
        return outputs if outputs.dim() == 2 else outputs.transpose(1, 2)


def clients(name, dense, *, share=0.6, seed=0):
    """Make clients with increasing shares of ignored targets; the first has none."""
    draw, ignored = torch.Generator().manual_seed(seed), IGNORED.get(name, -100)
    parts = []
    for sizes in (SIZES, TESTS):
        made = {}
        for i, n in enumerate(sizes):
            shape = (n, LENGTH) if dense else (n,)
            x = torch.randn(*shape, 3, generator=draw, dtype=torch.float64)
            y = torch.randint(0, CLASSES, shape, generator=draw)
            y[torch.rand(shape, generator=draw) < share * i / (len(sizes) - 1)] = ignored
            y.view(n, -1)[0, 0] = 0 if ignored else 2 if name == "sum" else 1  # one that counts
            y.view(n, -1)[0, -1] = y.view(n, -1)[0, 0]
            made[f"site {i}"] = (x, y)
        parts.append(made)
    return drfl.ClientData.from_arrays(*parts, dtype=None)


def tagger(normalised=False):
    with Key(0).torch_scope():
        return Tagger(normalised).double()


def task(name, **options):
    return Task(tagger(name.startswith("nll")), LOSSES[name], **options)


def torchs(loss):
    """Return torch's loss, or its mean for reduction 'none'."""
    if getattr(loss, "reduction", "mean") == "none":
        loss = copy.copy(loss)
        loss.reduction = "mean"
    return loss


def value_and_gradient(fed, w, rows):
    """Return torch's value and gradient on these rows of the training pool; None if it is 0/0."""
    own, x, y = fed._train.task, fed._train.x[rows], fed._train.y[rows]
    u = w.clone().requires_grad_()
    value = torchs(own.criterion.given)(own.outputs(own.layout.views(u), x), y)
    if not value.isfinite():
        return None
    return value.detach(), torch.autograd.grad(value, u)[0]


def report(fed, w, i, batch, key):
    """Return torch's value and gradient on the rows that client i draws, or, if that is 0/0, on counted rows."""
    rows, _ = next(draw(fed._rows, torch.tensor([i]), 1, batch, key).of_client(0, 1))
    found = value_and_gradient(fed, w, rows)
    if found is None:
        mine = fed._rows.of_client(i)
        counting = mine[[value_and_gradient(fed, w, mine[j : j + 1]) is not None for j in range(len(mine))]]
        alone = ClientRows.of([counting])
        rows, _ = next(draw(alone, torch.tensor([0]), 1, batch, key.fold("counting"), first=i).of_client(0, 1))
        found = value_and_gradient(fed, w, rows)
    return found


every = pytest.mark.parametrize("engine", ALL_ENGINES.values(), ids=ALL_ENGINES)
pytestmark = pytest.mark.usefixtures("ray", "global_generator_untouched")


@pytest.mark.parametrize(
    ("engine", "name", "dense", "large"),
    crossed(
        ALL_ENGINES,
        NAMES,
        {"flat": False, "dense": True},
        {"large": True, "small": False},
        last_in_turn=True,
    ),
)
def test_reports_gradients_and_evaluations_equal_torch(engine, name, dense, large, monkeypatch):
    if large:
        for module, constant in ((full_batch, "LARGE"), (full_batch, "MINIBATCH"), (evaluation, "MIN_TRACED")):
            monkeypatch.setattr(module, constant, 0)
        monkeypatch.setattr(sgd, "BYTES", 12 * 8 * 3)
    data = clients(name, dense)
    fed = Simulation(data, task(name), engine=engine)
    cohort, w = torch.tensor([3, 0, 2, 4]), fed.w0 + 0.1
    for batch in (None, 3):
        values, slopes = zip(*(report(fed, w, i, batch, Key(5)) for i in cohort.tolist()), strict=True)
        losses, gradients = fed.losses(cohort, w, Key(5), batch=batch), fed.gradients(cohort, w, Key(5), batch=batch)
        assert losses.clients.tolist() == gradients.clients.tolist() == cohort.tolist()
        same(losses.values, torch.stack(values))
        same(gradients.losses, torch.stack(values))
        same(gradients.values, torch.stack(slopes))
    with torch.no_grad():
        outputs = fed._train.task.outputs(fed._train.task.layout.views(w), data.test_inputs)
        loss = torchs(LOSSES[name])
        expected = [loss(outputs[rows], data.test_targets[rows]) for rows in data.test]
    same(fed.evaluate(w).loss, torch.stack(expected))


# Reports already show that every loss is understood.
STEPPED = ["ignoring", "a class", "weights", "all", "none", "nll"]
SOLVERS = {
    "plain": {"steps": 4, "batch": 3},
    "one": {"steps": 6, "batch": 1},
    "full": {"steps": 3, "batch": None},
    "epochs": {"epochs": 2, "batch": 4},
    "momentum": {"steps": 4, "batch": 3, "momentum": 0.7, "weight_decay": 0.1, "radius": 4.0},
    "sam": {"steps": 3, "batch": 3, "optimizer": SAM(0.05)},
}


@pytest.mark.parametrize(
    ("engine", "name", "dense", "solver"),
    crossed(ALL_ENGINES, STEPPED, {"flat": False, "dense": True}, list(SOLVERS), last_in_turn=True),
)
def test_local_steps_follow_torch_gradients(engine, name, dense, solver):
    local = LocalSGD(lr=0.05, **SOLVERS[solver])
    fed = Simulation(clients(name, dense), task(name), engine=engine)
    cohort, w, prox = torch.tensor([1, 4, 2, 3]), fed.w0 + 0.1, 0.3
    snapshot = None if local.epochs else 2
    found = fed.train(cohort, w, local, Key(7), prox=prox, snapshot=snapshot, average=True)
    if local.epochs:
        batches = draw_epochs(fed._rows, cohort, local.epochs, local.batch, Key(7))
    else:
        batches = draw(fed._rows, cohort, local.steps, local.batch, Key(7))

    def gradient(u, rows):
        own = value_and_gradient(fed, u, rows)
        return torch.zeros_like(u) if own is None else own[1]

    empty = 0
    for j in range(4):
        u, velocity, path = w.clone(), torch.zeros_like(w), []
        for rows, _ in batches.of_client(j, local.fewest_steps):
            g = gradient(u, rows)
            empty += not g.any()
            if isinstance(local.optimizer, SAM) and g.any():
                g = gradient(u + local.optimizer.rho * g / g.norm(), rows)
            velocity = local.momentum * velocity + g + local.weight_decay * u + prox * (u - w)
            u = u - local.eta * velocity
            if local.radius is not None and u.norm() > local.radius:
                u = u * (local.radius / u.norm())
            path.append(u)
        same(found.w[j], path[-1])
        same(found.average[j], torch.stack(path).mean(0))
        if snapshot is not None:
            same(found.snapshot[j], path[snapshot - 1])
    # Otherwise the test would not cover minibatches in which no target counts.
    assert empty or dense or solver != "one" or name in ("weights", "sum")


def scikit_learns(outputs, targets):
    """Return accuracy, balanced accuracy, F1, log loss and Brier score of outputs (P, classes) and targets (P,)."""
    chosen, p = outputs.argmax(1), outputs.softmax(1)
    return [
        reference.accuracy_score(targets, chosen),
        reference.balanced_accuracy_score(targets, chosen),
        reference.f1_score(targets, chosen, average="macro"),
        reference.log_loss(targets, p, labels=range(CLASSES)),
        float((p - functional.one_hot(targets, CLASSES)).square().sum(1).mean()),
    ]


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true", "ignore:A single label was found")
@pytest.mark.parametrize(
    ("engine", "dense", "name"),
    crossed(ALL_ENGINES, {"flat": False, "dense": True}, ["ignoring", "255", "a class"]),
)
def test_metrics_exclude_ignored_targets(engine, dense, name):
    data, ignored = clients(name, dense), IGNORED.get(name, -100)
    metrics = ("balanced_accuracy", "f1", "log_loss", "brier", drfl.Metric("mine", functional_accuracy))
    fed = Simulation(data, task(name, metrics=metrics), engine=engine)
    found, scores = fed.tested(fed.w0)
    with torch.no_grad():
        outputs = fed._train.task.outputs(fed._train.task.layout.views(fed.w0), data.test_inputs)
    for i, rows in enumerate(data.test):
        z, y = outputs[rows], data.test_targets[rows]
        counted = y != ignored
        assert int(found.samples[i]) == int(counted.view(len(y), -1).any(1).sum())
        expected = scikit_learns(z.movedim(1, -1)[counted], y[counted])
        values = [found.score[i], *(values[i] for values in found.others)]
        assert [float(value) for value in values[:5]] == pytest.approx(expected, abs=1e-12)
        # A user's function gets every position of the remaining rows.
        left = counted.view(len(y), -1).any(1)
        assert float(values[5]) == pytest.approx(float(functional_accuracy(z[left], y[left])), abs=1e-12)
        for measure, value, (n, total, *_) in zip(fed.measures, values, found.sums[i].tolist(), strict=True):
            if measure.rows.mean:
                assert total / n == pytest.approx(float(value), abs=1e-12)
    rows = {measure.name: measure.rows for measure in fed.measures}
    assert rows["accuracy"] == ("real" if dense else "binary")
    assert scores.scores["accuracy"].dtype == (torch.float64 if dense else torch.uint8)


@every
def test_rows_with_one_position_stay_binary(engine):
    """Targets have shape (n, 1), so a row counts fully or not at all."""
    data = clients("ignoring", dense=True)
    y, tests = data.targets[:, :1], data.test_targets[:, :1].clone()
    tests[::3] = -100
    tests[torch.stack([rows[0] for rows in data.test])] = 1
    data = dataclasses.replace(
        data, inputs=data.inputs[:, :1], targets=y, test_inputs=data.test_inputs[:, :1], test_targets=tests
    )
    fed = Simulation(data, task("ignoring", metrics=("log_loss",)), engine=engine)
    found, scores = fed.tested(fed.w0)
    assert fed.measures[0].rows == "binary"
    assert scores.scores["accuracy"].unique().tolist() == [0, 1]
    assert found.sums is not None
    assert torch.equal(found.sums[:, 0, 1] / found.sums[:, 0, 0], found.score)


def functional_accuracy(outputs, targets):
    return float((outputs.argmax(1) == targets).double().mean())


def test_spread_of_weighted_rows_is_that_of_the_ratio():
    """The reference is the spread of the ratio over repeated draws of clients."""
    draw = torch.Generator().manual_seed(0)
    n, again = 200, 400
    ratios, estimated = [], []
    for _ in range(again):
        counts = torch.randint(1, 20, (n,), generator=draw).double()
        right = torch.binomial(counts, (0.5 + counts / 50).double(), generator=draw)  # long rows are easier
        each = (right / counts)[:, None]
        counted = torch.arange(20)[None, :] < counts[:, None]
        rows = evaluation.ClientRows.of([torch.arange(n)])
        value, scores = evaluation.position_means(each, counted, rows)
        assert float(scores.mean()) == pytest.approx(float(value), abs=1e-12)
        ratios.append(float(value))
        estimated.append(float(scores.var()) / n)
    assert float(torch.tensor(estimated).mean()) == pytest.approx(float(torch.tensor(ratios).var()), rel=0.2)


@pytest.mark.long
def test_assessment_of_weighted_rows_uses_fractions():
    data = clients("ignoring", dense=True)
    result = drfl.run(drfl.FedAvg(m=5, local=LocalSGD(lr=0.5)), Simulation(data, task("ignoring")), rounds=20)
    found = drfl.assess(result)
    assert ((found.low >= 0) & (found.low <= found.values) & (found.values <= found.high) & (found.high <= 1)).all()


def test_frozen_backbone_keeps_row_weights():
    def backbone():
        with Key(0).torch_scope():
            net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, CLASSES)).double()
        net[0].requires_grad_(False)
        return net

    class Whole(nn.Module):
        """The same loss as a module without visible parts."""

        def __init__(self):
            super().__init__()
            self.net = backbone()

        def forward(self, x):
            return self.net(x)

    data = clients("all", dense=False)
    split, whole = (Simulation(data, Task(model, LOSSES["all"])) for model in (backbone(), Whole()))
    assert type(split._train.task.model[0]) is nn.Linear
    assert len(split._train.task.model) == 1
    ask = {"cohort": torch.arange(5), "w": split.w0 + 0.1, "key": Key(0)}
    same(split.losses(**ask).values, whole.losses(**ask).values)
    same(split.evaluate(split.w0).loss, whole.evaluate(whole.w0).loss)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.long
def test_reports_use_counted_rows_even_if_few(batch):
    """A report of 0/0 would be invalid, and a client that reports less often would get less weight."""
    data = clients("ignoring", dense=False, share=1.0)
    fed = Simulation(data, task("ignoring"), engine=Loop())
    w, reports = fed.w0 + 0.3, []
    for seed in range(400):
        before = fed.ledger.loss_evaluations
        reply = fed.losses(torch.arange(5), w, Key(seed), batch=batch)
        assert reply.clients.tolist() == [0, 1, 2, 3, 4]
        assert fed.ledger.loss_evaluations - before <= 5 * batch
        reports.append(reply.values)
    found, spread = torch.stack(reports).mean(0), torch.stack(reports).std(0) / 20
    off = (found - fed.losses(torch.arange(5), w, Key(0)).values).abs()
    assert (off < 4 * spread + 1e-12).all()
    own = {"m": 5, "dual_batch": batch}
    for algorithm in (drfl.DRFA(**own), drfl.DualDRDM(**own), drfl.AFL(dual_batch=batch), drfl.ScaffPD()):
        result = drfl.run(algorithm, Simulation(data, task("ignoring")), rounds=5)
        assert result.skipped == 0
        assert result.evaluation.loss.isfinite().all()


def test_validation_rows_without_counted_targets_are_excluded():
    data = clients("ignoring", dense=False).with_validation(0.3)
    fed = Simulation(data, task("ignoring"))
    found = fed.validate(fed.w0)
    assert data.validation is not None
    for i, rows in enumerate(data.validation):
        assert int(found.samples[i]) == int((data.targets[rows] != -100).sum())
    assert fed.majority.tolist() == pytest.approx(
        [float(y.unique(return_counts=True)[1].max() / len(y)) for y in counted_tests(data)]
    )
    assert fed.data.n == data.n


def counted_tests(data):
    return [y[y != -100] for y in (data.test_targets[rows] for rows in data.test)]


@pytest.mark.parametrize("part", ["training", "test", "validation"])
@pytest.mark.parametrize("dense", [False, True])
def test_client_without_counted_targets_is_refused(part, dense):
    data = clients("255", dense).with_validation(0.3)
    lists = {"training": data.train, "test": data.test, "validation": data.validation}[part]
    (data.test_targets if part == "test" else data.targets)[lists[2]] = 255
    with refused("no-rows", "site 2") as caught:
        Simulation(data, task("255"))
    assert "255" in str(caught.value)


def test_targets_with_class_weight_0_do_not_count():
    data = clients("all", dense=False)
    data.test_targets[data.test[1]] = 2
    with refused("no-rows", "site 1"):
        Simulation(data, task("all"))


@pytest.mark.parametrize("wrong", [-1, -100, CLASSES, 255])
@pytest.mark.parametrize("name", ["255", "a class", "nll"])
@pytest.mark.parametrize("score", ["accuracy", functional_accuracy], ids=["accuracy", "own"])
def test_labels_that_the_loss_does_not_ignore_are_refused(name, wrong, score):
    data = clients(name, dense=True)
    if wrong == IGNORED[name]:
        Simulation(data, task(name, score=score))
        return
    data.targets[data.train[3][7], 2] = wrong
    with refused("out-of-range", "targets"):
        Simulation(data, task(name, score=score))


def test_class_weights_in_a_partial_move_with_the_task():
    given = task("partial", score="accuracy")
    moved = given.to("cpu", torch.float32)
    assert moved.criterion.given.keywords["weight"].dtype == torch.float32
    assert given.criterion.given.keywords["weight"].dtype == torch.float64
    data = clients("partial", dense=True).to(dtype=torch.float32)
    assert Simulation(data, moved).evaluate(moved.w0).loss.isfinite().all()


class Half(nn.Module):
    """A user's loss that divides by half the number of rows."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, outputs, targets):
        values = functional.cross_entropy(outputs, targets, reduction="none")
        return values if self.reduction == "none" else 2 * values.mean()


class Focal(nn.CrossEntropyLoss):
    """A user's loss that is derived from torch's and ignores the same targets."""

    def forward(self, input, target):
        values = functional.cross_entropy(input, target, ignore_index=self.ignore_index, reduction="none")
        values = (1 - torch.exp(-values)) ** 2 * values
        return values if self.reduction == "none" else values.sum() / (target != self.ignore_index).sum()


def test_loss_with_its_own_normalisation_is_refused():
    data = clients("ignoring", dense=True, share=0.0)
    with refused("unsupported-loss", "loss"):
        Simulation(data, Task(tagger(), Half()))
    Simulation(data, Task(tagger(), Half("none")))
    masked = clients("ignoring", dense=True)
    fed = Simulation(masked, Task(tagger(), Focal()))
    outputs = fed._train.task.outputs(fed._train.task.layout.views(fed.w0), masked.test_inputs)
    same(fed.evaluate(fed.w0).loss, torch.stack([Focal()(outputs[r], masked.test_targets[r]) for r in masked.test]))


def test_sum_over_rows_gives_one_warning(caplog):
    own = task("sum")
    Simulation(clients("sum", dense=True), own)
    assert [(record.msg.code, record.msg.field) for record in caplog.records] == [("summed-loss", "loss")]


def test_ignored_targets_in_the_first_rows_are_accepted():
    """The model and the loss are tried on these rows."""
    data = clients("255", dense=False, share=0.0)
    data.targets[data.train[0]] = 255
    data.targets[data.train[0][-1]] = 1
    metric = drfl.Metric("log", drfl.metrics.log_loss, more_is_better=False, rows=drfl.Rows.REAL, per_sample=True)
    fed = Simulation(data, task("255", metrics=(metric,)), engine=Threads(1))
    assert fed.evaluate(fed.w0).others[0].isfinite().all()


def test_tasks_without_ignored_targets_have_no_row_weights():
    for name in ("ignoring", "255"):
        fed = Simulation(clients(name, dense=True, share=0.0), task(name))
        assert fed._train.masses is fed._test.masses is None
        assert fed.measures[0].rows == "unit"
        assert fed.measures[0].ignored is None


def test_class_weights_for_another_number_of_classes_are_refused():
    with refused("model-data-mismatch"):
        Simulation(clients("ignoring", dense=True), Task(tagger(), nn.CrossEntropyLoss(weight=WEIGHT[:2])))
