"""Test model, loss and score as functions of a flat vector."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from tests.support.refusals import logged, refused
from torch import nn
from torch.nn import functional

import drfl
from drfl.core.key import Key
from drfl.engine import prepared_pools
from drfl.task import models
from drfl.task.metrics import METRICS, Metric, argmax_accuracy, binary_accuracy
from drfl.task.task import Task
from drfl.task.task_checks import check_targets, check_task, output_notice

X = torch.linspace(-1, 2, 20).view(5, 4)
Y = torch.tensor([0, 2, 1, 1, 0])
REAL = torch.linspace(0, 1, 15).view(5, 3)


def net(out=3):
    with Key(0).torch_scope():
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, out))


def zeros_like_targets(outputs, targets):
    return torch.zeros(len(targets))


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def losses_of(task, y):
    return task.sample_losses(task.outputs(task.layout.views(task.w0), X), y)


def test_outputs_and_losses_of_a_flat_vector():
    model = net()
    task = Task(model)
    with torch.no_grad():
        expected = functional.cross_entropy(model(X), Y, reduction="none")
    assert torch.equal(losses_of(task, Y), expected)
    assert losses_of(task, Y).shape == (5,)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")])
def test_reduction_is_switched_on_a_copy(loss):
    before = loss.reduction
    task = Task(net(), loss)
    check_task(task, X, Y)
    assert losses_of(task, Y).shape == (5,)
    assert loss.reduction == before


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(),
        functional.mse_loss,
        functools.partial(functional.mse_loss, reduction="mean"),
        lambda outputs, y: (outputs - y) ** 2,
        lambda outputs, y: ((outputs - y) ** 2).mean(1),
    ],
    ids=["module", "function", "partial", "elementwise", "per_sample"],
)
def test_further_dimensions_are_averaged(loss):
    model = net()
    task = Task(model, loss, score=zeros_like_targets)
    check_task(task, X, REAL)
    with torch.no_grad():
        expected = ((model(X) - REAL) ** 2).mean(1)
    torch.testing.assert_close(losses_of(task, REAL), expected)


@pytest.mark.parametrize(
    "loss",
    [lambda o, y: functional.cross_entropy(o, y), lambda o, y: ((o - 1) ** 2).mean(0)],
    ids=["reduced", "over_samples"],
)
def test_reduced_loss_is_refused(loss):
    with refused("wrong-shape", "the loss", "5"):
        check_task(Task(net(), loss), X, Y)


def test_metric_declared_per_sample_must_return_a_vector():
    hit = Metric("hit", lambda o, y: (o.argmax(1) == y).float().mean(), per_sample=True)
    with refused("wrong-shape", None, "'hit'"):
        check_task(Task(net(), score=hit), X, Y)


@pytest.mark.parametrize("convert", [torch.Tensor.bool, torch.Tensor.long, torch.Tensor.float])
def test_metric_per_sample_may_return_any_numbers_per_position(convert):
    outputs, y = torch.eye(3)[torch.tensor([[0, 1], [2, 2]])].movedim(-1, 1), torch.tensor([[0, 2], [2, 2]])
    hit = Metric("hit", lambda o, y: convert(o.argmax(1) == y), per_sample=True)
    values = Task(net(), score=hit).sample_values(hit, outputs, y)
    assert values.tolist() == [0.5, 1.0]


def test_metric_need_not_be_hashable():
    @dataclasses.dataclass
    class recall:  # noqa: N801 - named as in files
        least: float = 0.5

        def __call__(self, outputs, y):
            return float((outputs.softmax(1)[y == 1, 1] > self.least).double().mean())

    data = drfl.ClientData.from_arrays([(X.repeat(8, 1), Y.repeat(8)) for _ in range(2)])
    task = Task(net(), score=Metric("sure", recall(0.0)), metrics=(recall(1.0), "accuracy"))
    fed = drfl.Simulation(data, task)
    result = drfl.run(drfl.FedAvg(local=drfl.LocalSGD(steps=2, lr=0.1)), fed, rounds=1)
    assert result.evaluation.score.tolist() == [1.0, 1.0]
    assert drfl.assess(result, fed, measure="accuracy")


def test_loss_that_mixes_samples_is_refused():
    """(B, 1) outputs minus (B,) targets broadcast to (B, B), so every sample is compared with every target."""
    task = Task(net(1), lambda outputs, y: (outputs - y) ** 2, score=binary_accuracy)
    with refused("unsupported-model", "loss", "sample"):
        check_task(task, X, torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]))


def test_label_without_an_output_is_refused():
    with refused("out-of-range", "targets", "5", "3"):
        check_task(Task(net()), X, torch.tensor([0, 2, 5, 1, 0]))


def test_model_that_mixes_samples_is_refused():
    class Centred(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    with refused("unsupported-model", "model", "sample"):
        check_task(Task(Centred(4, 3)), X, Y)


@pytest.mark.parametrize(
    ("x", "y"),
    [(X[:, :3], Y), (X, Y.int()), (X.double(), Y), (X, Y[:3])],
    ids=["inputs", "integer_type", "floating_type", "number"],
)
def test_mismatches_are_one_line_errors(x, y):
    with refused("model-data-mismatch", "model") as raised:
        check_task(Task(net()), x, y)
    assert "\n" not in str(raised.value)


def test_floating_point_targets_need_another_score():
    assert Task(net(1), nn.MSELoss()).measures == (METRICS["rmse"],)
    with refused("wrong-shape", "loss", "(5, 1)", "(5, 3)"):
        check_task(Task(net(1), nn.MSELoss()), X, REAL)
    check_task(Task(net(1), nn.MSELoss()), X, REAL[:, 0])  # (B, 1) against (B,)
    with refused("wrong-task", "accuracy", "score='rmse'"):
        check_targets(Task(net(1), nn.MSELoss(), "accuracy"), X, REAL)


def test_outputs_without_classes_are_refused():
    with refused("wrong-task", "auc", "(B, classes)"):
        check_task(Task(nn.Sequential(net(1), nn.Flatten(0)), lambda o, y: o, "auc"), X, Y[:, None].expand(-1, 2))


@pytest.mark.parametrize(("low", "high"), [(-1, 2), (0, 3), (0, 255)])
def test_labels_outside_the_classes_are_refused(low, high):
    with refused("out-of-range", "targets", str(low), str(high), "3"):
        check_targets(Task(net()), X, torch.tensor([0, low, 1, high]))


def test_labels_inside_the_classes_are_accepted():
    check_targets(Task(net()), X, torch.tensor([0, 2]))
    check_targets(Task(net(), nn.MSELoss(), score=zeros_like_targets), X, torch.tensor([7.0]))


def test_buffers_changed_in_the_forward_pass_are_refused():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    with refused("unsupported-model", "model", "'calls'"):
        check_task(Task(Counting()), X, Y)


def test_random_forward_pass_is_refused():
    class Noisy(nn.Linear):
        def forward(self, x):
            return functional.dropout(super().forward(x), 0.5, self.training)

    model = Noisy(4, 3)
    before = torch.random.get_rng_state()
    with refused("unsupported-model", "model", "global generator"):
        check_task(Task(model), X, Y)
    assert torch.equal(before, torch.random.get_rng_state())
    check_task(Task(model.eval()), X, Y)


def test_constant_buffers_are_accepted():
    model = net()
    model.register_buffer("scale", torch.ones(3))
    check_task(Task(model), X, Y)


def test_stateful_models_are_refused_at_once():
    with refused("unsupported-model", "model", "nn.GroupNorm"):
        Task(nn.Sequential(net(), nn.BatchNorm1d(3)))
    check_task(Task(nn.Sequential(net(), nn.BatchNorm1d(3)).eval()), X, Y)


def test_initial_model_is_a_copy():
    task = Task(net())
    task.w0.zero_()
    assert task.w0.abs().sum() > 0


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))])
def test_task_in_another_dtype(loss):
    model = net()
    task = Task(model, loss)
    double = task.to("cpu", torch.float64)
    assert double.w0.dtype == torch.float64
    check_task(double, X.double(), Y)
    outputs = double.outputs(double.layout.views(double.w0), X.double())
    torch.testing.assert_close(double.sample_losses(outputs, Y).float(), losses_of(task, Y))
    assert model[0].weight.dtype == torch.float32


def test_frozen_parameters_keep_their_dtype_on_another_device():
    model = nn.Sequential(nn.Linear(4, 4).double().requires_grad_(False), nn.Linear(4, 3))
    model.register_buffer("scale", torch.ones(3, dtype=torch.float64))
    kinds = {name: value.dtype for name, value in Task(model).to("cpu", torch.float32).model.state_dict().items()}
    assert kinds == {name: value.dtype for name, value in model.state_dict().items()}
    assert Task(model).to("cpu", torch.float64).model.state_dict()["1.weight"].dtype == torch.float64


def test_argmax_accuracy():
    outputs = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.6, 0.4]])
    assert argmax_accuracy(outputs, torch.tensor([1, 1, 0])).tolist() == [1, 0, 1]


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_binary_accuracy(shape):
    outputs, targets = torch.tensor([-1.0, 2.0, 3.0, -4.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert binary_accuracy(outputs.view(shape), targets).tolist() == [1, 1, 0, 0]
    assert binary_accuracy(outputs.view(shape), targets.long().view(shape)).tolist() == [1, 1, 0, 0]


def test_binary_classification():
    with Key(0).torch_scope():
        model = models.linear((4,), 1)
    y = torch.tensor([[0.0], [1.0], [1.0], [0.0], [1.0]])
    task = Task(model, nn.BCEWithLogitsLoss(), binary_accuracy)
    check_task(task, X, y)
    with torch.no_grad():
        expected = functional.binary_cross_entropy_with_logits(model(X), y, reduction="none")[:, 0]
    torch.testing.assert_close(losses_of(task, y), expected)


def test_images_before_a_linear_layer_name_the_remedy():
    task = drfl.Task(torch.nn.Linear(64, 10))
    with refused("model-data-mismatch", "model", "torch.nn.Flatten()"):
        check_task(task, torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"model": nn.Linear}, "model"),
        ({"model": lambda x: x}, "model"),
        ({"loss": nn.CrossEntropyLoss}, "loss"),
        ({"loss": "cross_entropy"}, "loss"),
    ],
)
def test_part_of_a_wrong_type_is_refused(arguments, field):
    with refused("wrong-type", field):
        Task(**{"model": nn.Linear(4, 3), **arguments})


@pytest.mark.parametrize(
    "loss",
    [nn.BCELoss(), functional.binary_cross_entropy, functools.partial(functional.binary_cross_entropy, weight=None)],
)
def test_loss_of_probabilities_is_refused(loss):
    with refused("unsupported-loss", "loss", "BCEWithLogitsLoss"):
        Task(nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), loss)


POISSON = functional.poisson_nll_loss


@pytest.mark.parametrize("loss", [nn.PoissonNLLLoss(), POISSON, functools.partial(POISSON, full=True)])
def test_loss_of_log_rates_is_refused(loss):
    with refused("unsupported-loss", "loss", "torch.nn.PoissonNLLLoss(log_input=False)"):
        Task(net(1), loss)


@pytest.mark.parametrize("loss", [nn.PoissonNLLLoss(log_input=False), functools.partial(POISSON, log_input=False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_counts_are_a_regression_of_rates(loss, dtype):
    model, counts = nn.Sequential(net(1), nn.Softplus()), torch.tensor([0, 3, 1, 7, 2])
    data = drfl.ClientData.from_arrays([(X.repeat(8, 1), counts.repeat(8).to(dtype))] * 2)
    task = Task(model, loss)
    fed = drfl.Simulation(data, task)
    assert [measure.name for measure in task.measures] == ["rmse"]
    result = fed.evaluate(fed.w0)
    rows = data.test[0]
    with torch.no_grad():
        rates = model(data.test_inputs[rows])[:, 0]
    expected = functional.mse_loss(rates, data.test_targets[rows].float()).sqrt()
    torch.testing.assert_close(result.score[0], expected.double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        result.loss[0], POISSON(rates, data.test_targets[rows], log_input=False).double(), rtol=1e-5, atol=1e-6
    )


def test_class_probabilities_need_their_own_score():
    soft = torch.tensor([[0.8, 0.1, 0.1], [0.0, 0.0, 1.0], [0.2, 0.5, 0.3], [0, 1, 0], [1, 0, 0]])
    for name in (None, "brier", "auc", "f1"):
        with refused("wrong-task", name or "accuracy", "argmax"):
            check_task(Task(net(), score=name), X, soft)
    own = Task(net(), score=lambda outputs, y: (outputs.argmax(1) == y.argmax(1)).float())
    check_task(own, X, soft)
    with torch.no_grad():
        expected = functional.cross_entropy(own.model(X), soft, reduction="none")
    assert torch.equal(losses_of(own, soft), expected)


@pytest.mark.parametrize("outputs", [nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), functional.cross_entropy, nn.NLLLoss()])
@pytest.mark.parametrize("score", [None, "rmse"])
def test_cross_entropy_with_one_output_is_refused(outputs, loss, score):
    """The probability of the only class is 1, so nothing can be learned, although a sign of the output has accuracy."""
    with refused("unsupported-loss", "loss", "loss=nn.BCEWithLogitsLoss()"):
        check_task(Task(outputs, loss, score), X, torch.zeros(5, dtype=torch.int64))
    check_task(Task(outputs, nn.BCEWithLogitsLoss()), X, torch.zeros(5, dtype=torch.int64))
    check_task(Task(net(2)), X, torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("shape", [(5,), (5, 1)])
@pytest.mark.parametrize("score", [None, "mae"])
def test_numbers_for_a_loss_of_class_labels_are_refused_with_both_remedies(classes, shape, score):
    with refused("wrong-task", "loss", str(shape), "torch.float32", ".long()", "loss=nn.MSELoss()"):
        check_task(Task(net(classes), score=score), X, torch.ones(shape))


def test_loss_derived_from_torchs_may_take_numbers_and_one_output():
    class Soft(nn.CrossEntropyLoss):
        def forward(self, outputs, y):
            return functional.binary_cross_entropy_with_logits(outputs[:, 0], y, reduction="none")

    check_task(Task(net(1), Soft(reduction="none"), "mae"), X, torch.full((5,), 0.3))


def test_score_of_a_row_without_finite_outputs_is_unknown():
    outputs = torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [0.0, torch.inf], [0.0, 1.0]])
    for metric in (METRICS["accuracy"], Metric("right", lambda o, y: o.argmax(1) == y, per_sample=True)):
        values = Task(net(2)).sample_values(metric, outputs, torch.tensor([0, 0, 1, 0]))
        torch.testing.assert_close(values, torch.tensor([1.0, torch.nan, torch.nan, 0.0]), equal_nan=True)


def test_description_differs_if_the_task_computes_something_else():
    weights = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0]))
    tasks = [
        Task(net()),
        Task(nn.Sequential(*net(), nn.Identity())),
        Task(net(), weights),
        Task(net(), nn.CrossEntropyLoss(label_smoothing=0.1)),
        Task(net(), functools.partial(functional.cross_entropy, label_smoothing=0.1)),
        Task(net(), lambda outputs, y: functional.cross_entropy(outputs, y, reduction="none")),
        Task(net(), metrics=("auc",)),
        Task(net(), augment=lambda x, uniform: x.flip(-1)),
    ]
    # The repr of this layer does not show its factor.
    tasks += [Task(nn.Sequential(net(), Scaled(factor))) for factor in (1.0, 2.0)]
    texts = [str(task.description) for task in tasks]
    assert len(set(texts)) == len(texts)
    assert [str(task.to("cpu", torch.float32).description) for task in tasks] == texts
    assert " at 0x" not in "".join(texts)


def test_lists_of_metrics_and_unhashable_augmentations_are_accepted():
    @dataclasses.dataclass
    class Darker:
        factor: float = 0.5

        def __call__(self, x, uniform):
            return x * self.factor

    task = Task(net(), metrics=["auc"], augment=Darker())
    assert task.metrics == ("auc",)
    data = drfl.ClientData.from_arrays([(X.repeat(8, 1), Y.repeat(8)) for _ in range(2)])
    assert drfl.run(drfl.FedAvg(local=drfl.LocalSGD(steps=2, lr=0.1)), drfl.Simulation(data, task), rounds=1)
    assert hash(task) != hash(Task(net()))


def own_loss(outputs, y):
    return functional.binary_cross_entropy(outputs.squeeze(1), y.to(outputs), reduction="none")


def with_end(outputs, end):
    return nn.Sequential(net(outputs), end)


ROWS = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
PARITY = torch.arange(30) % 2


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (with_end(1, nn.Sigmoid()), own_loss),
        (with_end(1, nn.Sigmoid()), nn.BCEWithLogitsLoss()),
        (with_end(2, nn.Softmax(1)), nn.CrossEntropyLoss()),
        (net(2), nn.NLLLoss()),
        (net(2), functional.nll_loss),
    ],
)
def test_outputs_that_are_no_logits_are_noticed(model, loss):
    task = Task(model, loss)
    notice = output_notice(task, ROWS, PARITY)
    assert notice is not None
    assert (notice.code, notice.field) == ("unexpected-outputs", "model")
    assert output_notice(task, ROWS[:19], PARITY[:19]) is None


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0])
def test_logits_are_never_noticed(scale):
    for seed in range(40):
        with Key(seed).torch_scope():
            models = [nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))]
        assert [output_notice(Task(model, nn.BCEWithLogitsLoss()), scale * ROWS, PARITY) for model in models] == [
            None
        ] * 2
    assert output_notice(Task(net(2)), ROWS, PARITY) is None
    assert output_notice(Task(with_end(2, nn.LogSoftmax(1)), nn.NLLLoss()), ROWS, PARITY) is None
    assert output_notice(Task(with_end(1, nn.Sigmoid()), nn.MSELoss()), ROWS, PARITY.float()) is None


def test_notice_about_outputs_is_logged_once(caplog):
    data = drfl.ClientData.from_arrays([(ROWS, PARITY), (ROWS, PARITY)])
    prepared_pools._warn_once.cache_clear()
    for seed in range(2):
        with Key(seed).torch_scope(), caplog.at_level("WARNING", "drfl"):
            drfl.Simulation(data, Task(nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1), nn.Flatten())))
    assert logged(caplog) == [("unexpected-outputs", "model")]
